//! API keys, known only by their hashes.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use weir_manifest::{ApiKeyHash, ApiKeyIndex};
use weir_protocol::error::ErrorCode;

use super::used::{KeyUse, Used};
use crate::clock::{now_ms, random_u128};
use crate::error::{ApiError, ApiResult};
use crate::snapshot::Tenant;

/// Presented keys remembered, known and unknown ones alike; reaching it forgets them all, which costs one lookup each.
const CACHE_ENTRIES: usize = 8192;

/// Keys of all tenants. It lives as long as its snapshot, so that a revoked key is forgotten with it.
pub(crate) struct Keys {
    tenants: HashMap<String, Arc<Tenant>>,
    index: ApiKeyIndex<Owner>,
    cache: Mutex<HashMap<[u8; 32], Option<Owner>>>,
}

/// Whose a key is: the tenant as this key may be it.
#[derive(Clone)]
struct Owner {
    tenant: Arc<Tenant>,
    not_before_ms: Option<u64>,
    not_after_ms: Option<u64>,
    used: Arc<Used>,
}

impl Keys {
    /// `uses` notes when they are used.
    pub(crate) fn new(tenants: Vec<Tenant>, uses: &KeyUse) -> Self {
        let mut index = ApiKeyIndex::default();
        for tenant in &tenants {
            for key in &tenant.keys {
                match key.hash.parse::<ApiKeyHash>() {
                    Ok(hash) => index.insert(
                        hash,
                        Owner {
                            tenant: Arc::new(tenant.as_key(key)),
                            not_before_ms: key.not_before_ms,
                            not_after_ms: key.not_after_ms,
                            used: uses.of(&tenant.name, &key.name),
                        },
                    ),
                    Err(error) => {
                        tracing::error!(tenant = tenant.name, key = key.name, %error, "ignoring a key");
                    }
                }
            }
        }
        Self {
            tenants: tenants
                .into_iter()
                .map(|tenant| (tenant.name.clone(), Arc::new(tenant)))
                .collect(),
            index,
            cache: Mutex::default(),
        }
    }

    /// A tenant by its name, for callers that others vouch for.
    pub(crate) fn tenant(&self, name: &str) -> Option<Arc<Tenant>> {
        self.tenants.get(name).cloned()
    }

    /// All tenants.
    pub(crate) fn tenants(&self) -> Vec<Arc<Tenant>> {
        self.tenants.values().cloned().collect()
    }

    /// The tenant whose key this is. `None`: it is no key of anybody.
    pub(crate) fn find(&self, key: &str) -> ApiResult<Option<Arc<Tenant>>> {
        let Some(owner) = self.owner(key) else {
            return Ok(None);
        };
        let refused = |message: &str| Err(ApiError::new(ErrorCode::Unauthenticated, message));
        let now = now_ms();
        if owner.not_after_ms.is_some_and(|end| end <= now) {
            return refused("this API key has expired; ask for a new one");
        }
        if owner.not_before_ms.is_some_and(|begin| now < begin) {
            return refused("this API key is not in force yet; use the one before it");
        }
        owner.used.note(now);
        Ok(Some(owner.tenant))
    }

    fn owner(&self, key: &str) -> Option<Owner> {
        let digest = digest(key);
        if let Some(known) = self.cache.lock().get(&digest) {
            return known.clone();
        }
        let found = self.index.find(key).cloned();
        let mut cache = self.cache.lock();
        if cache.len() >= CACHE_ENTRIES {
            cache.clear();
        }
        cache.insert(digest, found.clone());
        found
    }
}

/// Keyed by this process: what a cache holds is of no use outside it, and nobody can aim for its buckets.
pub(crate) fn digest(token: &str) -> [u8; 32] {
    static SECRET: OnceLock<[u8; 32]> = OnceLock::new();
    let secret = SECRET.get_or_init(|| {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&random_u128().to_le_bytes());
        bytes[16..].copy_from_slice(&random_u128().to_le_bytes());
        bytes
    });
    blake3::keyed_hash(secret, token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::snapshot::ApiKey;

    /// `cargo test -p weir-gateway ten_thousand_keys -- --nocapture` prints the figures.
    #[test]
    fn a_key_is_found_among_ten_thousand_as_fast_as_among_ten() {
        let site = |count: usize| {
            let made: Vec<String> = (0..count)
                .map(|_| weir_manifest::generate_api_key().unwrap().to_string())
                .collect();
            let key = |(place, key): (usize, &String)| ApiKey {
                name: format!("k{place}"),
                hash: ApiKeyHash::of(key).unwrap().to_string(),
                ..ApiKey::default()
            };
            let tenant = Tenant {
                name: "acme".to_owned(),
                keys: made.iter().enumerate().map(key).collect(),
                ..Tenant::default()
            };
            (Keys::new(vec![tenant], &KeyUse::default()), made)
        };
        let time = |keys: &Keys, asked: &[String], known: bool| {
            let begun = Instant::now();
            for key in asked {
                assert_eq!(keys.index.find(key).is_some(), known);
            }
            begun.elapsed().as_secs_f64() * 1e9 / asked.len() as f64
        };
        let (few, few_keys) = site(10);
        let (many, many_keys) = site(10_000);
        let (_, strangers) = site(1000);
        let chosen: Vec<String> = (0..1000).map(|n| format!("guess-{n}")).collect();
        let (of_few, of_many) = (time(&few, &few_keys, true), time(&many, &many_keys, true));
        let (unknown, guessed) = (time(&many, &strangers, false), time(&many, &chosen, false));
        println!(
            "ns a lookup: {of_few:.0} among 10, {of_many:.0} among 10,000, {unknown:.0} for an unknown key, {guessed:.0} for a guess"
        );
        // A linear search would take hundreds of times as long.
        assert!(
            of_many < 20.0 * of_few.max(2000.0),
            "{of_many} against {of_few}"
        );
        assert!(
            guessed < 20.0 * of_few.max(2000.0),
            "{guessed} against {of_few}"
        );
    }
}
