use weir_rollout::decide::{Action, Stage, Verification};
use weir_rollout::evidence::{Counts, EntryKey};
use weir_rollout::{Limits, OnBreach, Phase, Plan, Policy, Promote, Reserve, StepPlan};

use super::super::Rollouts;
use super::*;

/// A machine whose workers do at once what they are told.
struct Machine {
    data: tempfile::TempDir,
    rollouts: Rollouts,
    seen: ModelSeen,
    clock: Clock,
    counts: BTreeMap<EntryKey, Counts>,
    sequence: u64,
}

fn version(number: u32) -> VersionSpec {
    VersionSpec {
        id: VersionId::new(number, format!("sha256:{number:02}")),
        spec_hash: format!("spec-{number}"),
        stage: Stage::Production,
        verification: Verification::Verified,
        plan: Plan {
            shadow: None,
            steps: [10, 50]
                .map(|weight_percent| StepPlan {
                    weight_percent,
                    bake_ms: 5_000,
                    max_wait_ms: 600_000,
                })
                .to_vec(),
            limits: Limits {
                error_rate_ppm: 10_000,
                ttft_p95_ms: None,
                inter_token_p95_ms: None,
                min_requests: 20,
                false_alarm_ppm: 10_000,
                promote_risk_ppm: 50_000,
            },
            on_no_data: Policy::Hold,
            on_inconclusive: Policy::Hold,
            on_breach: OnBreach::Rollback,
            promote: Promote::NoBreach,
            final_bake_ms: 5_000,
            reserve: Reserve::One,
            downtime: false,
            progress_deadline_ms: 600_000,
        },
    }
}

impl Machine {
    fn new(specs: Vec<VersionSpec>) -> Self {
        let data = tempfile::tempdir().unwrap();
        Self {
            rollouts: Rollouts::open(data.path()).unwrap(),
            data,
            seen: ModelSeen {
                specs,
                pool: "p".to_owned(),
                wanted: 1,
                ..ModelSeen::default()
            },
            clock: Clock {
                now: Instant::now(),
                wall_ms: 1_000_000,
            },
            counts: BTreeMap::new(),
            sequence: 0,
        }
    }

    /// A look, and the workers' answer to it. `failing` are runs in a hundred of each version that fail.
    fn look(&mut self, runs: u64, failing: &dyn Fn(u32) -> u64) {
        self.serve(runs, failing);
        self.sequence += 1;
        let snapshot = Snapshot {
            gateway: "local".to_owned(),
            boot: "1".to_owned(),
            sequence: self.sequence,
            entries: self.counts.clone().into_iter().collect(),
        };
        let rollout = self
            .rollouts
            .step("m", &self.seen, Some(&snapshot), self.clock)
            .unwrap();
        let replicas = rollout
            .desired()
            .into_iter()
            .filter(|(_, desired)| *desired > 0);
        self.seen.replicas = replicas
            .map(|(id, desired)| {
                (
                    id,
                    ReplicasSeen {
                        existing: desired,
                        ready: desired,
                        ..ReplicasSeen::default()
                    },
                )
            })
            .collect();
        self.acknowledge();
        self.clock.now += Duration::from_millis(500);
        self.clock.wall_ms += 500;
    }

    /// The gateway follows the newest table.
    fn acknowledge(&mut self) {
        let order = self
            .rollouts
            .of("m")
            .and_then(Rollout::table)
            .map(|table| table.order);
        let half = Duration::from_millis(500);
        self.seen.acknowledged = order.map(|order| match self.seen.acknowledged {
            Some((same, age)) if same == order => (order, age + half),
            _ => (order, Duration::ZERO),
        });
    }

    /// Runs that the table gives to each version, settled at once.
    fn serve(&mut self, runs: u64, failing: &dyn Fn(u32) -> u64) {
        let Some(table) = self.rollouts.of("m").and_then(Rollout::table).cloned() else {
            return;
        };
        for share in &table.entries {
            let key = EntryKey {
                table: table.order,
                attempt: table.attempt.clone().unwrap_or_default(),
                digest: share.id.digest.clone(),
            };
            let counts = self.counts.entry(key).or_default();
            for n in 0..runs * u64::from(share.weight) / 100 {
                let is_bad = n % 100 < failing(share.id.version);
                counts.assigned += 1;
                counts.failed_so_far += u64::from(is_bad);
                counts.errors.record(is_bad);
            }
        }
    }

    fn until(
        &mut self,
        what: &str,
        runs: u64,
        failing: &dyn Fn(u32) -> u64,
        holds: impl Fn(&Rollout) -> bool,
    ) {
        for _ in 0..2_000 {
            self.look(runs, failing);
            if self.rollouts.of("m").is_some_and(&holds) {
                return;
            }
        }
        panic!(
            "never: {what}; {:?}",
            self.rollouts.of("m").and_then(Rollout::head)
        );
    }

    fn head(&self) -> &Record {
        self.rollouts.of("m").unwrap().head().unwrap()
    }
}

fn is_stable(version: u32) -> impl Fn(&Rollout) -> bool {
    move |rollout| {
        let head = rollout.head();
        head.is_some_and(|head| {
            head.stable.as_ref().is_some_and(|id| id.version == version)
                && head.phase() == Phase::Idle
        })
    }
}

const HEALTHY: &dyn Fn(u32) -> u64 = &|_| 0;

#[test]
fn a_first_version_serves_as_soon_as_it_is_ready_and_a_better_one_follows_in_steps() {
    let mut machine = Machine::new(vec![version(1)]);
    machine.until("version 1 serves", 0, HEALTHY, is_stable(1));
    assert!(
        machine.sequence <= 4,
        "{} looks until the first version served",
        machine.sequence
    );
    machine.seen.specs.push(version(2));
    machine.until("10 percent", 100, HEALTHY, |rollout| {
        rollout.table().unwrap().weight("sha256:02") == 10
    });
    machine.until("50 percent", 100, HEALTHY, |rollout| {
        rollout.table().unwrap().weight("sha256:02") == 50
    });
    machine.until("version 2 serves", 100, HEALTHY, is_stable(2));
    assert_eq!(machine.head().rollback_to.as_ref().unwrap().version, 1);
    assert_eq!(
        machine.rollouts.of("m").unwrap().desired()[&version(1).id],
        1,
        "the version before stays warm"
    );
}

#[test]
fn a_worse_version_is_taken_back_for_good_and_a_restart_remembers() {
    let mut machine = Machine::new(vec![version(1)]);
    machine.until("version 1 serves", 0, HEALTHY, is_stable(1));
    machine.seen.specs.push(version(2));
    let failing: &dyn Fn(u32) -> u64 = &|version| if version == 2 { 60 } else { 0 };
    machine.until("taken back", 1_000, failing, |rollout| {
        rollout
            .head()
            .is_some_and(|head| !head.rejected.is_empty() && head.phase() == Phase::Idle)
    });
    let head = machine.head().clone();
    assert_eq!(head.stable.as_ref().unwrap().version, 1);
    assert_eq!(head.routing.as_ref().unwrap().weight("sha256:01"), 100);
    machine.rollouts = Rollouts::open(machine.data.path()).unwrap();
    for _ in 0..20 {
        machine.look(100, HEALTHY);
    }
    assert_eq!(*machine.head(), head, "nothing new is decided");
}

#[test]
fn people_pause_and_promote() {
    let mut machine = Machine::new(vec![version(1)]);
    machine.until("version 1 serves", 0, HEALTHY, is_stable(1));
    machine.seen.specs.push(version(2));
    machine.until("10 percent", 100, HEALTHY, |rollout| {
        rollout.table().unwrap().weight("sha256:02") == 10
    });
    let attempt = machine.head().attempt.as_ref().unwrap().id.clone();
    let ask = |id: &str, action| Request {
        id: id.to_owned(),
        action,
        version: 2,
        attempt: Some(attempt.clone()),
        step: None,
    };
    assert!(machine.rollouts.ask("m", ask("1", Action::Pause)));
    for _ in 0..100 {
        machine.look(100, HEALTHY);
    }
    assert!(machine.head().paused);
    assert_eq!(
        machine.head().routing.as_ref().unwrap().weight("sha256:02"),
        10
    );
    assert!(machine.rollouts.ask("m", ask("2", Action::Resume)));
    machine.look(0, HEALTHY);
    machine.look(0, HEALTHY);
    assert!(!machine.head().paused);
    assert!(machine.rollouts.ask("m", ask("3", Action::PromoteFull)));
    machine.until("version 2 serves", 0, HEALTHY, is_stable(2));
}

#[test]
fn a_breach_that_cannot_be_recorded_still_takes_new_runs_back() {
    let mut machine = Machine::new(vec![version(1)]);
    machine.until("version 1 serves", 0, HEALTHY, is_stable(1));
    machine.seen.specs.push(version(2));
    machine.until("50 percent", 100, HEALTHY, |rollout| {
        rollout.table().unwrap().weight("sha256:02") == 50
    });
    let folder = machine.data.path().join("rollouts");
    let away = machine.data.path().join("away");
    std::fs::rename(&folder, &away).unwrap();
    let failing: &dyn Fn(u32) -> u64 = &|version| if version == 2 { 100 } else { 0 };
    machine.serve(1_000, failing);
    let snapshot = Snapshot {
        gateway: "local".to_owned(),
        boot: "1".to_owned(),
        sequence: machine.sequence + 1,
        entries: machine.counts.clone().into_iter().collect(),
    };
    let refused = machine
        .rollouts
        .step("m", &machine.seen, Some(&snapshot), machine.clock);
    assert!(refused.is_err());
    let table = machine.rollouts.of("m").unwrap().table().unwrap().clone();
    assert!(table.order.emergency);
    assert_eq!(table.weight("sha256:01"), 100);
    machine.acknowledge();
    machine.sequence += 1;
    std::fs::rename(&away, &folder).unwrap();
    machine.until("the record follows", 0, HEALTHY, |rollout| {
        rollout
            .head()
            .is_some_and(|head| !head.rejected.is_empty() && head.phase() == Phase::Idle)
    });
}
