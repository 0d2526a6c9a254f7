//! What follows from an input before anything is decided.

use crate::decide::Input;
use crate::decide::observation::{GatewayView, Observation, ReplicaView, Seen, VersionSpec};
use crate::evidence::{Counts, Stratum, stratum};
use crate::record::{Attempt, Phase};
use crate::routing::{Table, TableOrder};
use crate::statistics::{Judgement, judge};
use crate::{Record, VersionId};

/// An input with what is derived from it.
pub(super) struct State<'a> {
    pub(super) log: &'a [Record],
    pub(super) head: Record,
    pub(super) specs: &'a [VersionSpec],
    pub(super) seen: &'a Observation,
    pub(super) now_ms: u64,
    /// All evidence of the attempt, that of the present table last.
    pub(super) strata: Vec<Stratum>,
    pub(super) judgement: Option<Judgement>,
}

impl<'a> State<'a> {
    pub(super) fn new(input: &Input<'a>) -> Self {
        let head = input.log.last().cloned().unwrap_or_else(Record::empty);
        let mut state = Self {
            log: input.log,
            seen: input.observation,
            specs: input.specs,
            // A clock that jumped back stands still instead.
            now_ms: input.now_ms.max(head.at_ms),
            head,
            strata: Vec::new(),
            judgement: None,
        };
        state.strata = state.all_strata();
        state.judgement = state.head.attempt.as_ref().and_then(|attempt| {
            let step = match attempt.phase {
                Phase::Step => attempt.step,
                Phase::Final => attempt.plan.step_count() + 1,
                _ => return None,
            };
            Some(judge(&state.strata, step, &attempt.plan, attempt.kept))
        });
        state
    }

    fn all_strata(&self) -> Vec<Stratum> {
        let Some(attempt) = &self.head.attempt else {
            return Vec::new();
        };
        attempt
            .done
            .iter()
            .cloned()
            .chain(self.present_stratum())
            .collect()
    }

    /// Evidence of the present table: of this attempt, this digest and this generation, nothing else.
    pub(super) fn present_stratum(&self) -> Option<Stratum> {
        let attempt = self.head.attempt.as_ref()?;
        let table = self.head.routing.as_ref()?;
        if table.attempt.as_deref() != Some(attempt.id.as_str()) {
            return None;
        }
        let digest = &attempt.target.digest;
        let (canary, stable) = (self.counts(digest), self.counts(&table.stable.digest));
        stratum(table, digest, &canary, &stable).filter(|stratum| !stratum.is_empty())
    }

    /// Counts of a version under the present table.
    pub(super) fn counts(&self, digest: &str) -> Counts {
        let table = self.head.routing.as_ref();
        table.map_or_else(Counts::default, |table| {
            let attempt = table.attempt.as_deref().unwrap_or_default();
            self.seen.evidence.total(table.order, attempt, digest)
        })
    }

    pub(super) fn attempt(&self) -> Option<&Attempt> {
        self.head.attempt.as_ref()
    }

    /// The object of exactly this version and digest.
    pub(super) fn spec(&self, id: &VersionId) -> Option<&'a VersionSpec> {
        self.specs.iter().find(|spec| spec.id == *id)
    }

    pub(super) fn replicas(&self, id: &VersionId) -> Option<&'a ReplicaView> {
        self.seen.replicas.iter().find(|view| view.id == *id)
    }

    pub(super) fn existing(&self, id: &VersionId) -> u32 {
        self.replicas(id).map_or(0, |view| view.existing)
    }

    pub(super) fn ready(&self, id: &VersionId) -> u32 {
        self.replicas(id).map_or(0, |view| view.ready)
    }

    /// Replicas that are ready and known by every live gateway.
    pub(super) fn serving(&self, id: &VersionId) -> u32 {
        let known = |gateway: &GatewayView| gateway.known.get(&id.digest).copied().unwrap_or(0);
        let least = self.seen.gateways.iter().map(known).min();
        self.ready(id).min(least.unwrap_or(u32::MAX))
    }

    pub(super) fn order(&self) -> Option<TableOrder> {
        self.head.routing.as_ref().map(|table| table.order)
    }

    /// Whether every live gateway has the head's table. A gateway that is ahead, by an emergency table, has not.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.seen
            .gateways
            .iter()
            .all(|gateway| self.has_head_table(gateway))
    }

    /// Whether every gateway that answers has it: what does not answer holds up no rollout, only the removal of capacity.
    pub(super) fn is_acknowledged_by_reachable(&self) -> bool {
        let mut reachable = self
            .seen
            .gateways
            .iter()
            .filter(|gateway| gateway.is_reachable);
        reachable.all(|gateway| self.has_head_table(gateway))
    }

    pub(super) fn has_head_table(&self, gateway: &GatewayView) -> bool {
        match (gateway.seen, self.order()) {
            (Seen::Applied { order, .. }, Some(head)) => order == head,
            (_, None) => true,
            (_, Some(_)) => false,
        }
    }

    /// Whether some gateway acts on an emergency table of the head.
    pub(super) fn is_emergency(&self) -> bool {
        let is_ahead = |gateway: &GatewayView| match (gateway.seen, self.order()) {
            (Seen::Applied { order, .. }, Some(head)) => order.emergency && order > head,
            _ => false,
        };
        self.seen.gateways.iter().any(is_ahead)
    }

    /// For how long the present table has been in force: the greatest age a live gateway reports, by its own clock.
    pub(super) fn table_age_ms(&self) -> u64 {
        let age = |gateway: &GatewayView| match gateway.seen {
            Seen::Applied { order, age_ms } if Some(order) == self.order() => Some(age_ms),
            _ => None,
        };
        self.seen.gateways.iter().filter_map(age).max().unwrap_or(0)
    }

    /// Every table that a live gateway may still run: its own and all later ones up to the head. None when that is not known.
    pub(super) fn usable_tables(&self) -> Option<Vec<&Table>> {
        let tables: Vec<&Table> = self.tables();
        let mut oldest = self.order();
        for gateway in &self.seen.gateways {
            match gateway.seen {
                Seen::Unknown => return None,
                Seen::Nothing => {}
                Seen::Applied { order, .. } => oldest = oldest.min(Some(order)),
            }
        }
        let is_older = |table: &&&Table| Some(table.order) <= oldest;
        // A table that left the log may weigh anything. An emergency table is judged by the one it came after.
        let Some(first) = tables.iter().rev().find(is_older) else {
            return if oldest.is_none() {
                Some(Vec::new())
            } else {
                None
            };
        };
        let from = first.order;
        Some(
            tables
                .into_iter()
                .filter(|table| table.order >= from)
                .collect(),
        )
    }

    /// Tables of the log and the head, oldest first.
    pub(super) fn tables(&self) -> Vec<&Table> {
        let head = self.head.stamp;
        let earlier = self.log.iter().filter(|record| record.stamp < head);
        earlier
            .chain([&self.head])
            .filter_map(|record| record.routing.as_ref())
            .collect()
    }

    /// Time since the attempt entered its phase or step.
    pub(super) fn waited_ms(&self) -> u64 {
        let entered = self
            .attempt()
            .map_or(self.now_ms, |attempt| attempt.entered_at_ms);
        self.now_ms.saturating_sub(entered)
    }
}
