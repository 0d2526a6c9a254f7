//! A store in a temporary folder.

use std::path::Path;
use std::sync::Arc;

use weir_store::{Engine, Store, open};

pub(crate) use crate::bounded::{in_time, runtime};
pub(crate) use crate::runs::*;

pub(crate) const ENGINES: [Engine; 3] = [Engine::Log, Engine::Redb, Engine::Sled];

/// Runs a test on every engine, each in a folder of its own.
pub(crate) fn on_every_engine<F: Future<Output = ()>>(test: impl Fn(Bed) -> F) {
    for engine in ENGINES {
        let folder = tempfile::tempdir().unwrap();
        let bed = Bed {
            folder: Arc::new(folder),
            engine,
        };
        runtime().block_on(in_time(test(bed)));
    }
}

/// Where a test's store is.
#[derive(Clone)]
pub(crate) struct Bed {
    folder: Arc<tempfile::TempDir>,
    pub(crate) engine: Engine,
}

impl Bed {
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn open(&self) -> Arc<dyn Store> {
        // sled gives its lock back a moment after it was closed.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
        loop {
            match open(self.path(), self.engine) {
                Err(error)
                    if error.to_string().contains("could not acquire lock")
                        && std::time::Instant::now() < until => {}
                opened => return opened.unwrap(),
            }
            std::thread::yield_now();
        }
    }
}
