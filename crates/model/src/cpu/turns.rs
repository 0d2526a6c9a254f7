//! The threads of a process, which several backends share by turns.
//!
//! A turn is one step of a backend, or a few milliseconds of a load. Turns are given in the order in which they were asked for, so between
//! two turns of one backend each other one that waits has one.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::CpuError;
use super::pool::Pool;

/// Threads that compute for whoever has the turn. Cloning shares them.
#[derive(Clone)]
pub struct CpuThreads(Arc<Inner>);

struct Inner {
    line: Mutex<Line>,
    moved: Condvar,
    /// Only who has the turn asks for it, so nobody waits here.
    pool: Mutex<Pool>,
    count: usize,
}

/// Who waits for a turn: numbers are drawn in order, and called in order.
#[derive(Default)]
struct Line {
    drawn: u64,
    called: u64,
}

impl CpuThreads {
    /// `count` includes whoever has the turn; 0 is one per core.
    ///
    /// # Errors
    /// The operating system refuses a thread.
    pub fn new(count: usize) -> Result<Self, CpuError> {
        let count = match count {
            0 => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            count => count,
        };
        let pool = Pool::new(count).map_err(CpuError::Thread)?;
        Ok(Self(Arc::new(Inner {
            line: Mutex::default(),
            moved: Condvar::new(),
            pool: Mutex::new(pool),
            count,
        })))
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.count
    }

    /// Waits for the turn.
    pub(crate) fn turn(&self) -> Turn<'_> {
        let inner = &*self.0;
        let mut line = inner.line();
        let mine = line.drawn;
        line.drawn += 1;
        while line.called != mine {
            line = inner
                .moved
                .wait(line)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(line);
        // A task that panicked ended its own turn; the threads are as good as before.
        let pool = inner.pool.lock().unwrap_or_else(PoisonError::into_inner);
        Turn {
            inner,
            pool: Some(pool),
        }
    }
}

impl Inner {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for CpuThreads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("CpuThreads").field(&self.0.count).finish()
    }
}

/// The threads, until it is dropped.
pub(crate) struct Turn<'a> {
    inner: &'a Inner,
    /// Taken when it is dropped.
    pool: Option<MutexGuard<'a, Pool>>,
}

impl Deref for Turn<'_> {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        self.pool.as_deref().expect("taken only in drop")
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut Pool {
        self.pool.as_deref_mut().expect("taken only in drop")
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // The next one finds the pool free.
        self.pool = None;
        let mut line = self.inner.line();
        line.called += 1;
        let is_waited_for = line.called != line.drawn;
        drop(line);
        if is_waited_for {
            self.inner.moved.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn who_waits_is_next_however_soon_the_other_asks_again() {
        let threads = CpuThreads::new(1).unwrap();
        let first = threads.turn();
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _turn = threads.turn();
                order.lock().unwrap().push("other");
            });
            while threads.0.line().drawn < 2 {
                std::thread::yield_now();
            }
            drop(first);
            let _turn = threads.turn();
            order.lock().unwrap().push("again");
        });
        assert_eq!(order.into_inner().unwrap(), ["other", "again"]);
    }

    #[test]
    fn a_turn_that_ends_in_a_panic_is_over() {
        let threads = CpuThreads::new(2).unwrap();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            threads
                .turn()
                .run(64, &|task| assert!(task != 40, "task 40"));
        }));
        assert!(ended.is_err());
        let sum = AtomicUsize::new(0);
        threads
            .turn()
            .run(64, &|task| _ = sum.fetch_add(task, Ordering::Relaxed));
        assert_eq!(sum.into_inner(), 63 * 64 / 2);
    }
}
