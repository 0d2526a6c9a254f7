//! The loop of `weir up`: look at the files, decide, act, say what changed. Nothing in it blocks for long.

mod adapters;
mod apply;
mod asked;
mod refusals;
mod rollout;
mod shared;
mod trust;

pub use asked::Asked;
pub use shared::impossible;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use weir_api::{ModelVersion, ValidGpuPool};
use weir_gateway::Gateway;
use weir_manifest::TrustPolicySpec;
use weir_rollout::decide::Note;
use weir_store::Store;

use super::catalog::{Catalog, Entry};
use super::fetches::Fetches;
use super::files::Directory;
use super::problem::Problem;
use super::report::Report;
use super::rollouts::Rollouts;
use super::supervisor::WorkerState;
use super::verify::{Verdict, Verified, Verifier};
use super::workers::Workers;

/// How often the files are looked at. Saving a file and seeing it in force should feel immediate; listing a directory costs microseconds.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Decisions that follow from the gateway's having taken a table need not wait for the next look.
const MAX_TURNS: u32 = 4;

/// Until the first `ready`, which a person waits for.
const LOOK_WHILE_STARTING: Duration = Duration::from_millis(20);

/// A version that serves or may serve, kept after its object is gone for as long as it serves.
#[derive(Clone)]
pub struct Placed {
    /// As last written.
    pub entry: Entry<ModelVersion>,
    /// As verified.
    pub verified: Verified,
    /// Its pool as last written.
    pub pool: ValidGpuPool,
}

/// The version that serves a model; a canary takes a part of its runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stable {
    /// Its object's name.
    pub name: String,
    /// Its number.
    pub version: u32,
}

/// What the loop holds.
pub struct Serving {
    /// Where the YAML files are.
    pub dir: PathBuf,
    /// The files.
    pub directory: Directory,
    /// The objects in force.
    pub catalog: Catalog,
    /// Artifacts that are elsewhere.
    pub fetches: Fetches,
    /// Verdicts on versions.
    pub verifier: Verifier,
    /// The newest verdicts, by version.
    pub verdicts: BTreeMap<String, Verdict>,
    /// What has workers.
    pub placed: BTreeMap<String, Placed>,
    /// How traffic moves between the versions of each model.
    pub rollouts: Rollouts,
    /// Workers that each version should have.
    pub wanted: BTreeMap<String, u32>,
    /// Versions that have workers only because adapters of them serve.
    pub kept: BTreeSet<String>,
    /// What serves each model.
    pub stable: BTreeMap<String, Stable>,
    /// Versions whose workers refused them; the digest of the plan they refused, and what the verdict rested on then.
    pub refused: BTreeMap<String, (String, String)>,
    /// The last trust policy that made sense.
    pub trust: TrustPolicySpec,
    /// The processes.
    pub workers: Workers,
    /// What clients talk to.
    pub gateway: Gateway,
    /// What the gateway stands on.
    pub store: Arc<dyn Store>,
    /// What people are told.
    pub report: Report,
    /// Crashes of each worker that the gateway was told of.
    pub deaths: BTreeMap<String, u32>,
    /// Exits of each version's workers that nobody asked for, ever.
    exits: BTreeMap<String, u32>,
    /// Grows with every change of the objects in force.
    revision: u64,
    /// What is wrong with the objects of this revision.
    object_problems: Vec<Problem>,
    applied: Option<apply::Basis>,
    /// What was decided in the last look, by model.
    notes: Vec<(String, Note)>,
    /// Requests that the next look answers.
    unanswered: Vec<Asked>,
}

impl Serving {
    /// Nothing read and nothing started yet.
    pub fn new(
        dir: PathBuf,
        (workers, rollouts, fetches): (Workers, Rollouts, Fetches),
        gateway: Gateway,
        store: Arc<dyn Store>,
        report: Report,
    ) -> Self {
        Self {
            dir,
            directory: Directory::default(),
            catalog: Catalog::default(),
            fetches,
            verifier: Verifier::default(),
            verdicts: BTreeMap::new(),
            placed: BTreeMap::new(),
            rollouts,
            wanted: BTreeMap::new(),
            kept: BTreeSet::new(),
            stable: BTreeMap::new(),
            refused: BTreeMap::new(),
            trust: TrustPolicySpec::default(),
            workers,
            gateway,
            store,
            report,
            deaths: BTreeMap::new(),
            exits: BTreeMap::new(),
            revision: 0,
            object_problems: Vec::new(),
            applied: None,
            notes: Vec::new(),
            unanswered: Vec::new(),
        }
    }

    /// Runs until `stop`; then the workers are still there, for the caller to stop.
    pub async fn run(
        mut self,
        mut changed: mpsc::Receiver<()>,
        mut asked: mpsc::Receiver<Asked>,
        stop: CancellationToken,
    ) -> Self {
        loop {
            self.step().await;
            self.answer();
            let pause = if self.report.is_ready() {
                LOOK_EVERY
            } else {
                LOOK_WHILE_STARTING
            };
            tokio::select! {
                () = stop.cancelled() => return self,
                _ = changed.recv() => {}
                Some(asked) = asked.recv() => self.take_up(asked),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One look and what follows from it. Idempotent: with nothing new it changes nothing.
    pub async fn step(&mut self) {
        let mut problems = self.read();
        self.read_trust(&mut problems);
        self.verify().await;
        problems.extend(self.unverified());
        self.notes.clear();
        for _ in 0..MAX_TURNS {
            self.decide(&mut problems);
            self.act(&mut problems);
            if !self.apply() {
                break;
            }
        }
        if self.stable.is_empty() && self.wanted.is_empty() && problems.is_empty() {
            let versions = self.catalog.versions.len();
            problems.push(Problem::in_file(
                &self.dir,
                format!("none of its {versions} ModelVersions is to serve: set `stage: Production` on one whose condition Verified is True (`weir get mv -o wide` shows why)"),
            ));
        }
        self.report_all(problems).await;
    }

    fn read(&mut self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let is_changed = self.directory.refresh(&self.dir).unwrap_or_else(|problem| {
            problems.push(problem);
            false
        });
        if is_changed || self.revision == 0 {
            self.revision += 1;
            self.object_problems = self
                .catalog
                .update(self.directory.objects(), Timestamp::now());
        }
        problems.extend(self.directory.problems().cloned());
        problems.extend(self.object_problems.iter().cloned());
        problems
    }

    /// Versions for which a request would find a worker.
    fn ready(&self) -> BTreeSet<String> {
        let is_served = |placed: &Placed| {
            self.gateway
                .is_served(&placed.entry.valid.pool, &placed.verified.digest)
        };
        self.placed
            .iter()
            .filter(|(_, placed)| is_served(placed))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Takes over what is new of the versions that have workers. What is not verified any more, or whose pool's object is gone,
    /// runs on as it was.
    fn note_placed(&mut self) {
        for (name, _) in self.wanted.iter().filter(|(_, replicas)| **replicas > 0) {
            if let (Some(entry), Some(Ok(verified))) =
                (self.catalog.versions.get(name), self.verdicts.get(name))
                && let Some(pool) = self.catalog.pools.get(&entry.valid.pool)
            {
                // A pool that cannot be as it is written now goes on as it was.
                let pool = match (impossible(&pool.valid), self.placed.get(name)) {
                    (None, _) => pool.valid.clone(),
                    (Some(_), Some(before)) => before.pool.clone(),
                    (Some(_), None) => continue,
                };
                let placed = Placed {
                    entry: entry.clone(),
                    verified: verified.clone(),
                    pool,
                };
                self.placed.insert(name.clone(), placed);
            }
        }
        let (wanted, workers) = (&self.wanted, &self.workers);
        self.placed.retain(|name, _| {
            let has_workers = workers.iter().any(|(_, worker)| worker.version == *name);
            has_workers || wanted.get(name).is_some_and(|replicas| *replicas > 0)
        });
        for placed in self.placed.values_mut() {
            // What is in memory serves on; but whoever loads it again (after a crash) asks who may sign now.
            placed.verified.plan.trust = self.trust.clone();
        }
    }

    fn act(&mut self, problems: &mut Vec<Problem>) {
        self.note_placed();
        let mut wanted = BTreeSet::new();
        let is_model = |(_, placed): &(&String, &Placed)| placed.verified.adapter_of().is_none();
        for (name, placed) in self.placed.iter().filter(is_model) {
            let replicas = self.wanted.get(name).copied().unwrap_or(0);
            let pool = (&placed.pool, self.places(&placed.pool.name));
            match self.workers.ensure(name, &placed.verified, pool, replicas) {
                Ok(names) => {
                    // Changed limits mean new processes: the old ones go when the new ones serve.
                    if !names.iter().all(|name| self.is_connected(name)) {
                        wanted.extend(names_of(&self.workers, name));
                    }
                    wanted.extend(names);
                }
                Err(error) => problems.push(
                    placed
                        .entry
                        .source
                        .problem("", format!("cannot start its workers: {error}")),
                ),
            }
        }
        self.workers.retain(&wanted);
        for gone in self.workers.sweep() {
            // A run that came to it too late need not wait for it to come back.
            self.gateway.worker_died(&gone);
        }
        if let Err(error) = self.workers.settle(self.expects_more()) {
            problems.push(self.cannot_write(&error));
        }
        self.adapt(problems);
        self.tell_deaths();
    }

    fn is_connected(&self, worker: &str) -> bool {
        self.gateway
            .workers()
            .iter()
            .any(|view| view.name == worker && view.connected)
    }

    /// Runs of a dead process need not wait for it.
    fn tell_deaths(&mut self) {
        let mut deaths = BTreeMap::new();
        for (name, worker) in self.workers.iter() {
            let crashes = match worker.state() {
                WorkerState::Backoff { crashes, .. } => crashes,
                WorkerState::Refused { .. } | WorkerState::Stopped => u32::MAX,
                _ => continue,
            };
            if self.deaths.get(name) != Some(&crashes) {
                self.gateway.worker_died(name);
                *self.exits.entry(worker.version.clone()).or_default() += 1;
            }
            deaths.insert(name.clone(), crashes);
        }
        self.deaths = deaths;
    }

    async fn report_all(&mut self, problems: Vec<Problem>) {
        let ready = self.ready();
        let objects = super::objects::objects(self, &ready).await;
        self.report.rollouts(self.rollouts.page());
        let at_ms = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0);
        for (model, rollout) in self.rollouts.all() {
            let evidence = self.gateway.evidence(model);
            self.report
                .course()
                .note(model, rollout.status(), &evidence, at_ms);
        }
        self.report.objects(objects);
        self.report.problems(problems);
        self.report.fetching(&self.fetches.readings());
        self.report.progress(
            self.workers
                .iter()
                .map(|(_, worker)| (worker.version.as_str(), worker.state())),
        );
        let is_ready = |stable: &Stable| ready.contains(&stable.name);
        self.report.serving(
            self.stable
                .iter()
                .filter(|(_, stable)| is_ready(stable))
                .map(|(model, stable)| (model.clone(), stable.version))
                .collect(),
        );
        self.report
            .readiness(!self.stable.is_empty() && self.stable.values().all(is_ready));
    }
}

fn names_of<'a>(workers: &'a Workers, version: &'a str) -> impl Iterator<Item = String> + 'a {
    workers
        .iter()
        .filter(move |(_, worker)| worker.version == version)
        .map(|(name, _)| name.clone())
}
