//! The schema: numbered steps, each applied once, under a lock, in one transaction of its own.

use sqlx::{PgConnection, Row};

/// Every step so far, the first one first. A step that was released never changes.
const STEPS: &[&str] = &[include_str!("migrations/1.sql")];

/// The key of the advisory lock that one process at a time migrates under.
const LOCK: &str = "SELECT pg_advisory_lock(7311604, 1)";
const UNLOCK: &str = "SELECT pg_advisory_unlock(7311604, 1)";

/// Why the schema cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MigrateError {
    /// The database is of a later version of this program.
    #[error(
        "its schema has version {found}, this program knows versions up to {known}: run the version of the program that migrated it, or a later one"
    )]
    Newer {
        /// The version found.
        found: i32,
        /// The last one known.
        known: i32,
    },
    /// A step could not be applied; nothing of it was.
    #[error("cannot bring its schema to version {to}")]
    Step {
        /// Which.
        to: i32,
        /// What the server said.
        #[source]
        source: sqlx::Error,
    },
    /// The version could not be read.
    #[error("cannot read the version of its schema")]
    Read(#[source] sqlx::Error),
}

/// Brings the schema to the version that this program knows.
pub(crate) async fn migrate(connection: &mut PgConnection) -> Result<(), MigrateError> {
    let known = known();
    if version(connection).await? == known {
        return Ok(());
    }
    let lock = sqlx::query(LOCK).execute(&mut *connection).await;
    lock.map_err(MigrateError::Read)?;
    let done = step_by_step(connection, known).await;
    // A session that ends gives its lock back too.
    sqlx::query(UNLOCK).execute(&mut *connection).await.ok();
    done
}

async fn step_by_step(connection: &mut PgConnection, known: i32) -> Result<(), MigrateError> {
    let found = version(connection).await?;
    if found > known {
        return Err(MigrateError::Newer { found, known });
    }
    for (step, to) in STEPS.iter().zip(1..) {
        if to <= found {
            continue;
        }
        // One message of several statements is one transaction: it needs no second message to end.
        let text = format!(
            "CREATE SCHEMA IF NOT EXISTS weir;
             CREATE TABLE IF NOT EXISTS weir.schema (version int PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now());
             {step};
             INSERT INTO weir.schema (version) VALUES ({to});"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(text))
            .execute(&mut *connection)
            .await
            .map_err(|source| MigrateError::Step { to, source })?;
        tracing::info!(version = to, "migrated the store's schema");
    }
    Ok(())
}

/// The version that this program knows.
pub(crate) fn known() -> i32 {
    i32::try_from(STEPS.len()).unwrap_or(i32::MAX)
}

/// 0 for a database that has none.
pub(crate) async fn version(connection: &mut PgConnection) -> Result<i32, MigrateError> {
    let read = async {
        let there = sqlx::query("SELECT to_regclass('weir.schema') IS NOT NULL")
            .fetch_one(&mut *connection)
            .await?;
        if !there.try_get::<bool, _>(0)? {
            return Ok(0);
        }
        let row = sqlx::query("SELECT coalesce(max(version), 0) FROM weir.schema")
            .fetch_one(&mut *connection)
            .await?;
        row.try_get(0)
    };
    read.await.map_err(MigrateError::Read)
}
