//! A gateway: it applies tables late, flips the real coin, counts, and reports snapshots that may be late, doubled or lost.

use std::collections::BTreeMap;

use weir_rollout::decide::Seen;
use weir_rollout::evidence::{Counts, EntryKey, Snapshot};
use weir_rollout::routing::{Table, TableOrder, choose};

use crate::random::Random;
use crate::setup::{Behaviour, TICK_MS};

/// Ticks until a run is settled.
const SETTLE_TICKS: u64 = 2;

pub(crate) struct Gateway {
    pub(crate) name: String,
    pub(crate) boot: u64,
    pub(crate) table: Option<Table>,
    applied_tick: u64,
    pub(crate) inbox: Vec<(u64, Table)>,
    pub(crate) is_reachable: bool,
    /// Whether it hears of no worker any more.
    pub(crate) is_deaf: bool,
    /// What the operator last heard.
    pub(crate) heard: Seen,
    pub(crate) known: BTreeMap<String, u32>,
    sequence: u64,
    counts: BTreeMap<EntryKey, Counts>,
    unsettled: Vec<(u64, EntryKey, Counts)>,
    block: BTreeMap<EntryKey, (u64, u64)>,
}

/// What a tick of runs came to.
#[derive(Default)]
pub(crate) struct Served {
    pub(crate) by_digest: BTreeMap<String, u64>,
    /// Runs sent to a version without a ready worker although another version had one.
    pub(crate) misrouted: u64,
}

impl Gateway {
    pub(crate) fn new(number: usize) -> Self {
        Self {
            name: format!("gateway-{number}"),
            boot: 1,
            table: None,
            applied_tick: 0,
            inbox: Vec::new(),
            is_reachable: true,
            is_deaf: false,
            heard: Seen::Nothing,
            known: BTreeMap::new(),
            sequence: 0,
            counts: BTreeMap::new(),
            unsettled: Vec::new(),
            block: BTreeMap::new(),
        }
    }

    /// A table survives a restart, for it was persisted before it was acknowledged; counters and clocks do not.
    pub(crate) fn restart(&mut self, tick: u64) {
        self.boot += 1;
        self.sequence = 0;
        self.counts.clear();
        self.unsettled.clear();
        self.block.clear();
        self.applied_tick = tick;
    }

    pub(crate) fn order(&self) -> Option<TableOrder> {
        self.table.as_ref().map(|table| table.order)
    }

    /// Takes the tables that have arrived: only newer ones, in whatever order they come.
    pub(crate) fn receive(&mut self, tick: u64) {
        let (arrived, later): (Vec<_>, Vec<_>) =
            self.inbox.drain(..).partition(|(at, _)| *at <= tick);
        self.inbox = later;
        for (_, table) in arrived {
            let is_newer = self
                .table
                .as_ref()
                .is_none_or(|mine| mine.may_become(&table));
            if is_newer {
                self.table = Some(table);
                self.applied_tick = tick;
            }
        }
    }

    pub(crate) fn seen(&self, tick: u64) -> Seen {
        self.order().map_or(Seen::Nothing, |order| Seen::Applied {
            order,
            age_ms: (tick - self.applied_tick) * TICK_MS,
        })
    }

    pub(crate) fn serve(
        &mut self,
        tick: u64,
        runs: u64,
        ready: &BTreeMap<String, u32>,
        behave: &dyn Fn(&str) -> Behaviour,
        random: &mut Random,
    ) -> Served {
        let mut served = Served::default();
        let Some(table) = self.table.clone() else {
            return served;
        };
        let has =
            |map: &BTreeMap<String, u32>, digest: &str| map.get(digest).copied().unwrap_or(0) > 0;
        let usable: Vec<String> = ready
            .keys()
            .filter(|digest| has(&self.known, digest) && has(ready, digest))
            .cloned()
            .collect();
        let is_ready = |digest: &str| usable.iter().any(|usable| usable == digest);
        let mut tallies: Vec<(String, Behaviour, Counts)> = Vec::new();
        let mut others = 0;
        for _ in 0..runs {
            let Some(choice) = choose(&table, random.next(), is_ready) else {
                continue;
            };
            let digest = &choice.id.digest;
            served.misrouted += u64::from(!is_ready(digest));
            let known = tallies.iter().position(|(known, ..)| known == digest);
            let index = known.unwrap_or_else(|| {
                tallies.push((digest.clone(), behave(digest), Counts::default()));
                tallies.len() - 1
            });
            let (_, behaviour, counts) = &mut tallies[index];
            if !choice.is_evidence {
                others += 1;
                continue;
            }
            let failed = random.ppm(behaviour.errors_ppm);
            counts.assigned += 1;
            counts.failed_so_far += u64::from(failed);
            counts.errors.record(failed);
            if table.thresholds.ttft_limit_ms.is_some() && !failed {
                let late = random.ppm(behaviour.late_ppm);
                counts.ttft_limit.record(late);
                counts.ttft.record(if late { 40 } else { 30 }, 1);
            }
        }
        let mut fresh: BTreeMap<EntryKey, Counts> = BTreeMap::new();
        for (digest, _, counts) in tallies {
            // Runs that are no evidence are computed all the same.
            served
                .by_digest
                .insert(digest.clone(), counts.assigned + others);
            let key = EntryKey {
                table: table.order,
                attempt: table.attempt.clone().unwrap_or_default(),
                digest,
            };
            if counts.assigned > 0 {
                fresh.insert(key, counts);
            }
        }
        self.count(tick, fresh);
        served
    }

    /// Failures count at once, everything else when its run settles.
    fn count(&mut self, tick: u64, fresh: BTreeMap<EntryKey, Counts>) {
        for (key, counts) in fresh {
            let at_once = Counts {
                assigned: counts.assigned,
                failed_so_far: counts.failed_so_far,
                ..Counts::default()
            };
            let (runs, bad) = self.block.remove(&key).unwrap_or_default();
            let (runs, bad) = (runs + counts.assigned, bad + counts.failed_so_far);
            self.counts.entry(key.clone()).or_default().add(&at_once);
            if tick.is_multiple_of(2) {
                let level = usize::try_from(16 * bad / runs).unwrap();
                self.counts.entry(key.clone()).or_default().error_blocks[level] += 1;
            } else {
                self.block.insert(key.clone(), (runs, bad));
            }
            let later = Counts {
                assigned: 0,
                failed_so_far: 0,
                ..counts
            };
            self.unsettled.push((tick + SETTLE_TICKS, key, later));
        }
        let (due, later): (Vec<_>, Vec<_>) =
            self.unsettled.drain(..).partition(|(at, ..)| *at <= tick);
        self.unsettled = later;
        for (_, key, counts) in due {
            self.counts.entry(key).or_default().add(&counts);
        }
        // Eight tables of two versions.
        while self.counts.len() > 16 {
            self.counts.pop_first();
        }
    }

    pub(crate) fn snapshot(&mut self) -> Snapshot {
        self.sequence += 1;
        Snapshot {
            gateway: self.name.clone(),
            boot: self.boot.to_string(),
            sequence: self.sequence,
            entries: self.counts.clone().into_iter().collect(),
        }
    }
}
