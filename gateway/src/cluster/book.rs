//! Routing tables on this gateway's own disk: a table is there before it is applied, so that what was acknowledged is in force after a
//! restart too, whatever the API server says then.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use weir_rollout::routing::Table;

/// The newest table of each model.
pub(super) struct Book {
    path: PathBuf,
    tables: Mutex<BTreeMap<String, Table>>,
}

impl Book {
    /// Reads what was kept; what cannot be read is not kept.
    pub(super) fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let path = folder.join("tables.json");
        let kept = fs::read(&path).unwrap_or_default();
        let kept = serde_json::from_slice(&kept).unwrap_or_else(|error| {
            if !kept.is_empty() {
                tracing::warn!(%error, "the routing tables that were kept cannot be read; they are taken from the cluster");
            }
            BTreeMap::new()
        });
        Ok(Self {
            path,
            tables: Mutex::new(kept),
        })
    }

    /// Takes tables that are newer than those it has, and keeps them before it answers; whether there were any.
    pub(super) fn offer(
        &self,
        offered: impl IntoIterator<Item = (String, Table)>,
    ) -> io::Result<bool> {
        let mut tables = self.tables.lock();
        let mut next = tables.clone();
        for (model, table) in offered {
            let is_newer = next.get(&model).is_none_or(|mine| mine.may_become(&table));
            match table.check() {
                Ok(()) if is_newer => drop(next.insert(model, table)),
                Ok(()) => {}
                Err(error) => tracing::error!(
                    model,
                    error = &error as &dyn std::error::Error,
                    "a broken routing table was left out"
                ),
            }
        }
        if next == *tables {
            return Ok(false);
        }
        let partial = self.path.with_extension("partial");
        let mut file = File::create(&partial)?;
        file.write_all(&serde_json::to_vec(&next)?)?;
        file.sync_all()?;
        fs::rename(&partial, &self.path)?;
        if let Some(folder) = self.path.parent() {
            File::open(folder)?.sync_all()?;
        }
        *tables = next;
        Ok(true)
    }

    /// All of them.
    pub(super) fn all(&self) -> BTreeMap<String, Arc<Table>> {
        let tables = self.tables.lock();
        let shared = |(model, table): (&String, &Table)| (model.clone(), Arc::new(table.clone()));
        tables.iter().map(shared).collect()
    }
}

#[cfg(test)]
mod tests {
    use weir_rollout::VersionId;
    use weir_rollout::routing::TableOrder;

    use super::*;

    fn table(generation: u64, version: u32) -> (String, Table) {
        let stable = VersionId::new(version, format!("sha256:{version}"));
        (
            "m".to_owned(),
            Table::all_to(TableOrder::new(1, generation), stable),
        )
    }

    #[test]
    fn a_table_is_kept_and_only_a_newer_one_takes_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let book = Book::open(folder.path()).unwrap();
        assert!(book.offer([table(3, 1)]).unwrap());
        assert!(!book.offer([table(2, 2)]).unwrap(), "late");
        assert!(
            !book.offer([table(3, 2)]).unwrap(),
            "equal numbers mean equal tables"
        );
        let again = Book::open(folder.path()).unwrap();
        assert_eq!(again.all(), book.all());
        let (model, mut broken) = table(4, 4);
        broken.entries[0].weight = 50;
        assert!(!again.offer([(model, broken)]).unwrap());
        assert!(again.offer([table(4, 5)]).unwrap());
        fs::write(folder.path().join("tables.json"), b"{").unwrap();
        assert!(Book::open(folder.path()).unwrap().all().is_empty());
    }
}
