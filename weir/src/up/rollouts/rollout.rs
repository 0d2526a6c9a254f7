//! One model's rollout: looks, decides, carries out.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use weir_rollout::decide::{
    Decision, Effect, GatewayView, Lease, Note, Observation, Request, Seen, VersionSpec,
    VersionStatus, Withdrawn,
};
use weir_rollout::evidence::{Ledger, Snapshot};
use weir_rollout::report::ShadowReport;
use weir_rollout::routing::{Table, TableOrder};
use weir_rollout::statistics::ShadowCounts;
use weir_rollout::{Input, Phase, Record, VersionId, decide};

use super::children::{Children, ReplicasSeen};
use super::log::Log;

/// Decisions in one look that no healthy rollout needs.
const MAX_ROUNDS: u32 = 32;
/// Tables whose evidence is kept.
const KEPT_TABLES: u64 = 8;
/// Requests that wait.
const MAX_REQUESTS: usize = 16;

/// The time of a look.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// For durations.
    pub now: Instant,
    /// For deadlines, in milliseconds since the Unix epoch.
    pub wall_ms: u64,
}

/// What is seen of a model.
#[derive(Clone, Debug, Default)]
pub struct ModelSeen {
    /// Its version objects.
    pub specs: Vec<VersionSpec>,
    /// Its pool.
    pub pool: String,
    /// Replicas the pool wants for it.
    pub wanted: u32,
    /// Workers by version.
    pub replicas: BTreeMap<VersionId, ReplicasSeen>,
    /// What the gateway counted in the shadow, and of which attempt.
    pub shadow: Option<ShadowReport>,
    /// The table that new runs follow, and for how long.
    pub acknowledged: Option<(TableOrder, Duration)>,
}

/// One model's rollout.
pub struct Rollout {
    model: String,
    log: Log,
    entropy: [u8; 32],
    children: Children,
    ledger: Ledger,
    /// Since when objects of versions that matter are gone.
    absent: BTreeMap<VersionId, Instant>,
    /// Everything to the rollback version, while the record that says so cannot be written.
    emergency: Option<Table>,
    requests: Vec<Request>,
    status: Vec<VersionStatus>,
    notes: Vec<Note>,
}

impl Rollout {
    /// Reads its log.
    pub(super) fn open(folder: &Path, model: &str, entropy: [u8; 32]) -> io::Result<Self> {
        Ok(Self {
            model: model.to_owned(),
            log: Log::open(folder, model)?,
            entropy,
            children: Children::default(),
            ledger: Ledger::default(),
            absent: BTreeMap::new(),
            emergency: None,
            requests: Vec::new(),
            status: Vec::new(),
            notes: Vec::new(),
        })
    }

    pub(super) fn step(
        &mut self,
        seen: &ModelSeen,
        evidence: Option<&Snapshot>,
        clock: Clock,
        leases: &mut BTreeMap<String, String>,
    ) -> io::Result<()> {
        self.notes.clear();
        self.children.note(&seen.replicas, clock.now);
        self.note_absence(&seen.specs, clock.now);
        if let Some(snapshot) = evidence
            && let Err(error) = self.ledger.merge(snapshot)
        {
            tracing::warn!(model = self.model, %error, "counts of the gateway are left out");
        }
        for _ in 0..MAX_ROUNDS {
            let observation = self.observe(seen, clock.now, leases);
            let decision = decide(&Input {
                log: self.log.records(),
                specs: &seen.specs,
                observation: &observation,
                now_ms: clock.wall_ms,
            });
            if !self.carry_out(decision, &seen.pool, leases)? {
                return Ok(());
            }
        }
        tracing::error!(
            model = self.model,
            "decisions do not come to rest; this is a fault in Weir"
        );
        Ok(())
    }

    /// A person's request, carried out or refused at the next look, once.
    pub(super) fn ask(&mut self, request: Request) {
        let is_handled = |head: &Record| head.handled_requests.contains(&request.id);
        let is_known = self.log.head().is_some_and(is_handled) || self.requests.contains(&request);
        if !is_known && self.requests.len() < MAX_REQUESTS {
            self.requests.push(request);
        }
    }

    /// All that it remembers.
    pub fn head(&self) -> Option<&Record> {
        self.log.head()
    }

    /// What the gateway is to do with new runs.
    pub fn table(&self) -> Option<&Table> {
        let recorded = self.log.head()?.routing.as_ref()?;
        let emergency = self.emergency.as_ref();
        Some(
            emergency
                .filter(|table| recorded.may_become(table))
                .unwrap_or(recorded),
        )
    }

    /// How many replicas each version should have.
    pub fn desired(&self) -> BTreeMap<VersionId, u32> {
        self.children.desired()
    }

    /// What is reported of each version.
    pub fn status(&self) -> &[VersionStatus] {
        &self.status
    }

    /// What happened in the last look.
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// Records that were found damaged, for people.
    pub fn damaged(&self) -> &[String] {
        self.log.damaged()
    }

    fn note_absence(&mut self, specs: &[VersionSpec], now: Instant) {
        let mut matters: Vec<VersionId> = Vec::new();
        if let Some(head) = self.log.head() {
            matters.extend(head.stable.clone());
            matters.extend(head.rollback_to.clone());
            matters.extend(head.attempt.as_ref().map(|attempt| attempt.target.clone()));
        }
        let is_absent = |id: &VersionId| !specs.iter().any(|spec| spec.id == *id);
        self.absent
            .retain(|id, _| matters.contains(id) && is_absent(id));
        for id in matters.into_iter().filter(is_absent) {
            self.absent.entry(id).or_insert(now);
        }
    }

    fn observe(
        &self,
        seen: &ModelSeen,
        now: Instant,
        leases: &BTreeMap<String, String>,
    ) -> Observation {
        let replicas = self.children.views(now);
        let applied = seen
            .acknowledged
            .map_or(Seen::Nothing, |(order, age)| Seen::Applied {
                order,
                age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            });
        Observation {
            wanted: seen.wanted,
            // One machine starts the new version beside the old one: memory is what bounds it, and a worker that finds none says so.
            capacity: seen.wanted.saturating_mul(2),
            occupancy_percent: 0,
            lease: match leases.get(&seen.pool) {
                None => Lease::Free,
                Some(model) if *model == self.model => Lease::Mine,
                Some(other) => Lease::Other(other.clone()),
            },
            replicas,
            gateways: vec![GatewayView {
                name: "local".to_owned(),
                is_reachable: true,
                seen: applied,
                known: self.children.ready(),
            }],
            evidence: self.ledger.clone(),
            shadow: self.shadow(seen),
            requests: self.requests.clone(),
            withdrawn: self
                .absent
                .iter()
                .map(|(id, since)| Withdrawn {
                    id: id.clone(),
                    absent_ms: millis(now, *since),
                })
                .collect(),
            entropy: self.entropy,
        }
    }

    /// Counts of another attempt are none of this one's.
    fn shadow(&self, seen: &ModelSeen) -> ShadowCounts {
        let attempt = self.log.head().and_then(|head| head.attempt.as_ref());
        let shadowed = seen.shadow.as_ref().zip(attempt);
        let own = shadowed.filter(|(shadowed, attempt)| shadowed.attempt == attempt.id);
        match own {
            Some((shadowed, _)) => shadowed.counts.clone(),
            // Until the gateway has taken the version in, its references are all due.
            None => ShadowCounts {
                references_due: 1,
                ..ShadowCounts::default()
            },
        }
    }

    /// What must not wait for a disk: new runs leave a version that breached. The record follows when it can be written.
    fn return_without_a_record(&mut self, record: &Record) {
        let Some(head) = self.log.head() else {
            return;
        };
        if record.phase() == Phase::RollingBack && head.phase() != Phase::RollingBack {
            self.emergency = head.routing.as_ref().and_then(Table::emergency);
        }
    }

    /// Whether there is more to decide at once.
    fn carry_out(
        &mut self,
        decision: Decision,
        pool: &str,
        leases: &mut BTreeMap<String, String>,
    ) -> io::Result<bool> {
        self.status = decision.status;
        if let Some(record) = decision.record {
            let before = self.log.head().map(step_of);
            if let Err(error) = self.log.append(&record) {
                self.return_without_a_record(&record);
                return Err(error);
            }
            if before != Some(step_of(&record)) {
                self.children.begin_step();
            }
            if let Some(table) = &record.routing {
                let oldest = table.order.generation.saturating_sub(KEPT_TABLES);
                self.ledger
                    .retire_before(TableOrder::new(table.order.epoch, oldest));
            }
            self.requests
                .retain(|request| !record.handled_requests.contains(&request.id));
            self.notes.extend(decision.note);
            return Ok(true);
        }
        let mut again = false;
        for effect in decision.effects {
            again |= match effect {
                // Signatures are checked, and tables applied, by the loop around this.
                Effect::Verify(_) | Effect::Push { .. } => false,
                Effect::Scale {
                    id,
                    replicas,
                    stamp,
                } => self.children.scale(&id, replicas, stamp),
                Effect::Sweep(id) => self.children.sweep(&id),
                Effect::AcquireLease(_) => {
                    leases.insert(pool.to_owned(), self.model.clone()).is_none()
                }
                Effect::ReleaseLease => leases.remove(pool).is_some(),
            };
        }
        Ok(again)
    }
}

/// What a worker's exits are counted over.
fn step_of(record: &Record) -> Option<(VersionId, Phase, u32)> {
    let attempt = record.attempt.as_ref()?;
    Some((attempt.target.clone(), attempt.phase, attempt.step))
}

fn millis(now: Instant, since: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
