//! Next records: small steps from the head, each with its reason.

use crate::decide::Note;
use crate::decide::state::State;
use crate::record::{Attempt, Ended, Ending, Hold, HoldReason, Phase, Proof, Rejected};
use crate::routing::{Share, Table, TableOrder, Thresholds, salt};
use crate::{Limits, Record, VersionId};

/// The next record and why.
pub(super) struct Next {
    pub(super) record: Record,
    pub(super) note: Note,
}

/// Whether the end of an attempt rejects its version.
pub(super) enum Rejection {
    /// It may be tried again.
    None,
    /// It may not, and here is what was measured, if that was the reason.
    By(Option<Proof>),
}

impl Rejection {
    pub(super) fn without_proof() -> Self {
        Self::By(None)
    }
}

/// Runs below which a quantile says nothing.
const LEAST_FOR_EDGES: u64 = 50;

impl State<'_> {
    pub(super) fn successor(&self) -> Record {
        self.head.successor(self.now_ms)
    }

    #[expect(clippy::unused_self, reason = "reads as the next record of a state")]
    pub(super) fn next(&self, record: Record, version: u32, reason: &str, message: String) -> Next {
        Next {
            record,
            note: Note {
                version,
                reason: reason.to_owned(),
                message,
            },
        }
    }

    fn next_order(&self) -> TableOrder {
        let generation = self.order().map_or(0, |order| order.generation);
        TableOrder::new(self.head.stamp.epoch, generation + 1)
    }

    /// A table that gives `target` its weight and stable the rest. Its limits are the plan's, its edges stable's of the table
    /// before, so that no data of the new table chooses what it is measured by.
    pub(super) fn split(&self, attempt: &Attempt, stable: &VersionId, weight: u32) -> Table {
        let share = |id: &VersionId, weight| Share {
            id: id.clone(),
            weight,
        };
        let shares = [share(stable, 100 - weight), share(&attempt.target, weight)];
        let step = match attempt.phase {
            Phase::Step => attempt.step,
            Phase::Final => attempt.plan.step_count() + 1,
            _ => 0,
        };
        Table {
            order: self.next_order(),
            stable: stable.clone(),
            rollback: self.head.refuge().cloned(),
            entries: shares
                .into_iter()
                .filter(|share| share.weight > 0)
                .collect(),
            attempt: Some(attempt.id.clone()),
            step,
            coin_salt: salt(&self.seen.entropy, &attempt.id),
            thresholds: self.thresholds(&attempt.plan.limits, stable),
        }
    }

    /// A table that sends everything to `stable`, measured by `limits` so that the next attempt knows what stable kept.
    pub(super) fn whole(
        &self,
        stable: &VersionId,
        rollback: Option<&VersionId>,
        limits: &Limits,
    ) -> Table {
        Table {
            rollback: rollback.cloned(),
            thresholds: self.thresholds(limits, stable),
            ..Table::all_to(self.next_order(), stable.clone())
        }
    }

    /// The same table without its last resort.
    pub(super) fn without_rollback(&self, table: &Table) -> Table {
        Table {
            order: self.next_order(),
            rollback: None,
            ..table.clone()
        }
    }

    fn thresholds(&self, limits: &Limits, stable: &VersionId) -> Thresholds {
        let before = self
            .head
            .routing
            .as_ref()
            .map(|table| table.thresholds)
            .unwrap_or_default();
        let counts = self.counts(&stable.digest);
        let edges = |histogram: &crate::evidence::Histogram, percents: [u32; 2]| {
            let [low, high] = percents.map(|percent| histogram.quantile(percent));
            let enough = histogram.total() >= LEAST_FOR_EDGES;
            enough.then_some([low?, high?])
        };
        Thresholds {
            ttft_limit_ms: limits.ttft_p95_ms,
            inter_token_limit_ms: limits.inter_token_p95_ms,
            ttft_edges: edges(&counts.ttft, [50, 90]).or(before.ttft_edges),
            inter_token_edges: edges(&counts.inter_token, [50, 90]).or(before.inter_token_edges),
            length_edges: edges(&counts.length, [10, 90]).or(before.length_edges),
        }
    }

    /// Puts another table into a record, and the evidence of the present one among what is done.
    pub(super) fn publish(&self, record: &mut Record, table: Table) {
        let stratum = self.present_stratum();
        if let (Some(attempt), Some(stratum)) = (&mut record.attempt, stratum) {
            attempt.freeze(stratum);
        }
        record.routing = Some(table);
    }

    /// Ends the attempt: weight 0 and, where there is a proof or a will, the rejection, in one record.
    pub(super) fn roll_back(
        &self,
        attempt: &Attempt,
        reason: &str,
        rejection: Rejection,
        message: String,
    ) -> Next {
        let mut record = self.successor();
        if let Some(stable) = &self.head.stable
            && (self.head.weight(&stable.digest) < 100 || self.is_emergency())
        {
            let table = self.whole(stable, self.head.rollback_to.as_ref(), &attempt.plan.limits);
            record.routing = Some(table);
        }
        record.mirror = None;
        if let Rejection::By(proof) = rejection {
            reject(&mut record, self, &attempt.target, attempt, (reason, proof));
        }
        record.attempt = Some(Attempt {
            phase: Phase::RollingBack,
            step: 0,
            entered_at_ms: record.at_ms,
            done: Vec::new(),
            hold: None,
            ending: Some(Ending {
                reason: reason.to_owned(),
                at_ms: record.at_ms,
            }),
            ..attempt.clone()
        });
        self.next(record, attempt.target.version, reason, message)
    }

    /// Freezes the attempt until a person acts.
    pub(super) fn held(&self, attempt: &Attempt, reason: HoldReason, message: String) -> Next {
        let mut record = self.successor();
        let at_ms = record.at_ms;
        if let Some(attempt) = &mut record.attempt {
            attempt.hold = Some(Hold { reason, at_ms });
        }
        self.next(record, attempt.target.version, reason.as_str(), message)
    }

    /// Enters a phase with the present table; tables follow when replicas are ready.
    pub(super) fn enter(
        &self,
        attempt: &Attempt,
        phase: Phase,
        step: u32,
        message: String,
    ) -> Next {
        let mut record = self.successor();
        record.mirror = None;
        record.attempt = Some(Attempt {
            phase,
            step,
            entered_at_ms: record.at_ms,
            hold: None,
            lowered: false,
            ..attempt.clone()
        });
        let reason = match phase {
            Phase::Step => "StepEntered",
            Phase::Final => "Promoting",
            Phase::Shadow => "ShadowEntered",
            _ => "PhaseEntered",
        };
        self.next(record, attempt.target.version, reason, message)
    }
}

/// Rejects a version with the spec the attempt was started with and, where it was edited since, with the present one too.
pub(super) fn reject(
    record: &mut Record,
    state: &State,
    id: &VersionId,
    attempt: &Attempt,
    (reason, evidence): (&str, Option<Proof>),
) {
    let present = state.spec(id).map(|spec| spec.spec_hash.clone());
    let pinned = (*id == attempt.target).then(|| attempt.spec_hash.clone());
    let mut hashes: Vec<String> = pinned.into_iter().chain(present).collect();
    hashes.dedup();
    for spec_hash in hashes {
        record.rejected.push(Rejected {
            id: id.clone(),
            spec_hash,
            reason: reason.to_owned(),
            attempt: attempt.id.clone(),
            evidence: evidence.clone(),
            at_ms: record.at_ms,
        });
    }
    record.bound();
}

/// Writes how an attempt ended.
pub(super) fn end(record: &mut Record, attempt: &Attempt, outcome: &str) {
    record.history.push(Ended {
        attempt: attempt.id.clone(),
        version: attempt.target.version,
        outcome: outcome.to_owned(),
        at_ms: record.at_ms,
    });
    record.attempt = None;
    record.mirror = None;
    record.bound();
}
