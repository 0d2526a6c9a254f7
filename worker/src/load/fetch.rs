//! The files of a version that is elsewhere: into the cache of this node, before they are verified and loaded.
//!
//! What does not come is tried again for ever, since people mend it from outside: they upload a file, or correct a Secret. Whoever asks on
//! the admin port is told how far it is, and why it does not go on.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use weir_fetch::{Cache, FetchError, Fetched, Fetcher, Lease, Meter, Request, Settings, Signature};
use weir_manifest::{Digest, SIGNATURE_FILE, TrustPolicy, check_claim};

use super::{LoadError, LoadPlan, PlanFetch, PlanSignature};
use crate::announce::Announcer;

/// From a failure to the next attempt; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_secs(5);
/// At most: a Secret that was corrected is mounted anew within a minute or two.
const LONGEST_WAIT: Duration = Duration::from_mins(1);
/// How often the parent is told how far it is.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// How the files of the version come along, for whoever asks. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    meter: Meter,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
enum State {
    /// Nothing is fetched: they are mounted.
    #[default]
    Mounted,
    Coming,
    Here,
    Failed {
        reason: &'static str,
        message: String,
    },
}

impl Files {
    /// What it is, as JSON: `state`, bytes, and why it does not go on.
    pub(crate) fn page(&self) -> Value {
        let reading = self.0.meter.read();
        let (state, reason, message) = match &*self.0.state.lock() {
            State::Mounted => ("mounted", None, None),
            State::Coming => ("fetching", None, reading.trouble),
            State::Here => ("fetched", None, None),
            State::Failed { reason, message } => ("failed", Some(*reason), Some(message.clone())),
        };
        json!({
            "state": state, "doneBytes": reading.done, "totalBytes": reading.total,
            "receivedBytes": reading.received, "reason": reason, "message": message,
        })
    }

    fn set(&self, state: State) {
        *self.0.state.lock() = state;
    }
}

/// Brings the files of a plan that are elsewhere, and says in the plan where they are; what is returned keeps them there. Ends only with
/// them: dropping the future stops it, and keeps what came. Before each attempt, and at the end, it is read anew what `path` says of the
/// same version: another place, or that a key is revoked.
///
/// # Errors
/// The plan's trust policy or signature cannot be used.
pub(crate) async fn bring(
    plan: &mut LoadPlan,
    path: &Path,
    (files, announcer): (&Files, &Announcer),
) -> Result<Option<Lease>, LoadError> {
    let mut wait = FIRST_WAIT;
    loop {
        let Some(how) = plan.fetch.clone() else {
            return Ok(None);
        };
        let policy = TrustPolicy::new(plan.trust.clone()).map_err(LoadError::Policy)?;
        let bundle = plan.signature.decode();
        let bundle = bundle.map_err(LoadError::BundleMalformed)?;
        if matches!(plan.signature, PlanSignature::Bundle(_)) {
            // What nobody signed who may is not worth a byte.
            let checked = check_claim(&bundle, &policy, Timestamp::now(), &plan.claim);
            checked.map_err(LoadError::Refused)?;
        }
        files.set(State::Coming);
        tracing::info!(digest = %plan.digest, cache = %how.cache.display(), "fetching");
        let error = match once(plan, &how, &policy, (files, announcer)).await {
            Ok(Fetched { dir, lease }) => {
                let reading = files.0.meter.read();
                tracing::info!(
                    bytes = reading.total,
                    received = reading.received,
                    "fetched"
                );
                files.set(State::Here);
                renew(plan, path);
                plan.dir = dir;
                return Ok(Some(lease));
            }
            Err(error) => error,
        };
        let (reason, message) = (error.reason(), error.message());
        tracing::error!(reason, message, wait_s = wait.as_secs(), "cannot fetch");
        announcer.loading(&format!("cannot fetch: {message}"));
        files.set(State::Failed { reason, message });
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
        renew(plan, path);
    }
}

/// Takes what a plan says now, where it is still of the same version; a plan that is gone or broken changes nothing.
fn renew(plan: &mut LoadPlan, path: &Path) {
    if let Ok(now) = LoadPlan::read(path)
        && now.digest == plan.digest
    {
        *plan = now;
    }
}

fn cache(how: &PlanFetch) -> Result<Cache, FetchError> {
    let cache = Cache::open(&how.cache, how.cache_bytes)?;
    Ok(cache.leaving_free(how.free_percent.unwrap_or(0)))
}

/// After files were refused: throws away those that are not any more what they were when they came. Whoever starts next fetches them anew.
pub(crate) async fn mend(how: &PlanFetch, digest: &Digest) {
    let mended = match cache(how) {
        Ok(cache) => cache.mend(&Fetcher::name_of(digest)).await,
        Err(error) => Err(error),
    };
    if let Err(error) = mended {
        tracing::warn!(
            message = error.message(),
            "the cache could not be looked through"
        );
    }
}

async fn once(
    plan: &LoadPlan,
    how: &PlanFetch,
    policy: &TrustPolicy,
    (files, announcer): (&Files, &Announcer),
) -> Result<Fetched, FetchError> {
    let mut settings = Settings {
        bytes_per_second: how.bytes_per_second,
        ..Settings::default()
    }
    .with_env()?;
    settings.parallel = how.parallel.unwrap_or(settings.parallel);
    if let Some(folder) = &how.secret {
        settings = settings.with_folder(folder)?;
    }
    let fetcher = Fetcher::new(cache(how)?, settings)?;
    let accept = |bytes: &[u8]| {
        let checked = check_claim(bytes, policy, Timestamp::now(), &plan.claim);
        checked.map(drop).map_err(|error| error.condition_message())
    };
    let signature = match &plan.signature {
        PlanSignature::Bundle(_) => None,
        PlanSignature::File(name) if name.is_empty() => SIGNATURE_FILE.parse().ok(),
        PlanSignature::File(name) => name.parse().ok(),
    };
    let request = Request {
        uri: &how.uri,
        name: &Fetcher::name_of(&plan.digest),
        files: &plan.claim.files,
        signature: signature.map(|path| Signature {
            path,
            accept: &accept,
        }),
    };
    let mut work = std::pin::pin!(fetcher.fetch(&request, &files.0.meter));
    loop {
        if let Ok(ended) = tokio::time::timeout(SAY_EVERY, &mut work).await {
            return ended;
        }
        let reading = files.0.meter.read();
        announcer.fetching(reading.done, reading.total);
    }
}
