//! Where a session finds the engine of its version.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::{mpsc, watch};
use tonic::Status;

use crate::engine::command::Command;
use crate::engine::snapshot::Snapshot;
use crate::grammar::Compiler;
use crate::metrics::About;

/// What a session has of an engine.
#[derive(Clone, Debug)]
pub(crate) struct Door {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) snapshot: watch::Receiver<Snapshot>,
    pub(crate) compiler: Arc<Compiler>,
    pub(crate) about: Arc<About>,
}

/// The engines of this process, by the digest of their versions. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Doors(Arc<RwLock<BTreeMap<String, Door>>>);

impl Doors {
    /// Sessions may come.
    pub(crate) fn open(&self, digest: String, door: Door) {
        self.0.write().insert(digest, door);
    }

    /// The engine is gone.
    pub(crate) fn close(&self, digest: &str) {
        self.0.write().remove(digest);
    }

    /// Whether a version has an engine, be it one that drains.
    pub(crate) fn has(&self, digest: &str) -> bool {
        self.0.read().contains_key(digest)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }

    pub(crate) fn all(&self) -> Vec<Door> {
        self.0.read().values().cloned().collect()
    }

    /// The engine that a hello asks for. One that names no version means the only one there is.
    ///
    /// # Errors
    /// What the gateway is told.
    pub(crate) fn find(&self, digest: &str) -> Result<Door, Status> {
        let doors = self.0.read();
        let found = match (digest, doors.len()) {
            ("", 1) => doors.values().next(),
            ("", held) => {
                return Err(Status::invalid_argument(format!(
                    "this worker holds {held} versions, and the hello names none: name the one that the session is for"
                )));
            }
            (digest, _) => doors.get(digest),
        };
        found.cloned().ok_or_else(|| {
            Status::not_found(format!("this worker does not hold the version {digest}"))
        })
    }
}

#[cfg(test)]
impl Door {
    /// Of an engine that is nothing but its figures.
    pub(crate) fn to_nobody(snapshot: Snapshot, about: About) -> Self {
        let tokens = serde_json::json!({
            "version": "1.0", "added_tokens": [],
            "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
        });
        let tokenizer = weir_model::tokenizer::Tokenizer::from_bytes(tokens.to_string().as_bytes());
        let tokenizer = Arc::new(tokenizer.expect("a tokenizer of one letter"));
        Self {
            commands: mpsc::channel(1).0,
            snapshot: watch::channel(snapshot).1,
            compiler: Arc::new(Compiler::new(tokenizer, Arc::from([]))),
            about: Arc::new(about),
        }
    }
}
