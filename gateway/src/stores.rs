//! Which store a process opens: an engine in a folder, or a server.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_store::{Engine, Store, StoreError};

/// Opens the store that was chosen: an engine's name, or a URL of `PostgreSQL`. `None`: the engine that made the folder, else the default.
///
/// # Errors
/// The choice is neither, or the store cannot be opened.
pub async fn open_store(
    choice: Option<&str>,
    folder: PathBuf,
    replica: Option<String>,
) -> Result<Arc<dyn Store>, StoreError> {
    if let Some(url) = server(choice) {
        let options = weir_postgres::Options {
            url: url.to_owned(),
            name: replica,
        };
        return Ok(weir_postgres::open(options).await?);
    }
    let engine = engine(choice, &folder)?;
    let opening = tokio::task::spawn_blocking(move || weir_store::open(&folder, engine));
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
        drop(open_store(Some("redb"), path(), None).await.unwrap());
        drop(open_store(None, path(), None).await.unwrap());
        let error = open_store(Some("log"), path(), None).await.err().unwrap();
        assert!(error.to_string().contains("redb"), "{error}");
        let error = open_store(Some("rocks"), path(), None).await.err().unwrap();
        assert!(error.to_string().contains("postgres://"), "{error}");
    }
}
