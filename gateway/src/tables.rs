//! Routing tables: which version takes which share of new runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::time::Instant;
use weir_rollout::VersionId;
use weir_rollout::routing::{Table, TableOrder};

use crate::snapshot::ServedVersion;

/// The table that is in force for each model. One is replaced only by a newer one, whatever order they come in.
#[derive(Default)]
pub(crate) struct Tables(RwLock<BTreeMap<String, InForce>>);

/// A table, and since when it is applied.
#[derive(Clone)]
pub(crate) struct InForce {
    pub(crate) table: Arc<Table>,
    pub(crate) since: Instant,
}

impl Tables {
    /// Takes a table if it is newer than the one in force, and answers with the one that is in force then.
    pub(crate) fn offer(&self, model: &str, table: Arc<Table>) -> Arc<Table> {
        let mut all = self.0.write();
        if let Some(mine) = all.get(model)
            && !mine.table.may_become(&table)
        {
            if *mine.table != *table {
                tracing::warn!(model, mine = ?mine.table.order, offered = ?table.order, "an older routing table was left out");
            }
            return Arc::clone(&mine.table);
        }
        if let Err(error) = table.check() {
            tracing::error!(
                model,
                error = &error as &dyn std::error::Error,
                "a broken routing table was left out"
            );
            if let Some(mine) = all.get(model) {
                return Arc::clone(&mine.table);
            }
        }
        let since = Instant::now();
        let kept = Arc::clone(&table);
        all.insert(model.to_owned(), InForce { table, since });
        kept
    }

    pub(crate) fn get(&self, model: &str) -> Option<InForce> {
        self.0.read().get(model).cloned()
    }
}

/// Tables where nothing moves traffic in steps: everything goes to one version, and every change of it is a newer table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SoleTables(BTreeMap<String, Arc<Table>>);

impl SoleTables {
    /// The table that sends everything to `version`: the same as before unless the version changed.
    pub fn all_to(&mut self, version: &ServedVersion) -> Arc<Table> {
        let stable = VersionId::new(version.version, version.digest.clone());
        let before = self.0.get(&version.model);
        if let Some(same) = before.filter(|table| table.stable == stable) {
            return Arc::clone(same);
        }
        let generation = before.map_or(0, |table| table.order.generation) + 1;
        let table = Arc::new(Table::all_to(TableOrder::new(1, generation), stable));
        self.0.insert(version.model.clone(), Arc::clone(&table));
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(generation: u64, version: u32) -> Arc<Table> {
        let stable = VersionId::new(version, format!("sha256:{version}"));
        Arc::new(Table::all_to(TableOrder::new(1, generation), stable))
    }

    #[test]
    fn a_table_is_replaced_only_by_a_newer_one() {
        let tables = Tables::default();
        assert!(tables.get("m").is_none());
        assert_eq!(tables.offer("m", table(4, 1)).stable.version, 1);
        let late = tables.offer("m", table(3, 9));
        assert_eq!(late.stable.version, 1, "it came late");
        let twin = tables.offer("m", table(4, 9));
        assert_eq!(twin.stable.version, 1, "equal numbers mean equal tables");
        assert_eq!(tables.offer("m", table(5, 2)).stable.version, 2);
        let mut broken = Table::clone(&table(6, 3));
        broken.entries[0].weight = 99;
        assert_eq!(tables.offer("m", Arc::new(broken)).stable.version, 2);
        assert_eq!(tables.get("m").unwrap().table.order.generation, 5);
    }
}
