//! Whether a process should get traffic, and if not, why not.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The open reasons against readiness, by component. Cloning shares them; no reason means ready.
///
/// A process starts ready: components that need time register their reason before the admin server starts.
#[derive(Clone, Debug)]
pub struct Readiness {
    reasons: Arc<watch::Sender<BTreeMap<&'static str, String>>>,
}

impl Readiness {
    /// With no reason against it.
    pub fn new() -> Self {
        Self {
            reasons: Arc::new(watch::Sender::new(BTreeMap::new())),
        }
    }

    /// `component` is not ready because of `reason`; a later reason of the same component replaces it.
    pub fn set_not_ready(&self, component: &'static str, reason: impl Into<String>) {
        let reason = reason.into();
        self.reasons.send_if_modified(|reasons| {
            reasons.get(component) != Some(&reason) && {
                reasons.insert(component, reason);
                true
            }
        });
    }

    /// `component` is ready.
    pub fn set_ready(&self, component: &'static str) {
        self.reasons
            .send_if_modified(|reasons| reasons.remove(component).is_some());
    }

    /// Not ready for good once `stop` is cancelled; the token that comes back is cancelled after that, so that whoever sends traffic can
    /// know before it is refused. Must be called inside a tokio runtime.
    pub fn down_after(&self, stop: CancellationToken) -> CancellationToken {
        let (readiness, down) = (self.clone(), CancellationToken::new());
        let told = down.clone();
        tokio::spawn(async move {
            stop.cancelled().await;
            readiness.set_not_ready("process", "shutting down");
            told.cancel();
        });
        down
    }

    /// Whether every component is ready.
    pub fn is_ready(&self) -> bool {
        self.reasons.borrow().is_empty()
    }

    /// The components that are not ready, and why.
    pub fn reasons(&self) -> Vec<(&'static str, String)> {
        self.reasons
            .borrow()
            .iter()
            .map(|(component, reason)| (*component, reason.clone()))
            .collect()
    }

    /// Returns once every component is ready.
    pub async fn wait_until_ready(&self) {
        let mut changes = self.reasons.subscribe();
        // The sender is alive: `self` holds it.
        let _ = changes.wait_for(BTreeMap::is_empty).await;
    }
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_that_ends_is_not_ready_before_anything_else_happens() {
        let (readiness, stop) = (Readiness::new(), CancellationToken::new());
        let down = readiness.down_after(stop.clone());
        assert!(readiness.is_ready() && !down.is_cancelled());
        stop.cancel();
        down.cancelled().await;
        assert_eq!(
            readiness.reasons(),
            [("process", "shutting down".to_owned())]
        );
    }

    #[tokio::test]
    async fn ready_means_that_no_component_objects() {
        let readiness = Readiness::new();
        assert!(readiness.is_ready());
        readiness.set_not_ready("engine", "loading weights");
        readiness.set_not_ready("store", "replaying");
        readiness.set_not_ready("engine", "warming up");
        readiness.set_ready("store");
        assert_eq!(readiness.reasons(), [("engine", "warming up".to_owned())]);

        let waiter = tokio::spawn({
            let readiness = readiness.clone();
            async move { readiness.wait_until_ready().await }
        });
        readiness.set_ready("engine");
        waiter.await.unwrap();
        assert!(readiness.is_ready());
    }
}
