//! What must hold after every tick and every record, checked from outside the core.

use std::collections::BTreeMap;

use weir_rollout::decide::{Decision, need, need_in_exchange};
use weir_rollout::record::{Phase, Room};
use weir_rollout::routing::TableOrder;
use weir_rollout::{Record, VersionId};

use crate::gateway::Gateway;
use crate::world::Child;

#[derive(Default)]
pub(crate) struct Checks {
    pub(crate) decisions: u64,
    pub(crate) stale_decisions: u64,
    pub(crate) emergencies: u64,
    pub(crate) rebuilt: u64,
    pub(crate) misrouted: u64,
    /// Edges between phases, and how often they were taken.
    pub(crate) edges: BTreeMap<(Phase, Phase), u64>,
    pub(crate) notes: BTreeMap<String, u64>,
    tables: BTreeMap<TableOrder, Vec<(String, u32)>>,
    orders: BTreeMap<String, TableOrder>,
    /// Whether capacity was taken away by the world, so that replicas are not the core's doing.
    pub(crate) is_exempt: bool,
    passed: Vec<u32>,
}

impl Checks {
    /// Rules of consecutive records.
    pub(crate) fn appended(&mut self, head: &Record, next: &Record, decision: &Decision) {
        *self.edges.entry((head.phase(), next.phase())).or_default() += 1;
        if let Some(note) = &decision.note {
            *self.notes.entry(note.reason.clone()).or_default() += 1;
        }
        if let Some(table) = &next.routing {
            assert_eq!(table.check(), Ok(()));
            for rejected in &next.rejected {
                let is_new = !head.rejected.contains(rejected);
                let is_reverted = next.phase() == Phase::Reverting;
                assert!(
                    !is_new
                        || is_reverted
                        || table.weight(&rejected.id.digest) == 0
                        || next.phase() == Phase::Preparing,
                    "breach, weight 0 and rejection are one record: {next:?}"
                );
            }
        }
        if head.paused && next.paused && head.phase() != Phase::Reverting {
            let target = next
                .attempt
                .as_ref()
                .map(|attempt| attempt.target.digest.clone());
            let weight =
                |record: &Record| target.as_ref().map_or(0, |digest| record.weight(digest));
            assert!(weight(next) <= weight(head), "weight rises while paused");
        }
        self.promotion(head, next);
    }

    /// A table only says what is true already: weight rises to replicas that every live gateway knows, and that carry the stamp
    /// of the record before or a later one, so that no older intent can take them away.
    pub(crate) fn rises(
        head: &Record,
        next: &Record,
        (children, gateways): (&BTreeMap<VersionId, Child>, &[Gateway]),
        [wanted, capacity]: [u32; 2],
    ) {
        let (Some(attempt), Some(table)) = (&head.attempt, &next.routing) else {
            return;
        };
        let weight = table.weight(&attempt.target.digest);
        let is_downtime = attempt.room == Some(Room::Downtime);
        if head.stable.is_none() || is_downtime || weight <= head.weight(&attempt.target.digest) {
            return;
        }
        let whole = if capacity <= wanted {
            (wanted - 1).max(1)
        } else {
            wanted
        };
        for gateway in gateways {
            let known = gateway
                .known
                .get(&attempt.target.digest)
                .copied()
                .unwrap_or(0);
            assert!(
                known >= need_in_exchange(weight, whole),
                "{} knows {known} replicas for {weight} percent",
                gateway.name
            );
        }
        for entry in &table.entries {
            assert!(
                children[&entry.id].stamp >= head.stamp,
                "version {} is not stamped",
                entry.id.version
            );
        }
    }

    /// Promoted: every step was entered in order, or somebody allowed otherwise.
    fn promotion(&mut self, head: &Record, next: &Record) {
        if let Some(attempt) = &next.attempt {
            match attempt.phase {
                Phase::Preparing => self.passed.clear(),
                Phase::Step if self.passed.last() != Some(&attempt.step) => {
                    self.passed.push(attempt.step);
                }
                _ => {}
            }
        }
        let is_promotion = head.phase() == Phase::Final && next.phase() == Phase::Idle;
        if let (true, Some(attempt)) = (is_promotion, &head.attempt) {
            let all: Vec<u32> = (1..=attempt.plan.step_count()).collect();
            assert!(
                self.passed == all || !attempt.overrides.is_empty(),
                "steps passed: {:?}",
                self.passed
            );
            assert!(next.rollback_to.is_none() || next.rollback_to == head.stable);
        }
    }

    pub(crate) fn after_rebuild(&mut self, head: &Record, record: &Record) {
        assert!(record.stamp > head.stamp);
        assert_eq!(record.rejected, head.rejected, "rejections survive");
        assert_eq!(record.paused, head.paused, "a pause survives");
        assert!(record.attempt.is_none());
        self.passed.clear();
    }

    /// Rules of the whole world.
    pub(crate) fn after_tick(
        &mut self,
        log: &[Record],
        children: &BTreeMap<VersionId, Child>,
        gateways: &[Gateway],
        wanted: u32,
        capacity: u32,
    ) {
        assert_eq!(
            self.misrouted, 0,
            "a run went to a version without worker while another had one"
        );
        for record in log {
            let Some(table) = &record.routing else {
                continue;
            };
            let shares: Vec<(String, u32)> = table
                .entries
                .iter()
                .map(|entry| (entry.id.digest.clone(), entry.weight))
                .collect();
            let known = self
                .tables
                .entry(table.order)
                .or_insert_with(|| shares.clone());
            assert_eq!(*known, shares, "equal numbers are equal tables");
        }
        let head = log.last();
        let room = head
            .and_then(|head| head.attempt.as_ref())
            .and_then(|attempt| attempt.room);
        // A breach sends everything back at once, in a pool without room for all of both to what is left of stable.
        let is_thrown_back = matches!(room, Some(Room::Reduced | Room::Surge))
            && head.is_some_and(|head| head.phase() == Phase::RollingBack);
        for gateway in gateways {
            let Some(table) = &gateway.table else {
                continue;
            };
            let before = self.orders.insert(gateway.name.clone(), table.order);
            assert!(
                before.is_none_or(|before| before <= table.order),
                "a gateway's table only grows"
            );
            let is_exempt = self.is_exempt || is_thrown_back || room == Some(Room::Downtime);
            if is_exempt || table.order.emergency {
                continue;
            }
            // In a pool without any spare replica one less carries the load while versions are exchanged.
            let whole = if capacity <= wanted {
                (wanted - 1).max(1)
            } else {
                wanted
            };
            for entry in &table.entries {
                let has = children.get(&entry.id).map_or(0, |child| child.desired);
                let need = if capacity < 2 * wanted {
                    need_in_exchange
                } else {
                    need
                };
                assert!(
                    has >= need(entry.weight, whole),
                    "{} runs {} percent on {has} replicas: {head:#?}",
                    gateway.name,
                    entry.weight
                );
            }
        }
        let Some(head) = head else { return };
        if room == Some(Room::Beside)
            && !self.is_exempt
            && matches!(head.phase(), Phase::Step | Phase::Final | Phase::Shadow)
        {
            let stable = head.stable.as_ref().and_then(|stable| children.get(stable));
            assert!(
                stable.is_some_and(|child| child.desired >= wanted),
                "stable shrank first"
            );
        }
    }
}
