//! When keys were last used: noted in memory, written in batches, never by a request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use weir_store::{Expect, ObjectRange, ObjectWrite, Store, StoreError};

/// Where the times are kept: owner is the tenant, name the key's.
const SPACE: &str = "key-use";
/// Uses of a key within this time are one.
const GRAIN_MS: u64 = 1000;
/// Keys in one commit.
const AT_ONCE: usize = 256;
/// Keys of a tenant that are read: more than a quota can name.
const MOST_KEYS: usize = 1024;

/// The last use of every key in force.
#[derive(Default)]
pub(crate) struct KeyUse(Mutex<BTreeMap<(String, String), Arc<Used>>>);

/// The last use of one key by this gateway, in milliseconds since the Unix epoch; 0 is never.
#[derive(Default)]
pub(crate) struct Used {
    at_ms: AtomicU64,
    written_ms: AtomicU64,
}

impl Used {
    /// Notes a use. Cheap enough for every request: mostly one load.
    pub(crate) fn note(&self, now_ms: u64) {
        if now_ms >= self.at_ms.load(Ordering::Relaxed) + GRAIN_MS {
            self.at_ms.fetch_max(now_ms, Ordering::Relaxed);
        }
    }
}

impl KeyUse {
    /// What notes the uses of a key.
    pub(crate) fn of(&self, tenant: &str, key: &str) -> Arc<Used> {
        let mut keys = self.0.lock();
        let entry = keys.entry((tenant.to_owned(), key.to_owned()));
        Arc::clone(entry.or_default())
    }

    /// Writes what is new. Keys that are in no snapshot any more are forgotten here; the store still knows them.
    ///
    /// # Errors
    /// The store does not answer: the next call tries again.
    pub(crate) async fn write(&self, store: &dyn Store) -> Result<(), StoreError> {
        let fresh: Vec<((String, String), Arc<Used>, u64)> = {
            let mut keys = self.0.lock();
            let is_fresh = |used: &Used| {
                used.at_ms.load(Ordering::Relaxed) > used.written_ms.load(Ordering::Relaxed)
            };
            keys.retain(|_, used| Arc::strong_count(used) > 1 || is_fresh(used));
            let fresh = keys.iter().filter(|(_, used)| is_fresh(used));
            fresh
                .map(|(key, used)| {
                    let at = used.at_ms.load(Ordering::Relaxed);
                    (key.clone(), Arc::clone(used), at)
                })
                .collect()
        };
        for some in fresh.chunks(AT_ONCE) {
            let writes = some.iter().map(|((tenant, key), _, at)| ObjectWrite {
                space: SPACE,
                owner: tenant.clone(),
                name: key.clone(),
                // Of several gateways the last one counts: they differ by less than the time between two writes.
                expect: Expect::Any,
                data: Some(Bytes::copy_from_slice(&at.to_le_bytes())),
            });
            store.write_objects(writes.collect()).await?;
            for (_, used, at) in some {
                used.written_ms.store(*at, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// When the keys of a tenant were last used, by name, as far as the store and this gateway know.
    pub(crate) async fn last(
        &self,
        store: &dyn Store,
        tenant: &str,
    ) -> Result<BTreeMap<String, u64>, StoreError> {
        let range = ObjectRange {
            space: SPACE,
            owner: tenant.to_owned(),
            after: String::new(),
            before: None,
            descending: false,
            limit: MOST_KEYS,
        };
        let mut last = BTreeMap::new();
        for object in store.objects(range).await? {
            if let Ok(bytes) = <[u8; 8]>::try_from(object.data.as_ref()) {
                last.insert(object.name, u64::from_le_bytes(bytes));
            }
        }
        for ((owner, key), used) in &*self.0.lock() {
            let at = used.at_ms.load(Ordering::Relaxed);
            if owner == tenant && at > 0 {
                let known = last.entry(key.clone()).or_default();
                *known = at.max(*known);
            }
        }
        Ok(last)
    }
}
