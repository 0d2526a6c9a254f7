//! From an API key to a tenant. Keys are known only by their hashes.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use http::header::AUTHORIZATION;
use parking_lot::Mutex;
use weir_manifest::{ApiKeyHash, ApiKeyIndex};
use weir_protocol::error::ErrorCode;

use crate::clock::{now_ms, random_u128};
use crate::error::{ApiError, ApiResult};
use crate::snapshot::Tenant;

/// Longest key that is looked at.
const MAX_KEY_BYTES: usize = 512;
/// Presented keys remembered, known and unknown ones alike; reaching it forgets them all, which costs one lookup each.
const CACHE_ENTRIES: usize = 8192;

/// Keys of all tenants. It lives as long as its snapshot, so that a revoked key is forgotten with it.
pub(crate) struct Keys {
    tenants: Vec<Arc<Tenant>>,
    index: ApiKeyIndex<Owner>,
    cache: Mutex<HashMap<[u8; 32], Option<Owner>>>,
}

#[derive(Clone, Copy)]
struct Owner {
    tenant: usize,
    not_after_ms: Option<u64>,
}

impl Keys {
    pub(crate) fn new(tenants: Vec<Tenant>) -> Self {
        let mut index = ApiKeyIndex::default();
        for (tenant, spec) in tenants.iter().enumerate() {
            for key in &spec.keys {
                match key.hash.parse::<ApiKeyHash>() {
                    Ok(hash) => index.insert(
                        hash,
                        Owner {
                            tenant,
                            not_after_ms: key.not_after_ms,
                        },
                    ),
                    Err(error) => {
                        tracing::error!(tenant = spec.name, key = key.name, %error, "ignoring a key");
                    }
                }
            }
        }
        Self {
            tenants: tenants.into_iter().map(Arc::new).collect(),
            index,
            cache: Mutex::default(),
        }
    }

    /// A tenant by its name.
    pub(crate) fn tenant(&self, name: &str) -> Option<Arc<Tenant>> {
        self.tenants
            .iter()
            .find(|tenant| tenant.name == name)
            .cloned()
    }

    /// All tenants.
    pub(crate) fn tenants(&self) -> &[Arc<Tenant>] {
        &self.tenants
    }

    /// The tenant whose key a request presents.
    pub(crate) fn authenticate(&self, headers: &HeaderMap) -> ApiResult<Arc<Tenant>> {
        let unauthenticated = |message: &str| ApiError::new(ErrorCode::Unauthenticated, message);
        let key = bearer(headers).ok_or_else(|| {
            unauthenticated("no API key: send the header \"Authorization: Bearer KEY\"")
        })?;
        match self.find(key) {
            Some(owner) if owner.not_after_ms.is_none_or(|end| now_ms() < end) => {
                Ok(Arc::clone(&self.tenants[owner.tenant]))
            }
            Some(_) => Err(unauthenticated(
                "this API key has expired; ask for a new one",
            )),
            None => Err(unauthenticated("this API key is not known here; check it")),
        }
    }

    fn find(&self, key: &str) -> Option<Owner> {
        let digest = cache_key(key);
        if let Some(known) = self.cache.lock().get(&digest) {
            return *known;
        }
        let found = self.index.find(key).copied();
        let mut cache = self.cache.lock();
        if cache.len() >= CACHE_ENTRIES {
            cache.clear();
        }
        cache.insert(digest, found);
        found
    }
}

/// The key of `Authorization: Bearer KEY`; the scheme in any case, the key as it is.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = std::str::from_utf8(headers.get(AUTHORIZATION)?.as_bytes()).ok()?;
    let (scheme, key) = value.split_at_checked(7)?;
    (scheme.eq_ignore_ascii_case("bearer ") && !key.is_empty() && key.len() <= MAX_KEY_BYTES)
        .then_some(key)
}

/// Keyed by this process: what the cache holds is of no use outside it, and nobody can aim for its buckets.
fn cache_key(key: &str) -> [u8; 32] {
    static SECRET: OnceLock<[u8; 32]> = OnceLock::new();
    let secret = SECRET.get_or_init(|| {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&random_u128().to_le_bytes());
        bytes[16..].copy_from_slice(&random_u128().to_le_bytes());
        bytes
    });
    blake3::keyed_hash(secret, key.as_bytes()).into()
}
