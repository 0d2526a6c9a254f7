//! A log that was lost or cut: what witnesses still know.

use super::{Record, Rejected};
use crate::routing::{Table, TableOrder};
use crate::{Stamp, VersionId};

/// What is still known when the newest records are gone.
#[derive(Clone, Debug, Default)]
pub struct Witnesses {
    /// The newest record that is left, if any.
    pub newest: Option<Record>,
    /// Tables that live gateways report.
    pub tables: Vec<Table>,
    /// Labels of children.
    pub children: Vec<ChildWitness>,
    /// Stable and rollback version as the status objects say.
    pub status: Option<(VersionId, Option<VersionId>)>,
    /// Rejections as the status objects say.
    pub rejected: Vec<Rejected>,
    /// Whether a status object says that a person paused it.
    pub paused: bool,
    /// Verified versions of stage Production that have a ready replica.
    pub ready_production: Vec<VersionId>,
}

/// A child, by its labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildWitness {
    /// The version it runs.
    pub id: VersionId,
    /// The record that ordered its size.
    pub stamp: Stamp,
    /// Whether that record called it the stable version.
    pub is_stable: bool,
    /// Whether that record called it the rollback version.
    pub is_rollback: bool,
}

impl Witnesses {
    /// Whether somebody knows a newer record than the newest one that is left: then the log lost its head. Tables tell by
    /// their order, children by their stamp.
    pub fn contradict(&self, head: &Record) -> bool {
        let order = head.routing.as_ref().map(|table| table.order);
        let recorded = |table: &&Table| !table.order.emergency;
        let newer_table = self
            .tables
            .iter()
            .filter(recorded)
            .any(|t| Some(t.order) > order);
        newer_table || self.children.iter().any(|child| child.stamp > head.stamp)
    }

    fn highest_table(&self) -> Option<&Table> {
        self.tables.iter().max_by_key(|table| table.order)
    }

    /// Stable and rollback version: from the highest table of a live gateway, else from labels, else from status, else the
    /// newest record left, else the highest ready Production version.
    fn pointers(&self) -> Option<(VersionId, Option<VersionId>)> {
        let newest = |wanted: fn(&ChildWitness) -> bool| {
            let children = self.children.iter().filter(|child| wanted(child));
            let newest = children.max_by_key(|child| (child.stamp, child.id.version));
            newest.map(|child| child.id.clone())
        };
        let recorded = || {
            let record = self.newest.as_ref()?;
            Some((record.stable.clone()?, record.rollback_to.clone()))
        };
        let labelled = || Some((newest(|c| c.is_stable)?, newest(|c| c.is_rollback)));
        let stable = self
            .highest_table()
            .map(|table| table.stable.clone())
            .or_else(|| newest(|c| c.is_stable))
            .or_else(|| self.status.as_ref().map(|(stable, _)| stable.clone()))
            .or_else(|| recorded().map(|(stable, _)| stable))
            .or_else(|| self.ready_production.iter().max().cloned())?;
        // During an attempt a table's rollback version is stable itself: then the next witness who agrees on stable is asked.
        let in_table = self
            .highest_table()
            .and_then(|table| table.rollback.clone());
        let others = [labelled(), self.status.clone(), recorded()];
        let agreed = others
            .into_iter()
            .flatten()
            .filter(|(other, _)| *other == stable);
        let rollback = in_table
            .into_iter()
            .chain(agreed.filter_map(|(_, rollback)| rollback))
            .find(|rollback| *rollback != stable);
        Some((stable, rollback))
    }
}

/// A first record of a new epoch. A canary is back at weight 0 and starts a new attempt; nothing may be scaled down before
/// gateways acknowledged the new table, which the guards of decisions see to.
pub fn rebuild(witnesses: &Witnesses, now_ms: u64) -> Record {
    let newest = witnesses.newest.clone().unwrap_or_else(Record::empty);
    let table_epochs = witnesses.tables.iter().map(|table| table.order.epoch);
    let child_epochs = witnesses.children.iter().map(|child| child.stamp.epoch);
    let epochs = table_epochs.chain(child_epochs).chain([newest.stamp.epoch]);
    let epoch = 1 + epochs.max().unwrap_or(0);
    let pointers = witnesses.pointers();
    let stable = pointers.as_ref().map(|(stable, _)| stable.clone());
    let rollback_to =
        pointers.and_then(|(stable, rollback)| rollback.filter(|rollback| *rollback != stable));
    let mut rejected = newest.rejected;
    for rejection in &witnesses.rejected {
        let same = |r: &Rejected| r.id == rejection.id && r.spec_hash == rejection.spec_hash;
        if !rejected.iter().any(same) {
            rejected.push(rejection.clone());
        }
    }
    let routing = stable.clone().map(|stable| Table {
        rollback: rollback_to.clone(),
        ..Table::all_to(TableOrder::new(epoch, 1), stable)
    });
    let mut record = Record {
        stamp: Stamp { epoch, revision: 1 },
        at_ms: now_ms.max(newest.at_ms),
        stable,
        rollback_to,
        rejected,
        paused: newest.paused || witnesses.paused,
        reserve: newest.reserve,
        promoted_at_ms: now_ms,
        handled_requests: newest.handled_requests,
        history: newest.history,
        routing,
        ..Record::empty()
    };
    record.bound();
    record
}
