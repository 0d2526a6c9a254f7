//! Which store a process opens: an engine in a folder, or a server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_store::{Durability, Engine, Store, StoreError};

/// Which store is asked for.
#[derive(Clone, Debug, Default)]
pub struct StoreChoice {
    /// An engine's name, or a URL of `PostgreSQL`. `None`: the engine that made the folder, else the default.
    pub name: Option<String>,
    /// What its answers promise. A server has settings of its own for that.
    pub durability: Durability,
}

/// Opens the store that was chosen.
///
/// # Errors
/// The choice is neither, or the store cannot be opened.
pub async fn open_store(
    choice: &StoreChoice,
    folder: PathBuf,
    replica: Option<String>,
) -> Result<Arc<dyn Store>, StoreError> {
    let durability = choice.durability;
    let choice = choice.name.as_deref();
    if let Some(url) = server(choice) {
        if durability != Durability::Disk {
            return Err(StoreError::Contract(
                "durability memory is of the log alone; of a server it is set by its synchronous_commit".to_owned(),
            ));
        }
        let options = weir_postgres::Options {
            url: url.to_owned(),
            name: replica,
        };
        return Ok(weir_postgres::open(options).await?);
    }
    let engine = engine(choice, &folder)?;
    if durability == Durability::Memory {
        tracing::warn!(
            "durability is memory: when this machine dies, up to about a second of acknowledged events may be missing"
        );
    }
    let opening = move || weir_store::open_with(&folder, engine, durability);
    let opening = tokio::task::spawn_blocking(opening);
    opening.await.map_err(|_| StoreError::Closed)?
}

/// Tells of every record in the store that was chosen, as JSON objects: see [`weir_store::dump`]. An engine's folder must not be open in
/// any process; gateways of a server may be at work. Blocks, and must not be called within a runtime.
///
/// # Errors
/// The choice is neither an engine nor a URL, or the store cannot be read.
pub fn dump_store(
    choice: Option<&str>,
    folder: &Path,
    now_ms: u64,
    tell: &mut dyn FnMut(serde_json::Value),
) -> Result<(), StoreError> {
    match server(choice) {
        Some(url) => weir_postgres::dump(url, now_ms, tell),
        None => weir_store::dump(folder, engine(choice, folder)?, now_ms, tell),
    }
}

/// The server's URL, where a server was chosen.
fn server(choice: Option<&str>) -> Option<&str> {
    let schemes = ["postgres://", "postgresql://"];
    choice.filter(|url| schemes.iter().any(|scheme| url.starts_with(scheme)))
}

fn engine(choice: Option<&str>, folder: &Path) -> Result<Engine, StoreError> {
    let Some(name) = choice else {
        return Ok(made_by(folder).unwrap_or_default());
    };
    name.parse().map_err(|_| {
        StoreError::Contract(format!(
            "unknown store {name:?}: there are log, redb, sled and postgres://…"
        ))
    })
}

/// The engine that made a folder.
fn made_by(folder: &Path) -> Option<Engine> {
    let name = std::fs::read_to_string(folder.join("engine")).ok()?;
    name.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_folder_stays_with_the_engine_that_made_it_unless_another_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = || folder.path().join("store");
        let open = async |name: Option<&str>, durability| {
            let choice = StoreChoice {
                name: name.map(str::to_owned),
                durability,
            };
            open_store(&choice, path(), None).await
        };
        drop(open(Some("redb"), Durability::Disk).await.unwrap());
        drop(open(None, Durability::Disk).await.unwrap());
        for name in [None, Some("postgres://nowhere/x")] {
            let error = open(name, Durability::Memory).await.err().unwrap();
            assert!(error.to_string().contains("of the log alone"), "{error}");
        }
        let error = open(Some("log"), Durability::Disk).await.err().unwrap();
        assert!(error.to_string().contains("redb"), "{error}");
        let error = open(Some("rocks"), Durability::Disk).await.err().unwrap();
        assert!(error.to_string().contains("postgres://"), "{error}");
    }
}
