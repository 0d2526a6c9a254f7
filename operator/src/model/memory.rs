//! What an operator remembers of a model between two looks. Nothing of it decides: times since something was first seen, counts of
//! gateways, and what it wrote that the cache has not brought back yet. After a restart it is found again by looking.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use weir_rollout::decide::{Note, ReplicaView, Request, Withdrawn};
use weir_rollout::evidence::{Ledger, ShadowLedger};
use weir_rollout::routing::{Table, TableOrder};
use weir_rollout::{Record, Stamp, VersionId};

use super::child::ChildSeen;
use crate::queue::pause_after;

/// Tables whose evidence is kept.
const KEPT_TABLES: u64 = 8;

#[derive(Clone, Debug, Default)]
struct Times {
    exits_before: u32,
    shares: bool,
    was_ready: bool,
    short_since: Option<Instant>,
    none_since: Option<Instant>,
    drain_since: Option<Instant>,
}

/// A version on its way out, for what gateways counted.
#[derive(Clone, Debug)]
pub struct Leaving {
    /// The table that takes it back.
    pub order: TableOrder,
    /// Since when what decided it may have been there.
    pub since: Instant,
    /// How many answers each gateway had given when it was decided.
    pub answers: BTreeMap<String, u64>,
}

/// What a head asks for and cannot be done.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    head: Option<Stamp>,
    failures: u32,
    until: Instant,
}

/// One model's memory.
#[derive(Debug, Default)]
pub struct Memory {
    /// Counts of the gateways.
    pub ledger: Ledger,
    /// What they counted in the shadow.
    pub shadow: ShadowLedger,
    /// The table that takes a version back, until every gateway routes by it.
    pub leaving: Option<Leaving>,
    /// What was decided and is not told yet.
    pub news: Vec<Note>,
    /// What cannot be carried out, and since when.
    trouble: Option<Trouble>,
    /// Everything to the rollback version, while the record that says so cannot be written.
    pub emergency: Option<Table>,
    /// Records written here that the cache has not shown yet.
    written: Vec<Record>,
    times: BTreeMap<VersionId, Times>,
    absent: BTreeMap<VersionId, Instant>,
    /// When each child was last written.
    pub writes: Writes,
    /// What was complained about.
    pub told: BTreeSet<String>,
    /// The step whose exits are counted.
    pub step: Option<(VersionId, weir_rollout::Phase, u32)>,
}

impl Memory {
    /// The log, with what was written here and is not in the cache yet.
    pub fn log(&mut self, mut cached: Vec<Record>) -> Vec<Record> {
        cached.sort_by_key(|record| record.stamp);
        self.written
            .retain(|mine| !cached.iter().any(|record| record.stamp == mine.stamp));
        cached.extend(self.written.iter().cloned());
        cached.sort_by_key(|record| record.stamp);
        cached
    }

    /// A record was written.
    pub fn wrote(&mut self, record: &Record) {
        self.written.push(record.clone());
        if let Some(table) = &record.routing {
            let oldest = table.order.generation.saturating_sub(KEPT_TABLES);
            self.ledger
                .retire_before(TableOrder::new(table.order.epoch, oldest));
        }
        self.begin(record);
    }

    /// Exits count per step: a step that is new begins with those there are.
    pub fn begin(&mut self, head: &Record) {
        let step = head
            .attempt
            .as_ref()
            .map(|attempt| (attempt.target.clone(), attempt.phase, attempt.step));
        let attempt = head.attempt.as_ref();
        self.shadow.keep(attempt.map(|attempt| attempt.id.as_str()));
        if self.step != step {
            self.step = step;
            for times in self.times.values_mut() {
                times.exits_before = u32::MAX;
            }
        }
    }

    /// Whether what a head asks for is to be tried now: always at first, later and later while it fails.
    pub fn may_carry_out(&self, head: Option<Stamp>, now: Instant) -> bool {
        let rests = |trouble: Trouble| trouble.head == head && now < trouble.until;
        !self.trouble.is_some_and(rests)
    }

    /// It could not be done.
    pub fn failed(&mut self, head: Option<Stamp>, jitter: u32, now: Instant) {
        let before = self.trouble.filter(|trouble| trouble.head == head);
        let failures = before.map_or(0, |trouble| trouble.failures) + 1;
        let until = now + pause_after(failures, jitter);
        self.trouble = Some(Trouble {
            head,
            failures,
            until,
        });
    }

    /// It was done.
    pub fn carried_out(&mut self) {
        self.trouble = None;
    }

    /// Takes in what is seen of the children now.
    pub fn note(&mut self, seen: &BTreeMap<VersionId, ChildSeen>, now: Instant) {
        self.times.retain(|id, _| seen.contains_key(id));
        for (id, child) in seen {
            let is_new = !self.times.contains_key(id);
            let times = self.times.entry(id.clone()).or_default();
            // Other workers have exits of their own.
            if is_new || times.exits_before == u32::MAX || times.shares != child.shares {
                times.exits_before = child.exits;
            }
            times.shares = child.shares;
            // A pod that is gone takes its exits with it.
            times.exits_before = times.exits_before.min(child.exits);
            times.was_ready |= child.ready > 0;
            let since = |since: &mut Option<Instant>, holds: bool| {
                *since = holds.then(|| since.unwrap_or(now));
            };
            since(&mut times.short_since, child.ready < child.desired);
            since(&mut times.none_since, child.ready == 0);
            since(&mut times.drain_since, child.existing > child.desired);
        }
    }

    /// Takes in which versions that matter have no object, as a live read proves it.
    pub fn note_absence(
        &mut self,
        matters: Vec<VersionId>,
        exists: impl Fn(&VersionId) -> bool,
        now: Instant,
    ) {
        self.absent
            .retain(|id, _| matters.contains(id) && !exists(id));
        for id in matters.into_iter().filter(|id| !exists(id)) {
            self.absent.entry(id).or_insert(now);
        }
    }

    /// Whether a live read has shown that a version's object is gone, and no watch has brought it back.
    pub fn is_absent(&self, id: &VersionId) -> bool {
        self.absent.contains_key(id)
    }

    /// Whether an object is gone for so short a time that it may still be a re-creation.
    pub fn is_in_grace(&self, now: Instant) -> bool {
        const GRACE: Duration = Duration::from_secs(15);
        let mut since = self.absent.values();
        since.any(|since| now.saturating_duration_since(*since) < GRACE)
    }

    /// Versions whose objects are gone, and for how long.
    pub fn withdrawn(&self, now: Instant) -> Vec<Withdrawn> {
        let withdrawn = |(id, since): (&VersionId, &Instant)| Withdrawn {
            id: id.clone(),
            absent_ms: millis(now.saturating_duration_since(*since)),
        };
        self.absent.iter().map(withdrawn).collect()
    }

    /// Children as decisions see them.
    pub fn views(
        &self,
        seen: &BTreeMap<VersionId, ChildSeen>,
        drain: Duration,
        now: Instant,
    ) -> Vec<ReplicaView> {
        let fresh = Times::default();
        let ms = |since: Option<Instant>| {
            since.map_or(0, |since| millis(now.saturating_duration_since(since)))
        };
        let view = |(id, child): (&VersionId, &ChildSeen)| {
            let times = self.times.get(id).unwrap_or(&fresh);
            ReplicaView {
                id: id.clone(),
                desired: child.desired,
                existing: child.existing,
                ready: child.ready,
                stamp: child.stamp,
                live_runs: child.live_runs,
                is_drain_over: ms(times.drain_since) > millis(drain),
                exits: child.blame(times.exits_before),
                start_failures: if times.was_ready {
                    0
                } else {
                    child.start_failures(times.exits_before)
                },
                short_ms: ms(times.short_since),
                none_ready_ms: ms(times.none_since),
            }
        };
        seen.iter().map(view).collect()
    }
}

/// When each child was last written, for telling a fight from a repair.
#[derive(Debug, Default)]
pub struct Writes(BTreeMap<String, VecDeque<Instant>>);

impl Writes {
    /// Whether a child may be written again: five times at once, then twice a minute. Who else writes it is not to be outrun.
    pub fn may(&mut self, child: &str, now: Instant) -> bool {
        const WINDOW: Duration = Duration::from_mins(10);
        const AT_ONCE: usize = 5;
        const AFTER: Duration = Duration::from_secs(30);
        let written = self.0.entry(child.to_owned()).or_default();
        while written
            .front()
            .is_some_and(|at| now.saturating_duration_since(*at) > WINDOW)
        {
            written.pop_front();
        }
        let is_rested = written
            .back()
            .is_none_or(|at| now.saturating_duration_since(*at) >= AFTER);
        let may = written.len() < AT_ONCE || is_rested;
        if may {
            written.push_back(now);
        }
        may
    }
}

/// Requests that nobody has carried out or refused yet.
pub fn unhandled(requests: Vec<Request>, head: Option<&Record>) -> Vec<Request> {
    let is_handled =
        |request: &Request| head.is_some_and(|head| head.handled_requests.contains(&request.id));
    requests
        .into_iter()
        .filter(|request| !is_handled(request))
        .collect()
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

    fn child(existing: u32, ready: u32, exits: u32) -> BTreeMap<VersionId, ChildSeen> {
        let seen = ChildSeen {
            desired: 2,
            existing,
            ready,
            exits,
            start_failures: exits,
            ..ChildSeen::default()
        };
        BTreeMap::from([(id(), seen)])
    }

    #[test]
    fn times_run_while_something_is_missing_and_stop_when_it_is_there() {
        let (mut memory, start) = (Memory::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        let drain = Duration::from_mins(1);
        memory.note(&child(2, 0, 4), at(0));
        let seen = child(2, 1, 4);
        memory.note(&seen, at(10));
        let view = &memory.views(&seen, drain, at(12))[0];
        assert_eq!((view.short_ms, view.none_ready_ms), (12_000, 0));
        assert_eq!(view.start_failures, 0, "it was ready once");
        assert_eq!(view.exits, 0, "what was before is not this step's");
        let seen = child(2, 1, 6);
        memory.note(&seen, at(13));
        assert_eq!(memory.views(&seen, drain, at(13))[0].exits, 2);
        let mut seen = child(3, 2, 0);
        memory.note(&seen, at(20));
        assert!(!memory.views(&seen, drain, at(70))[0].is_drain_over);
        seen.get_mut(&id()).unwrap().existing = 4;
        assert!(memory.views(&seen, drain, at(81))[0].is_drain_over);
    }

    #[test]
    fn exits_of_workers_that_a_version_shares_count_from_when_it_came_and_while_it_is_on_trial() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let shared = |ready, exits, is_blamed| {
            let mut seen = child(2, ready, exits);
            let child = seen.get_mut(&id()).unwrap();
            (child.shares, child.is_blamed, child.start_failures) = (true, is_blamed, 0);
            seen
        };
        let mut see = |seen: &BTreeMap<VersionId, ChildSeen>| {
            memory.note(seen, now);
            let view = &memory.views(seen, Duration::ZERO, now)[0];
            (view.exits, view.start_failures)
        };
        assert_eq!(see(&shared(0, 7, true)), (0, 0), "they were before it");
        assert_eq!(see(&shared(0, 10, true)), (3, 3), "it ends them");
        assert_eq!(see(&shared(0, 10, false)), (0, 0), "another one does");
        assert_eq!(see(&shared(2, 12, true)), (5, 0), "it was ready once");
        assert_eq!(see(&child(2, 0, 30)), (0, 0), "workers of its own");
    }

    #[test]
    fn a_record_is_in_the_log_from_when_it_was_written() {
        let mut memory = Memory::default();
        let record = |revision| Record {
            stamp: Stamp { epoch: 1, revision },
            ..Record::empty()
        };
        memory.wrote(&record(2));
        let stamps = |log: Vec<Record>| -> Vec<u64> {
            log.iter().map(|record| record.stamp.revision).collect()
        };
        assert_eq!(stamps(memory.log(vec![record(1)])), [1, 2]);
        assert_eq!(stamps(memory.log(vec![record(2), record(1)])), [1, 2]);
        assert_eq!(stamps(memory.log(vec![record(1)])), [1], "deleted since");
    }

    #[test]
    fn an_object_counts_as_gone_from_when_it_was_missed_until_it_is_back() {
        let (mut memory, start) = (Memory::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        memory.note_absence(vec![id()], |_| false, at(0));
        memory.note_absence(vec![id()], |_| false, at(5));
        assert_eq!(memory.withdrawn(at(6))[0].absent_ms, 6_000);
        memory.note_absence(vec![id()], |_| true, at(7));
        assert!(memory.withdrawn(at(7)).is_empty());
    }

    #[test]
    fn what_cannot_be_done_waits_longer_each_time_until_another_head_asks_for_something_else() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let head = |revision| Some(Stamp { epoch: 1, revision });
        let mut pauses = Vec::new();
        for _ in 0..3 {
            memory.failed(head(1), 1000, now);
            let waits = |ms: &u64| !memory.may_carry_out(head(1), now + Duration::from_millis(*ms));
            pauses.push((0..5_000).find(|ms| !waits(ms)));
        }
        assert_eq!(pauses, [Some(200), Some(400), Some(800)]);
        assert!(memory.may_carry_out(head(2), now), "a new one is tried");
        memory.failed(head(2), 1000, now);
        assert!(memory.may_carry_out(head(2), now + Duration::from_millis(200)));
        memory.carried_out();
        assert!(memory.may_carry_out(head(2), now));
    }

    #[test]
    fn a_child_that_another_writes_too_is_not_fought_for() {
        let (mut writes, start) = (Writes::default(), Instant::now());
        let mut written = 0;
        for second in 0..300 {
            written += u32::from(writes.may("a", start + Duration::from_secs(second)));
        }
        assert!(
            (10..=16).contains(&written),
            "{written} times in five minutes"
        );
        assert!(writes.may("b", start));
    }
}
