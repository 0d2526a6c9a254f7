//! How far workers are with the files that they fetch: those that are not ready yet are asked on their admin ports.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::runtime::reflector::Store;
use parking_lot::Mutex;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use weir_api::model_version::{conditions, reasons};
use weir_api::{ANNOTATION_MODEL, LABEL_COMPONENT};
use weir_rollout::VersionId;

use crate::http::Http;
use crate::model::build::{ADMIN_PORT, CACHE};
use crate::names;
use crate::status::ConditionNow;
use crate::world::{Agenda, Key};

/// How often workers are asked.
const EVERY: Duration = Duration::from_secs(2);
/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(2);
/// Workers that are asked at the same time.
const AT_ONCE: usize = 32;
/// Parts that a version's bytes are told in: a status is not a meter.
const PARTS: u64 = 20;

/// What workers say of their files. Cloning shares it.
#[derive(Clone)]
pub struct Fetches(Arc<Inner>);

struct Inner {
    pods: Store<Pod>,
    agenda: Agenda,
    http: Http,
    heard: Mutex<BTreeMap<String, Files>>,
}

/// What one worker says: its page `/files`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Files {
    /// `fetching`, `fetched` or `failed`.
    pub state: String,
    /// Bytes that are there.
    pub done_bytes: u64,
    /// Bytes of all files.
    pub total_bytes: u64,
    /// The fetcher's word for why they do not come.
    #[serde(default)]
    pub reason: Option<String>,
    /// Why it does not go on.
    #[serde(default)]
    pub message: Option<String>,
}

/// How far the workers of one version are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// How many there are.
    pub workers: usize,
    /// How many have every file.
    pub have: usize,
    /// What those say that do not, by name.
    pub others: BTreeMap<String, Files>,
}

impl Fetches {
    /// Of the workers among `pods`.
    pub fn new(pods: Store<Pod>, agenda: Agenda) -> Self {
        Self(Arc::new(Inner {
            pods,
            agenda,
            http: Http::new(ANSWER, None),
            heard: Mutex::default(),
        }))
    }

    /// Asks until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => return,
            }
            self.ask().await;
        }
    }

    async fn ask(&self) {
        let pods = self.0.pods.state();
        let fetching = pods.iter().filter(|pod| fetches(pod) && !is_ready(pod));
        let mut questions = Vec::new();
        for pod in fetching {
            let address = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
            let model = pod.annotations().get(ANNOTATION_MODEL).cloned();
            if let Some((ip, model)) = address.zip(model) {
                let host = if ip.contains(':') {
                    format!("[{ip}]")
                } else {
                    ip
                };
                let url = format!("http://{host}:{ADMIN_PORT}/files");
                let (name, http) = (pod.name_any(), self.0.http.clone());
                questions.push(async move { (name, model, http.get_json::<Files>(&url).await) });
            }
        }
        let answers: Vec<_> = futures::stream::iter(questions)
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        let mut heard = self.0.heard.lock();
        let before = std::mem::take(&mut *heard);
        let mut changed = Vec::new();
        for (name, model, answer) in answers {
            let known = before.get(&name);
            // Who does not answer, because it starts or is busy, is where it was.
            let Some(files) = answer.ok().or_else(|| known.cloned()) else {
                continue;
            };
            if known.map(Files::told) != Some(files.told()) {
                changed.push(model);
            }
            heard.insert(name, files);
        }
        drop(heard);
        for model in changed {
            self.0.agenda.touch(Key::Model(model));
        }
    }

    /// How far a version's workers are; none where it has none that fetch.
    pub fn of(&self, model: &str, id: &VersionId) -> Option<Progress> {
        let heard = self.0.heard.lock();
        let mut progress = Progress::default();
        for pod in self.0.pods.state() {
            let is_of = names::version_of(&pod.metadata)
                .is_some_and(|(of, version)| of == model && version == *id);
            if !is_of || !fetches(&pod) {
                continue;
            }
            progress.workers += 1;
            let name = pod.name_any();
            let files = heard.get(&name).cloned().unwrap_or_default();
            if is_ready(&pod) || files.state == "fetched" {
                progress.have += 1;
            } else {
                progress.others.insert(name, files);
            }
        }
        (progress.workers > 0).then_some(progress)
    }
}

impl Files {
    fn parts(&self) -> u64 {
        (self.done_bytes.saturating_mul(PARTS))
            .checked_div(self.total_bytes)
            .unwrap_or(0)
    }

    /// What of it is news.
    fn told(&self) -> (String, u64, Option<String>) {
        (self.state.clone(), self.parts(), self.message.clone())
    }
}

impl Progress {
    /// Whether files come, and nobody can serve yet.
    pub fn is_under_way(&self) -> bool {
        let moves = |files: &Files| files.state == "fetching" && files.message.is_none();
        self.have == 0 && self.others.values().any(moves)
    }

    /// The condition `Fetched`.
    pub fn condition(&self) -> ConditionNow {
        let (workers, have) = (self.workers, self.have);
        let say = |holds, reason: &str, message: String| {
            ConditionNow::new(conditions::FETCHED, holds, reason, message)
        };
        let failed = self
            .others
            .iter()
            .find(|(_, files)| files.state == "failed");
        if let Some((name, files)) = failed {
            let reason = files
                .reason
                .as_deref()
                .unwrap_or(reasons::ARTIFACT_UNAVAILABLE);
            let why = files.message.as_deref().unwrap_or_default();
            let message = format!("{name} tries again: {why}");
            return say(false, reason, message);
        }
        let slowest = self.others.values().min_by_key(|files| files.parts());
        let Some(slowest) = slowest else {
            let message = format!("{have} of {workers} workers have every file");
            return say(true, reasons::IN_CACHE, message);
        };
        let (parts, total) = (slowest.parts(), slowest.total_bytes);
        if total == 0 {
            let message = format!("{have} of {workers} workers have every file; one has not begun");
            return say(false, reasons::FETCHING, message);
        }
        let done = total / PARTS * parts + total % PARTS * parts / PARTS;
        let percent = parts * 100 / PARTS;
        let mut message = format!(
            "{have} of {workers} workers have every file; the slowest has {done} of {total} bytes ({percent} %)"
        );
        if let Some(trouble) = &slowest.message {
            message = format!("{message}; trying again: {trouble}");
        }
        say(false, reasons::FETCHING, message)
    }
}

/// Whether a pod is a worker that fetches its files, and lives.
fn fetches(pod: &Pod) -> bool {
    let is_worker = pod.labels().get(LABEL_COMPONENT).map(String::as_str) == Some(names::WORKER);
    let mut volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    let is_over = matches!(phase, Some("Succeeded" | "Failed"));
    let is_leaving = pod.metadata.deletion_timestamp.is_some();
    is_worker && !is_over && !is_leaving && volumes.any(|volume| volume.name == CACHE)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let mut ready = conditions.filter(|condition| condition.type_ == "Ready");
    ready.any(|condition| condition.status == "True")
}

#[cfg(test)]
mod tests;
