//! An issuer's keys: fetched when they are needed, kept while they are fresh, used a while longer when the issuer does not answer.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode, Uri};
use jsonwebtoken::jwk::{JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::time::Instant;

use super::identity::IssuerSpec;
use crate::fetch::{Fetch, FetchError};

/// After this long keys are fetched again, beside the requests that use the old ones.
const FRESH: Duration = Duration::from_mins(10);
/// After this long without an answer of the issuer its old keys are not used any more.
const STALE: Duration = Duration::from_hours(6);
/// Between two fetches, whatever tokens ask for: a key that is unknown now is unknown for as long.
const BETWEEN: Duration = Duration::from_secs(5);
/// How long a fetch may take, discovery included.
const WITHIN: Duration = Duration::from_secs(5);
/// Largest answer.
const MAX_BYTES: usize = 256 << 10;
/// Most keys.
const MAX_KEYS: usize = 64;

/// What a token's key is.
pub(super) enum Lookup {
    Found(Arc<DecodingKey>),
    Unknown,
    /// Nobody can say.
    Unavailable,
}

pub(super) struct Jwks(Arc<Inner>);

struct Inner {
    name: String,
    issuer: String,
    source: Source,
    fetch: Fetch,
    keys: Mutex<Keys>,
    fetching: tokio::sync::Mutex<()>,
}

enum Source {
    Discovery,
    Address(Uri),
    File(PathBuf),
}

/// Keys by their names, each with the one algorithm it is for, if it says so.
type ByKid = HashMap<String, Vec<(Option<Algorithm>, Arc<DecodingKey>)>>;

#[derive(Default)]
struct Keys {
    /// By their names; a key without one under the empty name.
    by_kid: ByKid,
    fetched: Option<Instant>,
    tried: Option<Instant>,
}

#[derive(Debug, thiserror::Error)]
enum KeysError {
    #[error("it did not answer in time")]
    Late,
    #[error("it cannot be reached")]
    Fetch(#[source] FetchError),
    #[error("it answered with status {0}")]
    Status(StatusCode),
    #[error("cannot read the file of its keys")]
    Read(#[source] std::io::Error),
    #[error("its answer makes no sense")]
    Json(#[source] serde_json::Error),
    #[error("its discovery document is another issuer's, or names an address that is not safe")]
    Discovery,
    #[error("it has {0} keys, at most {MAX_KEYS} are read")]
    TooMany(usize),
}

#[derive(Deserialize)]
struct Discovery {
    issuer: String,
    jwks_uri: String,
}

/// `https`, or `http` to this machine.
fn is_safe(uri: &Uri) -> bool {
    match uri.scheme_str() {
        Some("https") => true,
        Some("http") => matches!(uri.host(), Some("127.0.0.1" | "localhost" | "[::1]")),
        _ => false,
    }
}

fn address(text: &str) -> Result<Uri, String> {
    let uri: Uri = text
        .parse()
        .map_err(|error| format!("{text:?} is no address: {error}"))?;
    if is_safe(&uri) {
        Ok(uri)
    } else {
        Err(format!(
            "{text:?} must begin with https://; plain http is for this machine only"
        ))
    }
}

impl Jwks {
    pub(super) fn new(spec: &IssuerSpec) -> Result<Self, String> {
        let source = match &spec.jwks {
            None => {
                address(&spec.issuer)?;
                Source::Discovery
            }
            Some(text) if text.contains("://") => Source::Address(address(text)?),
            Some(path) => Source::File(PathBuf::from(path)),
        };
        let fetch = match &spec.ca_file {
            None => Fetch::system(),
            Some(path) => std::fs::read(path)
                .and_then(|pem| Fetch::with_ca(&pem))
                .map_err(|error| format!("cannot use caFile {}: {error}", path.display()))?,
        };
        Ok(Self(Arc::new(Inner {
            name: spec.name.clone(),
            issuer: spec.issuer.clone(),
            source,
            fetch,
            keys: Mutex::default(),
            fetching: tokio::sync::Mutex::default(),
        })))
    }

    /// The key that a token names. Fetches at most once, and not at all for what is known.
    pub(super) async fn find(&self, kid: Option<&str>, algorithm: Algorithm) -> Lookup {
        let inner = &self.0;
        if let Some(key) = inner.known(kid, algorithm) {
            if inner.age().is_none_or(|age| age > FRESH) {
                let inner = Arc::clone(inner);
                tokio::spawn(async move { inner.refresh().await });
            }
            return Lookup::Found(key);
        }
        inner.refresh().await;
        match (inner.known(kid, algorithm), inner.age()) {
            (Some(key), _) => Lookup::Found(key),
            (None, Some(_)) => Lookup::Unknown,
            (None, None) => Lookup::Unavailable,
        }
    }
}

impl Inner {
    fn age(&self) -> Option<Duration> {
        self.keys.lock().fetched.map(|at| at.elapsed())
    }

    fn known(&self, kid: Option<&str>, algorithm: Algorithm) -> Option<Arc<DecodingKey>> {
        let keys = self.keys.lock();
        if keys.fetched?.elapsed() > STALE {
            return None;
        }
        let fits = |(own, key): &&(Option<Algorithm>, Arc<DecodingKey>)| {
            key.family() == algorithm.family() && own.is_none_or(|own| own == algorithm)
        };
        if let Some(kid) = kid {
            let named = keys.by_kid.get(kid)?;
            return named.iter().find(fits).map(|(_, key)| Arc::clone(key));
        }
        // A token that names no key is good only where there is no choice.
        let mut all = keys.by_kid.values().flatten().filter(fits);
        let only = all.next()?;
        all.next().is_none().then(|| Arc::clone(&only.1))
    }

    /// One at a time, and not more often than `BETWEEN`; those who wait find what the one before them fetched.
    async fn refresh(&self) {
        let asked = Instant::now();
        let _one = self.fetching.lock().await;
        {
            let mut keys = self.keys.lock();
            let recent = keys
                .tried
                .is_some_and(|at| at >= asked || at.elapsed() < BETWEEN);
            if recent {
                return;
            }
            keys.tried = Some(Instant::now());
        }
        let fetched = tokio::time::timeout(WITHIN, self.fetch_keys()).await;
        match fetched.unwrap_or(Err(KeysError::Late)) {
            Ok(by_kid) => {
                let mut keys = self.keys.lock();
                keys.by_kid = by_kid;
                keys.fetched = Some(Instant::now());
            }
            Err(error) => tracing::warn!(
                issuer = self.name,
                error = &error as &dyn std::error::Error,
                "cannot fetch the issuer's keys; those it had count for 6 h"
            ),
        }
    }

    async fn fetch_keys(&self) -> Result<ByKid, KeysError> {
        let json = match &self.source {
            Source::File(path) => {
                let read = tokio::fs::read(path).await.map_err(KeysError::Read)?;
                bytes::Bytes::from(read)
            }
            Source::Address(uri) => self.get(uri.clone()).await?,
            Source::Discovery => {
                let at = format!(
                    "{}/.well-known/openid-configuration",
                    self.issuer.trim_end_matches('/')
                );
                let uri = at.parse().map_err(|_| KeysError::Discovery)?;
                let found: Discovery =
                    serde_json::from_slice(&self.get(uri).await?).map_err(KeysError::Json)?;
                let keys: Uri = found.jwks_uri.parse().map_err(|_| KeysError::Discovery)?;
                if found.issuer != self.issuer || !is_safe(&keys) {
                    return Err(KeysError::Discovery);
                }
                self.get(keys).await?
            }
        };
        let set: JwkSet = serde_json::from_slice(&json).map_err(KeysError::Json)?;
        if set.keys.len() > MAX_KEYS {
            return Err(KeysError::TooMany(set.keys.len()));
        }
        let mut by_kid: HashMap<_, Vec<_>> = HashMap::new();
        for jwk in set.keys {
            let signs = !matches!(jwk.common.public_key_use, Some(PublicKeyUse::Encryption));
            let Some(key) = DecodingKey::from_jwk(&jwk).ok().filter(|_| signs) else {
                continue;
            };
            // A key that says what it is for is for nothing else; for what we do not know, it is for nothing.
            let own = jwk
                .common
                .key_algorithm
                .map(|own| own.to_string().parse().ok());
            let algorithm: Option<Algorithm> = match own {
                None => None,
                Some(Some(known)) => Some(known),
                Some(None) => continue,
            };
            let kid = jwk.common.key_id.unwrap_or_default();
            by_kid
                .entry(kid)
                .or_default()
                .push((algorithm, Arc::new(key)));
        }
        Ok(by_kid)
    }

    async fn get(&self, uri: Uri) -> Result<bytes::Bytes, KeysError> {
        let sent = self
            .fetch
            .send(Request::get(uri), Vec::new(), MAX_BYTES)
            .await;
        let (status, body) = sent.map_err(KeysError::Fetch)?;
        if status == StatusCode::OK {
            Ok(body)
        } else {
            Err(KeysError::Status(status))
        }
    }
}
