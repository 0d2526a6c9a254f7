//! Points and breaks that are there.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use super::{BREAKS, POINTS};

type Hook = Arc<dyn Fn(&'static str) + Send + Sync>;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

/// What happens at points of the threads that entered it.
#[derive(Clone)]
pub struct World {
    hook: Hook,
    broken: Option<&'static str>,
}

impl World {
    /// Tells `hook` of every point, on the thread that meets it.
    pub fn new(hook: impl Fn(&'static str) + Send + Sync + 'static) -> Self {
        Self {
            hook: Arc::new(hook),
            broken: None,
        }
    }

    /// The same world with one invariant violated.
    #[must_use]
    pub fn break_with(mut self, name: &'static str) -> Self {
        assert!(BREAKS.iter().any(|(known, _)| *known == name), "{name}");
        self.broken = Some(name);
        self
    }

    /// The calling thread belongs to it from now on.
    pub fn enter(&self) {
        WORLD.set(Some(self.clone()));
    }
}

/// A named place is passed.
pub fn point(name: &'static str) {
    debug_assert!(POINTS.contains(&name), "{name} is not in the list");
    let hook = WORLD.with_borrow(|world| world.as_ref().map(|world| Arc::clone(&world.hook)));
    if let Some(hook) = hook {
        hook(name);
    }
}

/// Whether this world, or the whole process, violates an invariant here.
pub fn broken(name: &'static str) -> bool {
    static PROCESS: OnceLock<Option<String>> = OnceLock::new();
    debug_assert!(
        BREAKS.iter().any(|(known, _)| *known == name),
        "{name} is not in the list"
    );
    let process = PROCESS.get_or_init(|| std::env::var("WEIR_BREAK").ok());
    process.as_deref() == Some(name)
        || WORLD.with_borrow(|world| world.as_ref().is_some_and(|w| w.broken == Some(name)))
}

/// The world of one thread, on its way to another.
#[derive(Clone)]
pub struct Inherited(Option<World>);

/// Takes the calling thread's world along.
pub fn inherit() -> Inherited {
    Inherited(WORLD.with_borrow(Clone::clone))
}

impl Inherited {
    /// The calling thread belongs to it.
    pub fn enter(self) {
        WORLD.set(self.0);
    }
}
