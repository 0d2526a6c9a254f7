//! A model's replicas on this machine: what each version should have, and for how long it has had less.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weir_rollout::decide::ReplicaView;
use weir_rollout::{Stamp, VersionId};

/// How long runs on replicas that are to go may take to end.
const DRAIN: Duration = Duration::from_mins(1);

/// What is seen of a version's workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicasSeen {
    /// Processes, those that drain included.
    pub existing: u32,
    /// Of them, those with an open session that serve the version.
    pub ready: u32,
    /// Runs they compute.
    pub live_runs: u64,
    /// Exits that nobody asked for, ever.
    pub exits: u32,
    /// The fewest exits of any worker since it last took sessions.
    pub start_failures: u32,
}

#[derive(Clone, Debug, Default)]
struct Child {
    desired: u32,
    stamp: Stamp,
    seen: ReplicasSeen,
    /// Exits before the present step.
    exits_before: u32,
    was_ready: bool,
    short_since: Option<Instant>,
    none_since: Option<Instant>,
    drain_since: Option<Instant>,
}

/// All versions of a model that have or had replicas.
#[derive(Clone, Debug, Default)]
pub(super) struct Children(BTreeMap<VersionId, Child>);

impl Children {
    /// Takes in what is seen now.
    pub(super) fn note(&mut self, seen: &BTreeMap<VersionId, ReplicasSeen>, now: Instant) {
        for (id, child) in &mut self.0 {
            child.seen = seen.get(id).copied().unwrap_or_default();
        }
        for (id, seen) in seen.iter().filter(|(_, seen)| seen.existing > 0) {
            self.0.entry(id.clone()).or_default().seen = *seen;
        }
        for child in self.0.values_mut() {
            child.was_ready |= child.seen.ready > 0;
            let since = |since: &mut Option<Instant>, holds: bool| {
                *since = holds.then(|| since.unwrap_or(now));
            };
            since(&mut child.short_since, child.seen.ready < child.desired);
            since(&mut child.none_since, child.seen.ready == 0);
            since(&mut child.drain_since, child.seen.existing > child.desired);
        }
    }

    /// Orders a number of replicas; an older record than the one that ordered last changes nothing.
    pub(super) fn scale(&mut self, id: &VersionId, replicas: u32, stamp: Stamp) -> bool {
        let child = self.0.entry(id.clone()).or_default();
        if child.stamp > stamp {
            return false;
        }
        (child.desired, child.stamp) = (replicas, stamp);
        true
    }

    /// Forgets a version that has nothing left.
    pub(super) fn sweep(&mut self, id: &VersionId) -> bool {
        let is_empty = |child: &Child| child.desired == 0 && child.seen.existing == 0;
        self.0.get(id).is_some_and(is_empty) && self.0.remove(id).is_some()
    }

    /// Exits count per step.
    pub(super) fn begin_step(&mut self) {
        for child in self.0.values_mut() {
            child.exits_before = child.seen.exits;
        }
    }

    /// How many replicas each version should have, 0 included.
    pub(super) fn desired(&self) -> BTreeMap<VersionId, u32> {
        self.0
            .iter()
            .map(|(id, child)| (id.clone(), child.desired))
            .collect()
    }

    /// Ready replicas by digest.
    pub(super) fn ready(&self) -> BTreeMap<String, u32> {
        let ready = |(id, child): (&VersionId, &Child)| (id.digest.clone(), child.seen.ready);
        self.0.iter().map(ready).collect()
    }

    /// As decisions see them.
    pub(super) fn views(&self, now: Instant) -> Vec<ReplicaView> {
        let ms = |since: Option<Instant>| {
            since.map_or(0, |since| millis(now.saturating_duration_since(since)))
        };
        let view = |(id, child): (&VersionId, &Child)| ReplicaView {
            id: id.clone(),
            desired: child.desired,
            existing: child.seen.existing,
            ready: child.seen.ready,
            stamp: child.stamp,
            live_runs: child.seen.live_runs,
            is_drain_over: ms(child.drain_since) > millis(DRAIN),
            exits: child.seen.exits.saturating_sub(child.exits_before),
            start_failures: if child.was_ready {
                0
            } else {
                child.seen.start_failures
            },
            short_ms: ms(child.short_since),
            none_ready_ms: ms(child.none_since),
        };
        self.0.iter().map(view).collect()
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> VersionId {
        VersionId::new(2, "sha256:bb")
    }

    fn stamp(revision: u64) -> Stamp {
        Stamp { epoch: 1, revision }
    }

    #[test]
    fn an_older_record_orders_nothing() {
        let mut children = Children::default();
        assert!(children.scale(&id(), 2, stamp(7)));
        assert!(!children.scale(&id(), 0, stamp(6)));
        assert_eq!(children.desired()[&id()], 2);
    }

    #[test]
    fn times_run_while_something_is_missing_and_stop_when_it_is_there() {
        let mut children = Children::default();
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let seen = |existing, ready| {
            let seen = ReplicasSeen {
                existing,
                ready,
                exits: 4,
                start_failures: 4,
                ..ReplicasSeen::default()
            };
            BTreeMap::from([(id(), seen)])
        };
        children.scale(&id(), 2, stamp(1));
        children.note(&seen(2, 0), at(0));
        children.note(&seen(2, 1), at(10));
        let view = &children.views(at(12))[0];
        assert_eq!((view.short_ms, view.none_ready_ms), (12_000, 0));
        assert_eq!(view.start_failures, 0, "it was ready once");
        children.begin_step();
        children.note(&seen(2, 2), at(20));
        let view = &children.views(at(90))[0];
        assert_eq!(
            (view.short_ms, view.exits, view.is_drain_over),
            (0, 0, false)
        );
        children.scale(&id(), 0, stamp(2));
        children.note(&seen(2, 2), at(100));
        assert!(!children.sweep(&id()), "they are still there");
        assert!(children.views(at(161))[0].is_drain_over);
        children.note(&BTreeMap::new(), at(162));
        assert!(children.sweep(&id()));
    }
}
