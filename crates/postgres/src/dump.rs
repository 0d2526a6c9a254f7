//! Every record of a store on a server, for checks from outside and for people who look for a fault.

use std::cell::RefCell;
use std::ops::ControlFlow;

use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{ConnectOptions, PgConnection, Row};
use tokio::runtime::Runtime;
use weir_run::RunId;
use weir_store::StoreError;
use weir_store::engine::{KvError, Pair, View, Visit, key, read};

use crate::error::chain;
use crate::memory::{chunk_key, chunk_run};
use crate::migrate::{known, version};
use crate::open::address;

/// Rows that are read at a time.
const PAGE: i64 = 1000;

/// Tells of every record of the store in a database, as [`weir_store::dump`] does of a folder's; gateways may be at work meanwhile.
///
/// What is told is one state of the database: this is the one place where a transaction, which only reads, spans several statements.
/// Blocks, so it must not be called within a runtime.
///
/// # Errors
/// The server cannot be reached, has no such store, or holds what makes no sense.
pub fn dump(url: &str, now_ms: u64, tell: &mut dyn FnMut(Value)) -> Result<(), StoreError> {
    let (options, path) = address(url)?;
    let unreadable = |cause: String| StoreError::Read {
        path: path.clone(),
        cause,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| unreadable(error.to_string()))?;
    let connection = runtime.block_on(async {
        let options = options.application_name("weir dump");
        let mut connection = options.disable_statement_logging().connect().await?;
        sqlx::query("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            .execute(&mut connection)
            .await?;
        Ok::<_, sqlx::Error>(connection)
    });
    let mut connection = connection.map_err(|error| StoreError::Away {
        path: path.clone(),
        cause: chain(&error),
    })?;
    let found = runtime
        .block_on(version(&mut connection))
        .map_err(|error| unreadable(chain(&error)))?;
    if found != known() {
        let known = known();
        return Err(unreadable(format!(
            "its schema has version {found} (0: none), this program reads version {known}: use the program that its gateways run"
        )));
    }
    let state = Snapshot {
        runtime,
        connection: RefCell::new(connection),
    };
    read::records(&state, now_ms, tell).map_err(|error| unreadable(error.to_string()))
}

/// One state of the database, read through one connection.
struct Snapshot {
    runtime: Runtime,
    connection: RefCell<PgConnection>,
}

type Query<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

impl Snapshot {
    fn rows(&self, query: Query<'_>) -> Result<Vec<PgRow>, KvError> {
        let connection = &mut *self.connection.borrow_mut();
        let rows = self.runtime.block_on(query.fetch_all(connection));
        rows.map_err(|error| KvError::Io(chain(&error)))
    }

    /// Records of a range, a page at a time.
    fn records(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        const RECORDS: &str = "SELECT r.key, r.value FROM weir.record r WHERE r.key >= $1 AND r.key < $2 ORDER BY r.key LIMIT $3";
        let mut from = from.to_vec();
        loop {
            let rows = self.rows(sqlx::query(RECORDS).bind(&from).bind(to).bind(PAGE))?;
            for row in &rows {
                let (key, value): (Vec<u8>, Vec<u8>) = (get(row, 0)?, get(row, 1)?);
                if visit(&key, &value) == ControlFlow::Break(()) {
                    return Ok(());
                }
                from = key;
            }
            if !is_full(&rows) {
                return Ok(());
            }
            // The least key above the last one.
            from.push(0);
        }
    }

    /// Chunks of events, of all runs or from one on, a page at a time.
    fn chunks(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        const CHUNKS: &str = "
            SELECT c.run, c.first, c.value FROM weir.chunk c WHERE (c.run, c.first) > ($1, $2)
              AND NOT EXISTS (SELECT FROM weir.expired e WHERE e.run = c.run) ORDER BY c.run, c.first LIMIT $3";
        let mut after = (chunk_run(from).map_or(vec![], run_bytes), -1_i64);
        loop {
            let rows = self.rows(sqlx::query(CHUNKS).bind(&after.0).bind(after.1).bind(PAGE))?;
            for row in &rows {
                after = (get(row, 0)?, get(row, 1)?);
                let run = chunk_run(&[&[key::CHUNK], after.0.as_slice()].concat());
                let run = run.ok_or_else(|| KvError::Io("a run's id is not one".to_owned()))?;
                let (key, value): (_, Vec<u8>) = (chunk_key(run, after.1), get(row, 2)?);
                if key.as_slice() >= to || visit(&key, &value) == ControlFlow::Break(()) {
                    return Ok(());
                }
            }
            if !is_full(&rows) {
                return Ok(());
            }
        }
    }
}

impl View for Snapshot {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        const GET: &str = "SELECT r.value FROM weir.record r WHERE r.key = $1";
        let rows = self.rows(sqlx::query(GET).bind(key))?;
        rows.first().map(|row| get(row, 0)).transpose()
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        if from.first() == Some(&key::CHUNK) {
            self.chunks(from, to, visit)
        } else {
            self.records(from, to, visit)
        }
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<Pair>, KvError> {
        // Of a run's log also when it is over: its last chunk says how far the run came.
        const LAST_CHUNK: &str = "SELECT c.first, c.value FROM weir.chunk c WHERE c.run = $1 ORDER BY c.first DESC LIMIT 1";
        const LAST: &str = "SELECT r.key, r.value FROM weir.record r WHERE r.key >= $1 AND r.key < $2 ORDER BY r.key DESC LIMIT 1";
        if let Some(run) = chunk_run(from) {
            let rows = self.rows(sqlx::query(LAST_CHUNK).bind(run_bytes(run)))?;
            let pair = |row| Ok((chunk_key(run, get(row, 0)?), get(row, 1)?));
            return rows.first().map(pair).transpose();
        }
        let rows = self.rows(sqlx::query(LAST).bind(from).bind(to))?;
        let pair = |row| Ok((get(row, 0)?, get(row, 1)?));
        rows.first().map(pair).transpose()
    }
}

fn run_bytes(run: RunId) -> Vec<u8> {
    run.to_bytes().to_vec()
}

fn is_full(rows: &[PgRow]) -> bool {
    i64::try_from(rows.len()).is_ok_and(|rows| rows >= PAGE)
}

fn get<'r, T>(row: &'r PgRow, place: usize) -> Result<T, KvError>
where
    T: sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    row.try_get(place)
        .map_err(|error| KvError::Io(error.to_string()))
}
