//! What there is: a log, children, gateways, and operators that carry out what the core decides.

use std::collections::BTreeMap;
use std::sync::Mutex;

use weir_rollout::decide::{
    Effect, GatewayView, Lease, Observation, ReplicaView, Seen, Stage, Verification, VersionSpec,
    Withdrawn,
};
use weir_rollout::evidence::{Counts, EntryKey, Judged, Ledger, Snapshot};
use weir_rollout::record::encode;
use weir_rollout::routing::{Table, TableOrder};
use weir_rollout::statistics::ShadowCounts;
use weir_rollout::{Input, Plan, Promote, Record, Stamp, StepPlan, decide};

use crate::setup::{id, plan, spec};

/// Wall time, which stands still.
const NOW_MS: u64 = 1_000_000;

/// A part of the protocol that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mistake {
    /// Nothing is.
    None,
    /// A record takes the place of another one instead of being refused.
    Overwrites,
    /// A child is changed on behalf of an older record than the one it carries.
    IgnoresStamps,
    /// A table counts as acknowledged when it was recorded.
    TakesAcknowledgement,
    /// A gateway says that it has a table before it keeps it.
    AcknowledgesFirst,
    /// A worker counts as ready when it was ordered.
    TakesReadiness,
    /// What was rejected is read from the object, which is gone and comes back.
    ForgetsRejected,
    /// The rollback pointer is set anew when a table gives everything to the version on trial.
    MovesPointer,
}

/// How far a world may go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    /// Records there may come to be.
    pub(super) records: usize,
    /// How often each may happen.
    pub(super) restarts: u8,
    pub(super) failures: u8,
    pub(super) withdrawals: u8,
    /// Whether version 2 may turn out worse.
    pub(super) worse: bool,
    /// Whether the slow operator's view of children and gateways may be old when it looks, too.
    pub(super) behind: bool,
}

/// Records and tables by number, so that a state is small, and what was decided in each situation.
pub(super) struct Known {
    mistake: Mistake,
    all: Mutex<All>,
}

#[derive(Default)]
struct All {
    records: Vec<Record>,
    record_numbers: BTreeMap<Vec<u8>, Number>,
    /// The tables of the records, in the same order.
    table_of: Vec<Option<Number>>,
    tables: Vec<Table>,
    decided: BTreeMap<Situation, Vec<Todo>>,
    followed: BTreeMap<(Number, Number), bool>,
}

/// Of a record or a table.
pub(super) type Number = u16;

/// All that a decision is made from.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Situation {
    log: Vec<Number>,
    children: [Option<Child>; 2],
    tables: [Number; 2],
    is_worse: bool,
    is_there: bool,
}

/// A version's worker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Child {
    pub(super) desired: u32,
    pub(super) existing: u32,
    pub(super) ready: u32,
    stamp: Stamp,
}

/// A gateway: the table it routes by, the one on its disk, and the one that the slow operator last saw.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Gateway {
    pub(super) table: Number,
    pub(super) kept: Number,
    seen: Number,
}

/// One write of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Todo {
    Append {
        record: Number,
        after: usize,
    },
    Scale {
        of: usize,
        replicas: u32,
        stamp: Stamp,
    },
    Sweep {
        of: usize,
        stamp: Stamp,
    },
}

/// Everything. One operator acts on what is; the other one may carry out at any later time what it decided.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    pub(super) log: Vec<Number>,
    pub(super) children: [Option<Child>; 2],
    /// In order, since it is the same which of the two is which.
    pub(super) gateways: [Gateway; 2],
    /// What the slow operator is about to write.
    pub(super) held: Option<Todo>,
    /// The children as it sees them, where that is not as they are.
    pub(super) behind: Option<[Option<Child>; 2]>,
    pub(super) is_worse: bool,
    pub(super) is_there: bool,
    /// How often each may still happen.
    pub(super) restarts: u8,
    pub(super) failures: u8,
    pub(super) withdrawals: u8,
}

impl Known {
    pub(super) fn new(mistake: Mistake) -> Self {
        Self {
            mistake,
            all: Mutex::default(),
        }
    }

    pub(super) fn record(&self, number: Number) -> Record {
        self.all.lock().unwrap().records[usize::from(number)].clone()
    }

    /// The table of a record.
    pub(super) fn table(&self, record: Number) -> Option<Number> {
        self.all.lock().unwrap().table_of[usize::from(record)]
    }

    /// Places of the versions that a table gives a share.
    pub(super) fn weighted(&self, table: Number) -> Vec<usize> {
        let all = self.all.lock().unwrap();
        let entries = all.tables[usize::from(table)].entries.iter();
        entries.map(|entry| place(entry.id.version)).collect()
    }

    pub(super) fn decisions(&self) -> usize {
        self.all.lock().unwrap().decided.len()
    }

    /// Whether a gateway that has a table may take another one.
    pub(super) fn may_become(&self, table: Number, other: Number) -> bool {
        let all = self.all.lock().unwrap();
        let [table, other] = [table, other].map(|number| &all.tables[usize::from(number)]);
        table.may_become(other)
    }

    /// Whether a record may follow another one, by a rule that is asked once of each pair.
    pub(super) fn may_follow(
        &self,
        pair: [Number; 2],
        rule: impl FnOnce(&Record, &Record) -> bool,
    ) -> bool {
        let mut all = self.all.lock().unwrap();
        if let Some(known) = all.followed.get(&(pair[0], pair[1])) {
            return *known;
        }
        let [before, after] = pair.map(|number| &all.records[usize::from(number)]);
        let may = rule(before, after);
        all.followed.insert((pair[0], pair[1]), may);
        may
    }
}

impl All {
    fn record_number(&mut self, record: &Record) -> Number {
        let next = Number::try_from(self.records.len()).unwrap();
        let number = *self
            .record_numbers
            .entry(encode(record).unwrap())
            .or_insert(next);
        if number == next {
            self.records.push(record.clone());
            let table = record
                .routing
                .as_ref()
                .map(|table| self.table_number(table));
            self.table_of.push(table);
        }
        number
    }

    fn table_number(&mut self, table: &Table) -> Number {
        let known = self.tables.iter().position(|known| known == table);
        let number = known.unwrap_or_else(|| {
            self.tables.push(table.clone());
            self.tables.len() - 1
        });
        Number::try_from(number).unwrap()
    }
}

fn place(version: u32) -> usize {
    usize::try_from(version).unwrap() - 1
}

/// One step in the middle, which ends as soon as it may.
fn quick() -> Plan {
    let mut quick = plan();
    quick.steps = vec![StepPlan {
        weight_percent: 50,
        bake_ms: 0,
        max_wait_ms: 600_000,
    }];
    quick.promote = Promote::NoBreach;
    quick.final_bake_ms = 0;
    quick.limits.ttft_p95_ms = None;
    quick.limits.min_requests = 10;
    quick
}

fn specs(is_there: bool) -> Vec<VersionSpec> {
    let verified = |version| VersionSpec {
        verification: Verification::Verified,
        ..spec(version, Stage::Production, &quick())
    };
    let mut specs = vec![verified(1)];
    specs.extend(is_there.then(|| verified(2)));
    specs
}

impl World {
    /// Version 1 serves, and there is an object of version 2.
    pub(super) fn new(known: &Known, scope: Scope) -> Self {
        let mut record = Record::empty().successor(NOW_MS);
        record.stable = Some(id(1));
        record.routing = Some(Table::all_to(TableOrder::new(1, 1), id(1)));
        let number = known.all.lock().unwrap().record_number(&record);
        let table = known.table(number).unwrap();
        let first = Child {
            desired: 1,
            existing: 1,
            ready: 1,
            stamp: record.stamp,
        };
        let gateway = Gateway {
            table,
            kept: table,
            seen: table,
        };
        Self {
            log: vec![number],
            children: [Some(first), None],
            gateways: [gateway.clone(), gateway],
            held: None,
            behind: None,
            is_worse: false,
            is_there: true,
            restarts: scope.restarts,
            failures: scope.failures,
            withdrawals: scope.withdrawals,
        }
    }

    pub(super) fn head(&self, known: &Known) -> Record {
        known.record(*self.log.last().unwrap())
    }

    pub(super) fn child(&mut self, of: usize) -> &mut Child {
        self.children[of].as_mut().unwrap()
    }

    /// What an operator that looks now would write: one that sees what is, or the slow one.
    pub(super) fn decides(&self, known: &Known, is_slow: bool) -> Vec<Todo> {
        let old = self.behind.as_ref().filter(|_| is_slow);
        let table = |at: usize| match old {
            Some(_) => self.gateways[at].seen,
            None => self.gateways[at].table,
        };
        let situation = Situation {
            log: self.log.clone(),
            children: old.unwrap_or(&self.children).clone(),
            tables: [0, 1].map(table),
            is_worse: self.is_worse,
            is_there: self.is_there,
        };
        let mut all = known.all.lock().unwrap();
        if let Some(todo) = all.decided.get(&situation) {
            return todo.clone();
        }
        let todo = situation.decide(&mut all, known.mistake);
        all.decided.insert(situation, todo.clone());
        todo
    }

    /// Carries out a write, unless what it is conditional on refuses it.
    pub(super) fn write(&mut self, known: &Known, todo: &Todo) {
        let may_change = |child: &Option<Child>, stamp: Stamp| {
            child.as_ref().is_none_or(|child| child.stamp <= stamp)
                || known.mistake == Mistake::IgnoresStamps
        };
        match *todo {
            Todo::Append { record, after } => {
                if known.mistake == Mistake::Overwrites {
                    self.log.truncate(after);
                }
                if self.log.len() == after {
                    self.log.push(record);
                }
            }
            // There is no plan to make a worker of without the object.
            Todo::Scale { of: 1, .. } if self.children[1].is_none() && !self.is_there => {}
            Todo::Scale {
                of,
                replicas,
                stamp,
            } => {
                if may_change(&self.children[of], stamp) {
                    let child = self.children[of].get_or_insert(Child {
                        desired: 0,
                        existing: 0,
                        ready: 0,
                        stamp,
                    });
                    (child.desired, child.stamp) = (replicas, stamp);
                }
            }
            Todo::Sweep { of, stamp } => {
                if may_change(&self.children[of], stamp) {
                    self.children[of] = None;
                }
            }
        }
    }

    /// The slow operator's view of children and gateways stays as it is now.
    pub(super) fn falls_behind(&mut self) {
        self.behind = Some(self.children.clone());
    }

    pub(super) fn take(&mut self, known: &Known, at: usize, table: Number) {
        let gateway = &mut self.gateways[at];
        gateway.kept = match known.mistake {
            Mistake::AcknowledgesFirst => gateway.table,
            _ => table,
        };
        gateway.table = table;
    }

    /// Makes states equal that differ in nothing.
    pub(super) fn settle(&mut self) {
        if self.behind.is_none() {
            for gateway in &mut self.gateways {
                gateway.seen = gateway.table;
            }
        }
        self.gateways.sort();
    }
}

impl Situation {
    fn decide(&self, all: &mut All, mistake: Mistake) -> Vec<Todo> {
        let records = self.log.iter();
        let mut log: Vec<Record> = records
            .map(|number| all.records[usize::from(*number)].clone())
            .collect();
        if let (Mistake::ForgetsRejected, Some(head)) = (mistake, log.last_mut()) {
            head.rejected.clear();
        }
        let (specs, observation) = (specs(self.is_there), self.observe(all, &log, mistake));
        let mut decision = decide(&Input {
            log: &log,
            specs: &specs,
            observation: &observation,
            now_ms: NOW_MS,
        });
        if let Some(record) = &mut decision.record {
            let gives_all = |table: &Table| table.entries.iter().all(|of| of.id.version == 2);
            let is_given = record.routing.as_ref().is_some_and(gives_all);
            if mistake == Mistake::MovesPointer && is_given && record.attempt.is_some() {
                record.rollback_to = Some(id(2));
            }
            let record = all.record_number(record);
            let after = self.log.len();
            return vec![Todo::Append { record, after }];
        }
        let head = log.last().unwrap().stamp;
        let writes = decision
            .effects
            .into_iter()
            .filter_map(|effect| match effect {
                Effect::Scale {
                    id,
                    replicas,
                    stamp,
                } => Some(Todo::Scale {
                    of: place(id.version),
                    replicas,
                    stamp,
                }),
                Effect::Sweep(id) => Some(Todo::Sweep {
                    of: place(id.version),
                    stamp: head,
                }),
                // A table reaches a gateway late, twice or never; any in the log may arrive at any time.
                Effect::Push { .. }
                | Effect::Verify(_)
                | Effect::AcquireLease(_)
                | Effect::ReleaseLease => None,
            });
        writes.collect()
    }

    fn observe(&self, all: &All, log: &[Record], mistake: Mistake) -> Observation {
        let children = self.children.iter().enumerate();
        let replicas: Vec<ReplicaView> = children
            .filter_map(|(at, child)| Some(view(at, child.as_ref()?, mistake)))
            .collect();
        let known: BTreeMap<String, u32> = replicas
            .iter()
            .map(|view| (view.id.digest.clone(), view.ready))
            .collect();
        let head = log.last().and_then(|head| head.routing.as_ref());
        let gateways = self.tables.iter().enumerate().map(|(at, table)| {
            let table = match mistake {
                Mistake::TakesAcknowledgement => head,
                _ => Some(&all.tables[usize::from(*table)]),
            };
            GatewayView {
                name: at.to_string(),
                is_reachable: true,
                seen: table.map_or(Seen::Nothing, |table| Seen::Applied {
                    order: table.order,
                    age_ms: 1_000,
                }),
                known: known.clone(),
            }
        });
        let withdrawn = (!self.is_there).then(|| Withdrawn {
            id: id(2),
            absent_ms: 60_000,
        });
        Observation {
            wanted: 1,
            capacity: 2,
            occupancy_percent: 40,
            lease: Lease::Free,
            gateways: gateways.collect(),
            replicas,
            evidence: self.evidence(all),
            shadow: ShadowCounts::default(),
            requests: Vec::new(),
            withdrawn: withdrawn.into_iter().collect(),
            entropy: [9; 32],
        }
    }

    /// Two hundred runs under each table that a gateway has, and of version 2 most of them bad once it is worse.
    fn evidence(&self, all: &All) -> Ledger {
        let mut ledger = Ledger::default();
        for (at, table) in self.tables.iter().enumerate() {
            let table = &all.tables[usize::from(*table)];
            let entries = table.entries.iter().map(|entry| {
                let runs = u64::from(2 * entry.weight);
                let is_bad = self.is_worse && entry.id.version == 2;
                let bad = if is_bad { runs * 3 / 4 } else { 0 };
                let counts = Counts {
                    assigned: runs,
                    failed_so_far: bad,
                    errors: Judged { runs, bad },
                    ..Counts::default()
                };
                let key = EntryKey {
                    table: table.order,
                    attempt: table.attempt.clone().unwrap_or_default(),
                    digest: entry.id.digest.clone(),
                };
                (key, counts)
            });
            let snapshot = Snapshot {
                gateway: at.to_string(),
                boot: "1".to_owned(),
                sequence: 1,
                entries: entries.collect(),
            };
            ledger.merge(&snapshot).unwrap();
        }
        ledger
    }
}

fn view(at: usize, child: &Child, mistake: Mistake) -> ReplicaView {
    let ready = match mistake {
        Mistake::TakesReadiness => child.desired,
        _ => child.ready,
    };
    ReplicaView {
        id: id(u32::try_from(at).unwrap() + 1),
        desired: child.desired,
        existing: child.existing,
        ready,
        stamp: child.stamp,
        live_runs: 0,
        is_drain_over: true,
        exits: 0,
        start_failures: 0,
        short_ms: 0,
        none_ready_ms: 0,
    }
}
