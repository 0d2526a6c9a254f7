//! Connecting to a server: options, schema, identity, and the tasks behind an open store.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, PgPool, Row};
use tokio::sync::{broadcast, mpsc};
use weir_store::engine::QUEUE;
use weir_store::{Change, StoreError};

use crate::migrate::migrate;
use crate::store::Postgres;
use crate::writer::Writer;
use crate::{listen, upkeep};

/// Connections for reading. One more writes, one listens: with the server's usual 100, eight gateways find room.
const READERS: u32 = 8;
/// How long a reader waits for a connection before the store counts as away.
const READER_WITHIN: Duration = Duration::from_secs(5);
/// Hints that wait for a slow listener in this process; it is told that it missed some.
const HINTS: usize = 4096;

/// Groups of writes that a server refuses in a row before it counts as one that takes none.
const REFUSED: u32 = 4;

/// Where the store is, and who opens it.
#[derive(Clone, Debug)]
pub struct Options {
    /// `postgres://USER:PASSWORD@HOST:PORT/DATABASE?sslmode=…`
    pub url: String,
    /// What this gateway is called; no two live gateways have one name. `None`: a name of its own is made up.
    pub name: Option<String>,
}

/// What the parts of an open store share.
pub(crate) struct Server {
    /// For messages: without the password.
    pub(crate) path: String,
    pub(crate) options: PgConnectOptions,
    pub(crate) pool: PgPool,
    pub(crate) boot: String,
    pub(crate) name: String,
    pub(crate) identity: String,
    pub(crate) changes: broadcast::Sender<Change>,
    races: AtomicU64,
    /// Why the last group of writes or the last heartbeat was refused, and how many in a row were; nothing once one was not.
    trouble: Mutex<Option<(StoreError, u32)>>,
}

impl Server {
    /// A commit was beaten by another gateway's.
    pub(crate) fn raced(&self) {
        self.races.fetch_add(1, Ordering::Relaxed);
    }

    /// What came of a group of writes, or of a heartbeat.
    pub(crate) fn went(&self, outcome: Result<(), StoreError>) {
        let mut trouble = self.trouble.lock();
        let before = trouble.as_ref().map_or(0, |(_, refused)| *refused);
        *trouble = outcome.err().map(|error| (error, before.saturating_add(1)));
    }

    /// What stands against writing now. One write that the server refuses may be that write's fault.
    pub(crate) fn trouble(&self) -> Option<StoreError> {
        let (error, refused) = self.trouble.lock().clone()?;
        let is_passing = matches!(error, StoreError::Write { .. } | StoreError::Read { .. });
        (!is_passing || refused >= REFUSED).then_some(error)
    }

    pub(crate) fn races(&self) -> u64 {
        self.races.load(Ordering::Relaxed)
    }

    /// Says that this gateway is gone, so that others need not wait to take its runs.
    pub(crate) async fn leave(&self) {
        let leaving = sqlx::query("UPDATE weir.gateway SET gone = true WHERE boot = $1")
            .bind(&self.boot)
            .execute(&self.pool);
        // The others find out in any case.
        tokio::time::timeout(Duration::from_secs(2), leaving)
            .await
            .ok();
    }
}

/// Opens the store in a database, making its tables where there are none.
///
/// # Errors
/// The URL is wrong, the server cannot be reached, or its schema is of a later version.
pub async fn open(options: Options) -> Result<Arc<Postgres>, StoreError> {
    let (connect, path) = address(&options.url)?;
    let connect = connect
        .application_name(&format!(
            "weir {}",
            options.name.as_deref().unwrap_or("gateway")
        ))
        // A statement that takes longer waits for something that will not come. A transaction never waits for us.
        .options([
            ("statement_timeout", "15s"),
            ("lock_timeout", "10s"),
            ("idle_in_transaction_session_timeout", "5s"),
        ])
        // Every statement in the log would be every event in the log.
        .disable_statement_logging();
    let unreachable = |error: sqlx::Error| StoreError::Away {
        path: path.clone(),
        cause: crate::error::chain(&error),
    };
    let mut first = connect.connect().await.map_err(unreachable)?;
    migrate(&mut first)
        .await
        .map_err(|error| StoreError::Read {
            path: path.clone(),
            cause: crate::error::chain(&error),
        })?;
    let (identity, boot, name) = register(&mut first, options.name)
        .await
        .map_err(unreachable)?;
    warn_of_settings(&mut first, &path)
        .await
        .map_err(unreachable)?;
    drop(first);
    let pool = PgPoolOptions::new()
        .max_connections(READERS)
        .min_connections(1)
        .acquire_timeout(READER_WITHIN)
        .idle_timeout(Duration::from_mins(10))
        .connect_lazy_with(connect.clone());
    let server = Arc::new(Server {
        path,
        options: connect,
        pool,
        boot,
        name,
        identity,
        changes: broadcast::channel(HINTS).0,
        races: AtomicU64::new(0),
        trouble: Mutex::new(None),
    });
    let (queue, ops) = mpsc::channel(QUEUE);
    // Never dropped before its queue is closed: what it has begun it ends.
    tokio::spawn(Writer::new(Arc::clone(&server)).run(ops));
    let tasks = [
        tokio::spawn(listen::run(Arc::clone(&server))).abort_handle(),
        tokio::spawn(upkeep::run(Arc::clone(&server))).abort_handle(),
    ];
    Ok(Arc::new(Postgres::new(server, queue, tasks)))
}

/// Where a URL points, and how it is named without its password.
pub(crate) fn address(url: &str) -> Result<(PgConnectOptions, String), StoreError> {
    let connect = PgConnectOptions::from_str(url).map_err(|error| {
        StoreError::Contract(format!(
            "the store's URL is wrong ({error}); it is postgres://USER:PASSWORD@HOST:PORT/DATABASE"
        ))
    })?;
    let path = format!(
        "postgres://{}:{}/{}",
        connect.get_host(),
        connect.get_port(),
        connect.get_database().unwrap_or_default()
    );
    Ok((connect, path))
}

/// The store's identity, and this process as one of its gateways.
async fn register(
    connection: &mut sqlx::PgConnection,
    name: Option<String>,
) -> Result<(String, String, String), sqlx::Error> {
    let row = sqlx::query(
        "WITH me AS (SELECT replace(gen_random_uuid()::text, '-', '') AS boot)
         INSERT INTO weir.gateway (boot, name, turn, beat)
         SELECT boot, coalesce($1, 'gateway-' || substring(boot FOR 8)), 0, clock_timestamp() FROM me
         RETURNING boot, name, (SELECT value FROM weir.meta WHERE meta.name = 'identity')",
    )
    .bind(name)
    .fetch_one(connection)
    .await?;
    Ok((row.try_get(2)?, row.try_get(0)?, row.try_get(1)?))
}

/// Says where an answer promises less than it usually does.
async fn warn_of_settings(
    connection: &mut sqlx::PgConnection,
    path: &str,
) -> Result<(), sqlx::Error> {
    let row = sqlx::query("SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes')")
        .fetch_one(connection)
        .await?;
    for (place, name, risk) in [
        (0, "fsync", "a crash of the machine may lose everything"),
        (
            1,
            "synchronous_commit",
            "a crash of the server may lose the last moments that were acknowledged",
        ),
        (
            2,
            "full_page_writes",
            "a crash of the machine may damage the store",
        ),
    ] {
        let value: String = row.try_get(place)?;
        if value == "off" {
            tracing::warn!(
                store = path,
                setting = name,
                "the server has a setting off: {risk}"
            );
        }
    }
    Ok(())
}
