//! Operators: they carry out what the core decides, with fences, and one of them is behind.

use weir_rollout::decide::{Decision, Effect, Lease, Observation, Seen, Verification};
use weir_rollout::record::{ChildWitness, Phase, Witnesses, rebuild};
use weir_rollout::{Input, Record, VersionId, decide};

use crate::checks::Checks;
use crate::world::{Child, World};

impl World {
    /// The operator looks, decides and acts until nothing is left to do in this tick.
    pub(crate) fn operate(&mut self) {
        self.recover();
        self.operate_stale();
        if self.random.chance(20) {
            self.decide_on_nonsense();
        }
        for round in 0.. {
            assert!(round < 20, "decisions do not come to rest: {:?}", self.last);
            let observation = self.observe();
            let decision = self.decide(&observation);
            let again = self.carry_out(&decision);
            self.last = Some(decision);
            if !again {
                break;
            }
        }
    }

    pub(crate) fn decide(&mut self, observation: &Observation) -> Decision {
        let input = Input {
            log: &self.log,
            specs: &self.specs,
            observation,
            now_ms: self.now_ms(),
        };
        let decision = decide(&input);
        self.checks.decisions += 1;
        if self.random.chance(10) {
            assert_eq!(decide(&input), decision, "equal input gives equal output");
        }
        decision
    }

    /// What an operator sees may be wrong in any way: its decision must still keep the rules, which it asserts itself.
    fn decide_on_nonsense(&mut self) {
        let mut seen = self.observe();
        let random = &mut self.random;
        for view in &mut seen.replicas {
            match random.below(6) {
                0 => view.ready = 0,
                1 => view.existing = u32::try_from(random.below(6)).unwrap(),
                2 => view.live_runs = 0,
                3 => view.none_ready_ms = 100_000,
                4 => view.exits = 5,
                _ => {}
            }
        }
        for gateway in &mut seen.gateways {
            match random.below(4) {
                0 => gateway.seen = Seen::Unknown,
                1 => gateway.known.clear(),
                2 => gateway.is_reachable = false,
                _ => {}
            }
        }
        seen.capacity = u32::try_from(random.below(9)).unwrap();
        seen.wanted = u32::try_from(random.below(5)).unwrap();
        let _ = self.decide(&seen);
    }

    /// A second operator that looked some ticks ago: it may win no record and undo no newer child.
    fn operate_stale(&mut self) {
        let Some((log, observation)) = self.stale.take() else {
            return;
        };
        let decision = decide(&Input {
            log: &log,
            specs: &self.specs,
            observation: &observation,
            now_ms: self.now_ms(),
        });
        self.checks.stale_decisions += 1;
        self.carry_out(&decision);
    }

    /// Whether there is more to do in this tick.
    fn carry_out(&mut self, decision: &Decision) -> bool {
        if self.is_api_away {
            self.emergency(decision);
            return false;
        }
        if let Some(record) = &decision.record {
            let head = self.head();
            let is_next = record.stamp.epoch == head.stamp.epoch
                && record.stamp.revision == head.stamp.revision + 1;
            if is_next {
                self.checks.appended(&head, record, decision);
                let seen = (&self.children, self.gateways.as_slice());
                Checks::rises(&head, record, seen, [self.wanted, self.capacity]);
                self.append(record);
            }
            return is_next;
        }
        let mut again = false;
        for effect in &decision.effects {
            again |= self.apply(effect);
        }
        again
    }

    fn append(&mut self, record: &Record) {
        let target = |record: &Record| {
            record
                .attempt
                .as_ref()
                .map(|a| (a.target.clone(), a.phase, a.step))
        };
        let (before, after) = (target(&self.head()), target(record));
        if before != after {
            // Exits are counted per step.
            for child in self.children.values_mut() {
                child.exits = 0;
            }
        }
        let bytes = weir_rollout::record::encode(record).unwrap();
        self.log.push(weir_rollout::record::decode(&bytes).unwrap());
        if self.log.len() > Record::KEPT_IN_LOG {
            self.log.remove(0);
        }
        if let Some(table) = &record.routing {
            self.ledger
                .retire_before(weir_rollout::routing::TableOrder::new(
                    table.order.epoch,
                    table.order.generation.saturating_sub(8),
                ));
        }
    }

    /// With the API server away a breach is answered by the gateways alone.
    fn emergency(&mut self, decision: &Decision) {
        let head = self.head();
        let (Some(next), Some(table)) = (&decision.record, &head.routing) else {
            return;
        };
        if next.phase() != Phase::RollingBack || head.phase() == Phase::RollingBack {
            return;
        }
        if let Some(emergency) = table.emergency() {
            self.checks.emergencies += 1;
            for gateway in self
                .gateways
                .iter_mut()
                .filter(|gateway| gateway.is_reachable)
            {
                gateway.inbox.push((self.tick + 1, emergency.clone()));
            }
        }
    }

    fn apply(&mut self, effect: &Effect) -> bool {
        match effect {
            Effect::Verify(id) => {
                let is_signed = self.behaviour(&id.digest).is_signed;
                for spec in self.specs.iter_mut().filter(|spec| spec.id == *id) {
                    spec.verification = if is_signed {
                        Verification::Verified
                    } else {
                        Verification::Refused("SignatureInvalid".to_owned())
                    };
                }
                true
            }
            Effect::Scale {
                id,
                replicas,
                stamp,
            } => {
                let child = self.children.entry(id.clone()).or_default();
                // The fence: a live read, and never by an older record.
                if child.stamp > *stamp {
                    return false;
                }
                child.desired = *replicas;
                child.stamp = *stamp;
                true
            }
            Effect::Sweep(id) => {
                let stamp = self.head().stamp;
                let is_unused = self.children.get(id).is_some_and(|child| {
                    child.existing() == 0 && child.desired == 0 && child.stamp <= stamp
                });
                if is_unused {
                    self.children.remove(id);
                }
                is_unused
            }
            Effect::Push { table, gateways } => {
                for gateway in self
                    .gateways
                    .iter_mut()
                    .filter(|g| gateways.contains(&g.name))
                {
                    let is_coming = gateway
                        .inbox
                        .iter()
                        .any(|(_, coming)| coming.order == table.order);
                    if gateway.is_reachable && !is_coming {
                        let lag = if self.has_lag {
                            self.random.below(3)
                        } else {
                            0
                        };
                        gateway.inbox.push((self.tick + lag, (**table).clone()));
                    }
                }
                false
            }
            Effect::AcquireLease(_) => {
                self.lease = Lease::Mine;
                true
            }
            Effect::ReleaseLease => {
                self.lease = Lease::Free;
                true
            }
        }
    }

    /// A log whose head is behind what gateways or children know is rebuilt.
    fn recover(&mut self) {
        let head = self.head();
        let witnesses = self.witnesses();
        if self.is_api_away || !witnesses.contradict(&head) {
            return;
        }
        self.checks.rebuilt += 1;
        let record = rebuild(&witnesses, self.now_ms());
        self.checks.after_rebuild(&head, &record);
        self.log.push(record);
    }

    fn witnesses(&self) -> Witnesses {
        let head = self.log.last();
        let child = |(id, child): (&VersionId, &Child)| ChildWitness {
            id: id.clone(),
            stamp: child.stamp,
            is_stable: head.is_some_and(|head| head.stable.as_ref() == Some(id)),
            is_rollback: head.is_some_and(|head| head.rollback_to.as_ref() == Some(id)),
        };
        Witnesses {
            newest: head.cloned(),
            tables: self
                .gateways
                .iter()
                .filter(|gateway| gateway.is_reachable)
                .filter_map(|gateway| gateway.table.clone())
                .collect(),
            children: self.children.iter().map(child).collect(),
            ..Witnesses::default()
        }
    }
}
