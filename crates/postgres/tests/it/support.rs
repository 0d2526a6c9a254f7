//! A database on a server that all tests of this process share.

use std::sync::{Arc, OnceLock};

use weir_postgres::{Options, Postgres, open};
use weir_store::{Store, StoreError};

pub(crate) use crate::bounded::{in_time, runtime};
pub(crate) use crate::runs::*;
use crate::server::PostgresServer;

/// The server of this test process; `None` where none is installed.
pub(crate) fn server() -> Option<&'static PostgresServer> {
    static SERVER: OnceLock<Option<PostgresServer>> = OnceLock::new();
    let server = SERVER.get_or_init(|| {
        if crate::server::bin().is_none() {
            assert!(
                std::env::var_os("WEIR_POSTGRES").is_none_or(|wanted| wanted != "required"),
                "PostgreSQL is not installed"
            );
            println!("skipped: PostgreSQL is not installed (apt-get install postgresql)");
            return None;
        }
        Some(PostgresServer::start().unwrap())
    });
    server.as_ref()
}

/// Runs a test on a database of its own. The name is the one the shared files of tests use.
pub(crate) fn on_every_engine<F: Future<Output = ()>>(test: impl Fn(Bed) -> F) {
    if let Some(bed) = Bed::new() {
        runtime().block_on(in_time(test(bed)));
    }
}

/// Where a test's store is.
#[derive(Clone)]
pub(crate) struct Bed {
    pub(crate) url: String,
}

impl Bed {
    pub(crate) fn new() -> Option<Self> {
        let url = server()?.database().unwrap();
        Some(Self { url })
    }

    pub(crate) fn database(&self) -> &str {
        self.url.rsplit('/').next().unwrap()
    }

    pub(crate) fn sql(&self, sql: &str) -> String {
        server().unwrap().sql(self.database(), sql).unwrap()
    }

    pub(crate) fn open(&self) -> Arc<dyn Store> {
        self.gateway(None)
    }

    /// A gateway's store.
    pub(crate) fn gateway(&self, name: Option<&str>) -> Arc<Postgres> {
        self.try_gateway(name).unwrap()
    }

    pub(crate) fn try_gateway(&self, name: Option<&str>) -> Result<Arc<Postgres>, StoreError> {
        let options = Options {
            url: self.url.clone(),
            name: name.map(str::to_owned),
        };
        // The shared tests open where they are not async.
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(open(options)))
    }
}
