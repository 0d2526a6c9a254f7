//! Statuses on their way to the API server: each when it says something else, what merely moves at most every ten seconds.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use k8s_openapi::NamespaceResourceScope;
use kube::{Resource, ResourceExt as _};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::apply::{Applier, ApplyError};
use crate::queue::Outcome;
use crate::status::{MOVING_EVERY, change, wait};

/// Statuses of one kind of objects.
#[derive(Debug)]
pub struct Statuses {
    kind: &'static str,
    /// Fields whose values alone are no news.
    moving: &'static [&'static str],
    /// When each was last written, of those that may have to wait for it.
    written: Mutex<BTreeMap<String, Instant>>,
}

impl Statuses {
    /// Of a kind; `moving` are the fields whose values alone are no news.
    pub fn new(kind: &'static str, moving: &'static [&'static str]) -> Self {
        Self {
            kind,
            moving,
            written: Mutex::default(),
        }
    }

    /// Writes the status `new` where that is due; if it is not yet, after how long it is.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub async fn tell<K>(
        &self,
        applier: &Applier,
        object: &K,
        old: &impl Serialize,
        new: &impl Serialize,
    ) -> Result<Option<Duration>, ApplyError>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
        K::DynamicType: Default,
    {
        let name = object.name_any();
        let (old, new) = (value(old), value(new));
        let since = self.written.lock().get(&name).map(Instant::elapsed);
        let due = wait(change(&old, &new, self.moving), since);
        if due != Some(Duration::ZERO) {
            return Ok(due);
        }
        applier.status(object, self.kind, &new).await?;
        let mut written = self.written.lock();
        written.retain(|_, at| at.elapsed() < MOVING_EVERY);
        written.insert(name, Instant::now());
        Ok(None)
    }
}

/// What a look comes to that ends with telling: the next look, at once due again where another one wrote, none where another one leads.
///
/// # Errors
/// What telling failed with.
pub fn told(
    told: Result<Option<Duration>, ApplyError>,
    look_every: Duration,
) -> Result<Outcome, ApplyError> {
    match told {
        Err(ApplyError::NotLeading) => Ok(Outcome::Quiet),
        Err(error) if !error.is_race() => Err(error),
        _ => Ok(Outcome::Again(look_every)),
    }
}

fn value(status: &impl Serialize) -> Value {
    serde_json::to_value(status).unwrap_or_default()
}
