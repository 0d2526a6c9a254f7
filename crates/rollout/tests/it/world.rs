//! Pods, gateways, a log with compare-and-swap, and operators that carry out what the core decides.

use std::collections::BTreeMap;

use weir_rollout::decide::{
    Decision, GatewayView, Lease, Observation, ReplicaView, Request, Seen, VersionSpec, Withdrawn,
};
use weir_rollout::evidence::{Ledger, Snapshot};
use weir_rollout::record::Phase;
use weir_rollout::statistics::ShadowCounts;
use weir_rollout::{Record, Stamp, VersionId};

use crate::checks::Checks;
use crate::gateway::Gateway;
use crate::random::Random;
use crate::setup::{Behaviour, TICK_MS};

pub(crate) struct Pod {
    ready_tick: u64,
    ends_tick: Option<u64>,
}

#[derive(Default)]
pub(crate) struct Child {
    pub(crate) desired: u32,
    pub(crate) stamp: Stamp,
    pub(crate) pods: Vec<Pod>,
    pub(crate) exits: u32,
    start_failures: u32,
    short_since: Option<u64>,
    none_since: Option<u64>,
    drain_since: Option<u64>,
    live: Vec<(u64, u64)>,
}

impl Child {
    fn ready(&self, tick: u64) -> u32 {
        let ready = self
            .pods
            .iter()
            .filter(|pod| pod.ends_tick.is_none() && pod.ready_tick <= tick);
        u32::try_from(ready.count()).unwrap()
    }

    pub(crate) fn existing(&self) -> u32 {
        u32::try_from(self.pods.len()).unwrap()
    }
}

pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) tick: u64,
    pub(crate) clock_back_ms: u64,
    pub(crate) log: Vec<Record>,
    pub(crate) specs: Vec<VersionSpec>,
    pub(crate) deleted: Vec<VersionSpec>,
    pub(crate) behaviours: BTreeMap<String, Behaviour>,
    pub(crate) children: BTreeMap<VersionId, Child>,
    pub(crate) gateways: Vec<Gateway>,
    pub(crate) ledger: Ledger,
    pub(crate) late: Vec<Snapshot>,
    pub(crate) requests: Vec<Request>,
    pub(crate) withdrawn: Vec<(VersionId, u64)>,
    pub(crate) wanted: u32,
    pub(crate) capacity: u32,
    pub(crate) occupancy_percent: u32,
    pub(crate) lease: Lease,
    pub(crate) runs_per_tick: u64,
    pub(crate) is_api_away: bool,
    pub(crate) has_lag: bool,
    pub(crate) shadow: ShadowCounts,
    /// What the second operator saw some ticks ago.
    pub(crate) stale: Option<(Vec<Record>, Observation)>,
    pub(crate) pending_stale: Option<(u64, (Vec<Record>, Observation))>,
    pub(crate) last: Option<Decision>,
    pub(crate) checks: Checks,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
            tick: 0,
            clock_back_ms: 0,
            log: Vec::new(),
            specs: Vec::new(),
            deleted: Vec::new(),
            behaviours: BTreeMap::new(),
            children: BTreeMap::new(),
            gateways: (0..2).map(Gateway::new).collect(),
            ledger: Ledger::default(),
            late: Vec::new(),
            requests: Vec::new(),
            withdrawn: Vec::new(),
            wanted: 2,
            capacity: 8,
            occupancy_percent: 40,
            lease: Lease::Free,
            runs_per_tick: 200,
            is_api_away: false,
            has_lag: false,
            shadow: ShadowCounts::default(),
            stale: None,
            pending_stale: None,
            last: None,
            checks: Checks::default(),
        }
    }

    pub(crate) fn head(&self) -> Record {
        self.log.last().cloned().unwrap_or_else(Record::empty)
    }

    pub(crate) fn phase(&self) -> Phase {
        self.head().phase()
    }

    pub(crate) fn behaviour(&self, digest: &str) -> Behaviour {
        self.behaviours
            .get(digest)
            .copied()
            .unwrap_or(Behaviour::HEALTHY)
    }

    fn ready(&self) -> BTreeMap<String, u32> {
        let ready = |(id, child): (&VersionId, &Child)| (id.digest.clone(), child.ready(self.tick));
        self.children.iter().map(ready).collect()
    }

    /// One step of everything.
    pub(crate) fn step(&mut self) {
        self.tick += 1;
        self.run_pods();
        self.run_gateways();
        self.run_shadow();
        self.operate();
        self.checks.after_tick(
            &self.log,
            &self.children,
            &self.gateways,
            self.wanted,
            self.capacity,
        );
    }

    fn run_pods(&mut self) {
        let tick = self.tick;
        let mut total: u32 = self.children.values().map(Child::existing).sum();
        let head = self.head();
        for (id, child) in &mut self.children {
            let behaviour = self
                .behaviours
                .get(&id.digest)
                .copied()
                .unwrap_or(Behaviour::HEALTHY);
            let before = child.existing();
            child
                .pods
                .retain(|pod| pod.ends_tick.is_none_or(|at| at > tick));
            total -= before - child.existing();
            for pod in &mut child.pods {
                if pod.ready_tick <= tick && self.random.ppm(behaviour.exits_ppm) {
                    child.exits += 1;
                    pod.ready_tick = tick + 1;
                } else if behaviour.starts_for_ever {
                    pod.ready_tick = tick + 1;
                } else if !behaviour.can_start && pod.ready_tick <= tick {
                    child.start_failures += 1;
                    pod.ready_tick = tick + 1;
                }
            }
            let mut living = child
                .pods
                .iter()
                .filter(|pod| pod.ends_tick.is_none())
                .count();
            while living < child.desired as usize && total < self.capacity {
                let start = 2 + self.random.below(3);
                child.pods.push(Pod {
                    ready_tick: tick + start,
                    ends_tick: None,
                });
                (living, total) = (living + 1, total + 1);
            }
            for pod in child.pods.iter_mut().filter(|pod| pod.ends_tick.is_none()) {
                if living > child.desired as usize {
                    pod.ends_tick = Some(tick + 1);
                    living -= 1;
                }
            }
            child.live.retain(|(ends, _)| *ends > tick);
            let ready = child.ready(tick);
            let need = weir_rollout::decide::need(head.weight(&id.digest), self.wanted);
            let since = |flag: bool, old: Option<u64>| flag.then(|| old.unwrap_or(tick));
            child.short_since = since(ready < need, child.short_since);
            child.none_since = since(ready == 0, child.none_since);
            child.drain_since = since(head.weight(&id.digest) == 0, child.drain_since);
        }
    }

    fn run_gateways(&mut self) {
        let ready = self.ready();
        let tick = self.tick;
        let behaviours = self.behaviours.clone();
        let behave = |digest: &str| {
            behaviours
                .get(digest)
                .copied()
                .unwrap_or(Behaviour::HEALTHY)
        };
        for index in 0..self.gateways.len() {
            let lags = self.has_lag && self.random.chance(30);
            let gateway = &mut self.gateways[index];
            gateway.receive(tick);
            if !lags && !gateway.is_deaf {
                gateway.known.clone_from(&ready);
            }
            let served = gateway.serve(tick, self.runs_per_tick, &ready, &behave, &mut self.random);
            self.checks.misrouted += served.misrouted;
            for (digest, runs) in served.by_digest {
                let child = self.children.iter_mut().find(|(id, _)| id.digest == digest);
                if let Some((_, child)) = child {
                    let lasts = 1 + self.random.below(2);
                    child.live.push((tick + lasts, runs));
                }
            }
            let gateway = &mut self.gateways[index];
            if gateway.is_reachable {
                gateway.heard = gateway.seen(tick);
                self.report(index);
            }
        }
    }

    /// A snapshot arrives at once, late, twice or never.
    fn report(&mut self, index: usize) {
        let snapshot = self.gateways[index].snapshot();
        let fate = if self.has_lag {
            self.random.below(10)
        } else {
            0
        };
        if self.has_lag && !self.late.is_empty() && self.random.chance(30) {
            let late = self.late.swap_remove(0);
            self.ledger.merge(&late).unwrap();
        }
        match fate {
            0..=5 => self.ledger.merge(&snapshot).unwrap(),
            6 | 7 => self.late.push(snapshot),
            8 => {
                self.ledger.merge(&snapshot).unwrap();
                self.ledger.merge(&snapshot).unwrap();
            }
            _ => {}
        }
    }

    fn run_shadow(&mut self) {
        let head = self.head();
        let Some(mirror) = head.mirror else {
            self.shadow = ShadowCounts::default();
            return;
        };
        let behaviour = self.behaviour(&mirror.target.digest);
        let pairs = (self.runs_per_tick * u64::from(mirror.percent) / 100).max(1);
        for _ in 0..pairs {
            let failed = self.random.ppm(behaviour.errors_ppm);
            self.shadow.pairs += 1;
            self.shadow.errors.record(failed);
            self.shadow.output[0] += u64::from(failed);
        }
    }

    pub(crate) fn observe(&self) -> Observation {
        let tick = self.tick;
        let ms_since = |since: Option<u64>| since.map_or(0, |since| (tick - since) * TICK_MS);
        let view = |(id, child): (&VersionId, &Child)| ReplicaView {
            id: id.clone(),
            desired: child.desired,
            existing: child.existing(),
            ready: child.ready(tick),
            stamp: child.stamp,
            live_runs: child.live.iter().map(|(_, runs)| runs).sum(),
            is_drain_over: ms_since(child.drain_since) > 60_000,
            exits: child.exits,
            start_failures: child.start_failures,
            short_ms: ms_since(child.short_since),
            none_ready_ms: ms_since(child.none_since),
        };
        let gateway = |gateway: &Gateway| GatewayView {
            name: gateway.name.clone(),
            is_reachable: gateway.is_reachable,
            seen: gateway.heard,
            known: gateway.known.clone(),
        };
        Observation {
            wanted: self.wanted,
            capacity: self.capacity,
            occupancy_percent: self.occupancy_percent,
            lease: self.lease.clone(),
            replicas: self.children.iter().map(view).collect(),
            gateways: self.gateways.iter().map(gateway).collect(),
            evidence: self.ledger.clone(),
            shadow: self.shadow.clone(),
            requests: self.requests.clone(),
            withdrawn: self
                .withdrawn
                .iter()
                .filter(|(id, _)| !self.specs.iter().any(|spec| spec.id == *id))
                .map(|(id, since)| Withdrawn {
                    id: id.clone(),
                    absent_ms: (tick - since) * TICK_MS,
                })
                .collect(),
            entropy: [9; 32],
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        1_000_000 + self.tick * TICK_MS - self.clock_back_ms
    }

    /// Steps until `is_done`, at most `limit` times.
    pub(crate) fn until(&mut self, limit: u64, is_done: impl Fn(&Self) -> bool) -> bool {
        for _ in 0..limit {
            if is_done(self) {
                return true;
            }
            self.step();
        }
        is_done(self)
    }

    pub(crate) fn serves(&self, version: u32) -> bool {
        let is_stable = self
            .head()
            .stable
            .is_some_and(|stable| stable.version == version);
        is_stable && self.phase() == Phase::Idle
    }

    pub(crate) fn lose_pods(&mut self, id: &VersionId, down_ticks: u64) {
        if let Some(child) = self.children.get_mut(id) {
            for pod in &mut child.pods {
                pod.ready_tick = self.tick + down_ticks;
            }
        }
    }

    pub(crate) fn lose_one_pod(&mut self, id: &VersionId, down_ticks: u64) {
        let pod = self
            .children
            .get_mut(id)
            .and_then(|child| child.pods.first_mut());
        if let Some(pod) = pod {
            pod.ready_tick = self.tick + down_ticks;
        }
    }

    pub(crate) fn unhear(&mut self) {
        self.ledger = Ledger::default();
        for gateway in &mut self.gateways {
            gateway.heard = Seen::Unknown;
        }
    }
}
