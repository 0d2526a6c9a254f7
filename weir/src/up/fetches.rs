//! Artifacts that are elsewhere, on their way into the cache. Each is fetched by a task of its own; the loop only looks.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::task::JoinHandle;
use weir_api::model_version::{conditions, reasons};
use weir_api::{ModelVersion, SignatureSource};
use weir_fetch::{FetchError, Fetched, Fetcher, Lease, Meter, Reading, Request, Signature};
use weir_manifest::{
    Digest, SIGNATURE_FILE, TrustPolicy, TrustPolicySpec, VersionClaim, check_claim,
};
use weir_operator::model::claim::{claim, claimed_digest};
use weir_operator::status::ConditionNow;
use weir_worker::PlanSignature;

use super::catalog::Entry;
use super::verify::{Unverified, unverified};
use crate::cache::CacheArgs;

/// From a failure to the next attempt; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_secs(10);
/// At most.
const LONGEST_WAIT: Duration = Duration::from_mins(5);

/// All of them, by version.
pub struct Fetches {
    args: CacheArgs,
    fetcher: Option<Arc<Fetcher>>,
    by_version: BTreeMap<String, Fetch>,
}

/// One version's.
struct Fetch {
    /// What it rests on.
    basis: String,
    meter: Arc<Meter>,
    state: State,
    failures: u32,
}

enum State {
    Going(JoinHandle<Result<Fetched, FetchError>>),
    Done(PathBuf, Arc<Lease>),
    Failed {
        reason: String,
        message: String,
        at: Instant,
    },
}

impl Drop for Fetch {
    fn drop(&mut self) {
        if let State::Going(task) = &self.state {
            task.abort();
        }
    }
}

impl Fetches {
    /// Nothing yet. The cache is opened when the first artifact is needed.
    pub fn new(args: CacheArgs) -> Self {
        Self {
            args,
            fetcher: None,
            by_version: BTreeMap::new(),
        }
    }

    /// The folder with a version's files. Where they are not here, they are fetched.
    ///
    /// # Errors
    /// They are on their way, or do not come: why.
    pub fn artifact(
        &mut self,
        entry: &Entry<ModelVersion>,
        trust: &TrustPolicySpec,
    ) -> Result<(PathBuf, Arc<Lease>), Unverified> {
        let name = &entry.valid.name;
        let basis = basis(entry, trust);
        if self
            .by_version
            .get(name)
            .is_none_or(|fetch| fetch.basis != basis)
        {
            let fetch = self.begin(entry, trust, basis)?;
            self.by_version.insert(name.clone(), fetch);
        }
        let Some(fetch) = self.by_version.get_mut(name) else {
            return Err(unverified(reasons::FETCHING, "it is about to be fetched"));
        };
        fetch.look();
        if let State::Failed { at, .. } = &fetch.state
            && at.elapsed() >= wait(fetch.failures)
        {
            let (failures, basis) = (fetch.failures, fetch.basis.clone());
            let mut again = self.begin(entry, trust, basis)?;
            again.failures = failures;
            self.by_version.insert(name.clone(), again);
        }
        let uri = &entry.valid.manifest.artifact_uri;
        match self.by_version.get(name).map(|fetch| (&fetch.state, fetch)) {
            Some((State::Done(dir, lease), _)) => Ok((dir.clone(), Arc::clone(lease))),
            Some((State::Failed { message, .. }, fetch)) => {
                let wait = wait(fetch.failures).as_secs();
                Err(unverified(
                    reasons::ARTIFACT_UNAVAILABLE,
                    format!("{message}; it is tried again every {wait} s"),
                ))
            }
            Some((State::Going(_), fetch)) => Err(unverified(
                reasons::FETCHING,
                format!("{} from {uri}", fetch.meter.read()),
            )),
            None => Err(unverified(reasons::FETCHING, format!("from {uri}"))),
        }
    }

    /// After fetched files were refused: whether some are not any more what they were when they came. Those are fetched anew.
    pub async fn mend(&mut self, name: &str) -> bool {
        let Some(State::Done(dir, _)) = self.by_version.get(name).map(|fetch| &fetch.state) else {
            return false;
        };
        let kept = dir
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        let (Some(kept), Some(fetcher)) = (kept, &self.fetcher) else {
            return false;
        };
        let is_wrong = match fetcher.cache().mend(&kept).await {
            Ok(is_wrong) => is_wrong,
            Err(error) => {
                tracing::warn!(
                    name,
                    message = error.message(),
                    "the cache could not be looked through"
                );
                return false;
            }
        };
        if let Some(fetch) = self.by_version.get_mut(name).filter(|_| is_wrong) {
            // Not at once: a disk that keeps nothing would be written to without end.
            fetch.failures += 1;
            fetch.state = State::Failed {
                reason: reasons::ARTIFACT_UNAVAILABLE.to_owned(),
                message: "a file was damaged in the cache".to_owned(),
                at: Instant::now(),
            };
        }
        is_wrong
    }

    fn begin(
        &mut self,
        entry: &Entry<ModelVersion>,
        trust: &TrustPolicySpec,
        basis: String,
    ) -> Result<Fetch, Unverified> {
        let valid = &entry.valid;
        let claim = claim(valid).map_err(|message| unverified("PathInvalid", message))?;
        let policy = TrustPolicy::new(trust.clone())
            .map_err(|error| unverified("TrustPolicyInvalid", error.to_string()))?;
        let signature = match &valid.signature {
            SignatureSource::Bundle(text) => {
                // What nobody signed who may is not worth a byte.
                let bundle = PlanSignature::Bundle(text.clone()).decode();
                let bundle = bundle.map_err(|error| {
                    unverified(
                        reasons::SIGNATURE_INVALID,
                        format!("spec.signature.bundle is not base64: {error}"),
                    )
                })?;
                check_claim(&bundle, &policy, Timestamp::now(), &claim)
                    .map_err(|error| unverified(error.reason(), error.condition_message()))?;
                None
            }
            SignatureSource::File(file) if file.is_empty() => Some(SIGNATURE_FILE.to_owned()),
            SignatureSource::File(file) => Some(file.clone()),
        };
        let digest: Digest = claimed_digest(valid).parse().map_err(|_| {
            unverified(
                "ManifestMissing",
                "spec.manifest.files does not list weir-manifest.json",
            )
        })?;
        let fetcher = self.fetcher()?;
        let meter = Arc::new(Meter::default());
        let work = fetch(
            fetcher,
            (valid.manifest.artifact_uri.clone(), digest),
            (claim, policy, signature),
            Arc::clone(&meter),
        );
        Ok(Fetch {
            basis,
            meter,
            state: State::Going(tokio::spawn(work)),
            failures: 0,
        })
    }

    fn fetcher(&mut self) -> Result<Arc<Fetcher>, Unverified> {
        if let Some(fetcher) = &self.fetcher {
            return Ok(Arc::clone(fetcher));
        }
        let made = self
            .args
            .fetcher()
            .map_err(|error| unverified(reasons::ARTIFACT_UNAVAILABLE, format!("{error:#}")))?;
        let made = Arc::new(made);
        self.fetcher = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Stops fetching for versions whose objects are gone.
    pub fn retain(&mut self, exists: impl Fn(&str) -> bool) {
        self.by_version.retain(|name, _| exists(name));
    }

    /// How far each has come.
    pub fn readings(&self) -> BTreeMap<String, Reading> {
        self.by_version
            .iter()
            .map(|(name, fetch)| (name.clone(), fetch.meter.read()))
            .collect()
    }

    /// Of a version whose artifact is elsewhere: whether it is here.
    pub fn condition(&self, name: &str) -> Option<ConditionNow> {
        let fetch = self.by_version.get(name)?;
        let reading = fetch.meter.read();
        let say = |holds, reason: &str, message: String| {
            ConditionNow::new(conditions::FETCHED, holds, reason, message)
        };
        Some(match &fetch.state {
            State::Done(dir, _) => say(
                true,
                reasons::IN_CACHE,
                format!("{reading} in {}", dir.display()),
            ),
            State::Failed {
                reason, message, ..
            } => say(false, reason, message.clone()),
            State::Going(_) => say(false, reasons::FETCHING, reading.to_string()),
        })
    }
}

impl Fetch {
    /// Takes over what its task came to.
    fn look(&mut self) {
        use futures::FutureExt as _;
        let State::Going(task) = &mut self.state else {
            return;
        };
        let Some(ended) = task.now_or_never() else {
            return;
        };
        let failed = |reason: &str, message: String| State::Failed {
            reason: reason.to_owned(),
            message,
            at: Instant::now(),
        };
        self.state = match ended {
            Ok(Ok(Fetched { dir, lease })) => State::Done(dir, Arc::new(lease)),
            Ok(Err(error)) => failed(error.reason(), error.message()),
            Err(error) => failed("FetchFailed", error.to_string()),
        };
        if matches!(self.state, State::Failed { .. }) {
            self.failures += 1;
        }
    }
}

fn wait(failures: u32) -> Duration {
    FIRST_WAIT
        .saturating_mul(1 << failures.saturating_sub(1).min(8))
        .min(LONGEST_WAIT)
}

async fn fetch(
    fetcher: Arc<Fetcher>,
    (uri, digest): (String, Digest),
    (claim, policy, signature): (VersionClaim, TrustPolicy, Option<String>),
    meter: Arc<Meter>,
) -> Result<Fetched, FetchError> {
    let accept = |bytes: &[u8]| {
        let checked = check_claim(bytes, &policy, Timestamp::now(), &claim);
        checked.map(drop).map_err(|error| error.condition_message())
    };
    // The schema has proven that the name is one.
    let path = signature.and_then(|name| name.parse().ok());
    let request = Request {
        uri: &uri,
        name: &Fetcher::name_of(&digest),
        files: &claim.files,
        signature: path.map(|path| Signature {
            path,
            accept: &accept,
        }),
    };
    fetcher.fetch(&request, &meter).await
}

/// A fetch ends when these change.
fn basis(entry: &Entry<ModelVersion>, trust: &TrustPolicySpec) -> String {
    let valid = &entry.valid;
    let trust = serde_json::to_string(trust).unwrap_or_default();
    Digest::of(format!("{:?} {:?} {trust}", valid.manifest, valid.signature).as_bytes()).to_string()
}
