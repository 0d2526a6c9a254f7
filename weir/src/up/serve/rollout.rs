//! Which versions serve: what the rollouts are asked with, and what they answer, by the names of objects.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use weir_api::model_version::{Stage, reasons};
use weir_api::{ANNOTATION_REQUEST, ModelVersion};
use weir_gateway::WorkerView;
use weir_rollout::decide::{Verification, VersionSpec, VersionStatus};
use weir_rollout::{Record, VersionId, version_spec};

use super::{Placed, Serving, Stable};
use crate::up::catalog::Entry;
use crate::up::problem::Problem;
use crate::up::rollouts::{Clock, ModelSeen, ReplicasSeen, Rollout};
use crate::up::supervisor::WorkerState;
use weir_operator::request;

/// What all models are decided with.
pub(super) struct Look {
    /// The object of each digest.
    pub(super) names: BTreeMap<String, String>,
    /// Workers as the gateway sees them.
    pub(super) workers: Vec<WorkerView>,
}

impl Serving {
    /// Decides for every model. What cannot be decided stays as it was.
    pub(super) fn decide(&mut self, problems: &mut Vec<Problem>) {
        self.note_refusals(problems);
        let wall_ms = u64::try_from(jiff::Timestamp::now().as_millisecond()).unwrap_or(0);
        let clock = Clock {
            now: Instant::now(),
            wall_ms,
        };
        let look = Look {
            names: self.names(),
            workers: self.gateway.workers(),
        };
        let names = &look.names;
        let mut wanted = BTreeMap::new();
        let mut stable = BTreeMap::new();
        for model in self.models() {
            let seen = self.model_seen(&model, &look);
            self.hand_over_requests(&model, problems);
            if let Err(error) =
                self.rollouts
                    .step(&model, &seen, Some(&self.gateway.evidence(&model)), clock)
            {
                problems.push(Problem::in_file(
                    &self.dir,
                    format!("cannot write down what was decided for {model:?}: {error}; nothing changes until it can be: make room, or use another --data"),
                ));
            }
            let Some(rollout) = self.rollouts.of(&model) else {
                continue;
            };
            problems.extend(rollout.damaged().iter().map(|damaged| {
                Problem::in_file(
                    &self.dir,
                    format!("a rollout record cannot be read and was set aside: {damaged}"),
                )
            }));
            self.report.rollout(&model, rollout.notes());
            let notes = rollout
                .notes()
                .iter()
                .map(|note| (model.clone(), note.clone()));
            self.notes.extend(notes);
            let is_retired = self.is_retired(rollout, names);
            for (id, replicas) in rollout.desired().iter().filter(|_| !is_retired) {
                wanted.extend(names.get(&id.digest).map(|name| (name.clone(), *replicas)));
            }
            let serves = rollout
                .table()
                .filter(|_| !is_retired)
                .map(|table| &table.stable);
            if let Some(id) = serves
                && let Some(name) = names.get(&id.digest)
            {
                let name = name.clone();
                stable.insert(
                    model,
                    Stable {
                        name,
                        version: id.version,
                    },
                );
            }
        }
        self.kept = self.keep_bases(&mut wanted, &look.names);
        self.wanted = wanted;
        self.stable = stable;
    }

    /// What the rollout says about a version, and all that it remembers.
    pub fn rollout_status(&self, entry: &Entry<ModelVersion>) -> Option<(&VersionStatus, &Record)> {
        let rollout = self.rollouts.of(&entry.valid.model)?;
        let id = VersionId::new(entry.valid.version, self.digest(entry));
        let status = rollout.status().iter().find(|status| status.id == id)?;
        Some((status, rollout.head()?))
    }

    fn models(&self) -> BTreeSet<String> {
        let written = self
            .catalog
            .versions
            .values()
            .map(|entry| &entry.valid.model);
        let placed = self.placed.values().map(|placed| &placed.entry.valid.model);
        written.chain(placed).cloned().collect()
    }

    /// The object of each digest. What has workers comes first: it is what serves.
    fn names(&self) -> BTreeMap<String, String> {
        let mut names = BTreeMap::new();
        for entry in self.catalog.versions.values() {
            names
                .entry(self.digest(entry))
                .or_insert_with(|| entry.valid.name.clone());
        }
        for (name, placed) in &self.placed {
            names.insert(placed.verified.digest.clone(), name.clone());
        }
        names
    }

    /// A version's digest: of what was verified, else of what the object claims.
    pub(super) fn digest(&self, entry: &Entry<ModelVersion>) -> String {
        if let Some(Ok(verified)) = self.verdicts.get(&entry.valid.name) {
            return verified.digest.clone();
        }
        let files = &entry.valid.manifest.files;
        let manifest = files
            .iter()
            .find(|file| file.path == weir_manifest::MANIFEST_FILE);
        manifest.map_or_else(String::new, |file| {
            weir_manifest::Digest::from_bytes(file.sha256).to_string()
        })
    }

    fn model_seen(&self, model: &str, look: &Look) -> ModelSeen {
        let of_model = |entry: &&Entry<ModelVersion>| entry.valid.model == model;
        let entries: Vec<_> = self.catalog.versions.values().filter(of_model).collect();
        let specs: Vec<VersionSpec> = entries.iter().map(|entry| self.spec(entry)).collect();
        let placed = || {
            self.placed
                .values()
                .filter(|placed| placed.entry.valid.model == model)
        };
        let pool = entries
            .iter()
            .max_by_key(|entry| entry.valid.version)
            .map(|entry| entry.valid.pool.clone())
            .or_else(|| placed().next().map(|placed| placed.pool.name.clone()))
            .unwrap_or_default();
        let replicas = self
            .catalog
            .pools
            .get(&pool)
            .map(|pool| pool.valid.min_replicas);
        let replicas = replicas.or_else(|| placed().next().map(|placed| placed.pool.min_replicas));
        ModelSeen {
            shadow: self.gateway.shadow(model),
            specs,
            pool,
            wanted: replicas.unwrap_or(1).max(1),
            replicas: placed()
                .filter_map(|placed| self.replicas(placed, look))
                .collect(),
            acknowledged: self.gateway.acknowledged(model),
        }
    }

    fn spec(&self, entry: &Entry<ModelVersion>) -> VersionSpec {
        let name = &entry.valid.name;
        let verification = match self.verdicts.get(name) {
            Some(Ok(_)) if self.refused.contains_key(name) => {
                Verification::Refused(reasons::START_FAILED.to_owned())
            }
            Some(Ok(_))
                if self
                    .misplaced(entry)
                    .or_else(|| self.unservable(entry))
                    .is_some() =>
            {
                Verification::Pending
            }
            Some(Ok(_)) if self.catalog.pools.contains_key(&entry.valid.pool) => {
                Verification::Verified
            }
            Some(Err(unverified)) if !unverified.may_pass() => {
                Verification::Refused(unverified.reason.clone())
            }
            _ => Verification::Pending,
        };
        let digest = self.digest(entry);
        version_spec(&entry.object, &entry.valid, &digest, verification)
    }

    fn replicas(&self, placed: &Placed, look: &Look) -> Option<(VersionId, ReplicasSeen)> {
        let digest = &placed.verified.digest;
        let name = look.names.get(digest)?;
        let id = VersionId::new(placed.entry.valid.version, digest.clone());
        if let Some(base) = placed.verified.adapter_of() {
            return Some((id, self.adapter_replicas((name, digest), &base, look)));
        }
        if self.kept.contains(name) {
            // They are there for adapters, and none of the rollout's business.
            return None;
        }
        let mut seen = ReplicasSeen::default();
        let mut failures = Vec::new();
        for (worker_name, worker) in self
            .workers
            .iter()
            .filter(|(_, worker)| worker.version == *name)
        {
            seen.existing += 1;
            failures.push(match worker.state() {
                WorkerState::Backoff { crashes, .. } => crashes,
                _ => 0,
            });
            if let Some(view) = look.workers.iter().find(|view| view.name == *worker_name) {
                let is_ready = view.connected && !view.draining && view.digests.contains(digest);
                seen.ready += u32::from(is_ready);
                seen.live_runs += u64::from(view.in_flight);
            }
        }
        seen.exits = self.exits.get(name).copied().unwrap_or(0);
        seen.start_failures = failures.into_iter().min().unwrap_or(0);
        Some((id, seen))
    }

    /// Whether a person asked that the model be served no more: what serves is retired, and there is nothing else.
    fn is_retired(&self, rollout: &Rollout, names: &BTreeMap<String, String>) -> bool {
        let Some(head) = rollout.head().filter(|head| head.attempt.is_none()) else {
            return false;
        };
        let stable = head.stable.as_ref().and_then(|id| names.get(&id.digest));
        let entry = stable.and_then(|name| self.catalog.versions.get(name));
        entry.is_some_and(|entry| entry.valid.stage == Stage::Retired)
    }

    /// What people ask for in an annotation of any of the model's versions.
    fn hand_over_requests(&mut self, model: &str, problems: &mut Vec<Problem>) {
        for entry in self
            .catalog
            .versions
            .values()
            .filter(|entry| entry.valid.model == model)
        {
            let annotation = &entry.source.value["metadata"]["annotations"][ANNOTATION_REQUEST];
            let Some(text) = annotation.as_str() else {
                continue;
            };
            match request(text, entry.valid.version) {
                Ok(request) => {
                    self.rollouts.ask(model, request);
                }
                Err(message) => problems.push(entry.source.problem(
                    &format!("metadata.annotations[{ANNOTATION_REQUEST:?}]"),
                    message,
                )),
            }
        }
    }
}
