//! The set of links, kept equal to the snapshot's workers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLock;

use crate::core::Core;
use crate::link::{Command, Link, LinkHandle};
use crate::snapshot::WorkerEndpoint;

/// Links by worker.
#[derive(Default)]
pub(crate) struct Links {
    all: RwLock<Vec<Arc<LinkHandle>>>,
}

impl Links {
    /// Opens links to new workers and retires links to workers that are gone; a retired link ends after its last run.
    pub(crate) fn apply(&self, core: &Arc<Core>, endpoints: &[WorkerEndpoint]) {
        let mut all = self.all.write();
        all.retain(|link| {
            let stays = endpoints.contains(&link.endpoint);
            if !stays {
                link.retire();
            }
            stays
        });
        for endpoint in endpoints {
            if all.iter().any(|link| link.endpoint == *endpoint) {
                continue;
            }
            let (handle, commands) = LinkHandle::new(endpoint.clone());
            all.push(Arc::clone(&handle));
            tokio::spawn(Link::new(Arc::clone(core), handle, commands).run());
        }
    }

    /// The link with the least work that can take a run of this version now.
    pub(crate) fn best(&self, pool: &str, digest: &str) -> Option<Arc<LinkHandle>> {
        self.all
            .read()
            .iter()
            .filter(|link| link.endpoint.pool == pool && link.has_capacity() && link.serves(digest))
            .min_by_key(|link| link.in_flight_tokens.load(Ordering::Acquire))
            .cloned()
    }

    /// Whether any worker serves this version, busy or not.
    pub(crate) fn any(&self, pool: &str, digest: &str) -> bool {
        self.all
            .read()
            .iter()
            .any(|link| link.endpoint.pool == pool && link.serves(digest))
    }

    /// KV positions of a pool's connected workers.
    pub(crate) fn kv_tokens(&self, pool: &str) -> u64 {
        self.all
            .read()
            .iter()
            .filter(|link| link.endpoint.pool == pool && link.connected.load(Ordering::Acquire))
            .map(|link| link.kv_tokens())
            .sum()
    }

    /// Whether there are workers and every one has had its say on the runs it holds.
    pub(crate) fn all_welcomed(&self) -> bool {
        let all = self.all.read();
        !all.is_empty() && all.iter().all(|link| link.welcomed.load(Ordering::Acquire))
    }

    pub(crate) fn died(&self, worker: &str) {
        for link in &*self.all.read() {
            if link.endpoint.name == worker {
                link.send(Command::Died).ok();
            }
        }
    }

    pub(crate) fn handles(&self) -> Vec<Arc<LinkHandle>> {
        self.all.read().clone()
    }
}
