//! Partitions of events: made before they are needed, dropped when all in them is over.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{PgConnection, PgPool, Row};
use weir_run::RunId;

use crate::open::Server;

/// How often partitions are looked after.
const EVERY: Duration = Duration::from_mins(1);
/// Length of a partition; `weir.make_partition` has the same number.
const SPAN_MS: u64 = 6 * 3600 * 1000;

/// Makes the partitions that the events of these runs go to.
pub(crate) async fn make_partitions(
    connection: &mut PgConnection,
    runs: &[Vec<u8>],
) -> Result<(), sqlx::Error> {
    let spans: std::collections::BTreeMap<u64, &Vec<u8>> = runs
        .iter()
        .filter_map(|run| {
            let id = RunId::from_bytes(run.as_slice().try_into().ok()?);
            Some((id.unix_ms() / SPAN_MS, run))
        })
        .collect();
    for run in spans.into_values() {
        sqlx::query("SELECT weir.make_partition($1)")
            .bind(run)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Drops the oldest partition if the retention of everything in it is over; its name.
pub(crate) async fn drop_partition(pool: &PgPool) -> Result<Option<String>, sqlx::Error> {
    let row = sqlx::query("SELECT weir.drop_partition()")
        .fetch_one(pool)
        .await?;
    row.try_get(0)
}

/// Looks after partitions for ever.
pub(crate) async fn run(server: Arc<Server>) {
    loop {
        if let Err(error) = look_after(&server).await {
            tracing::warn!(%error, "cannot look after the partitions of events now");
        }
        tokio::time::sleep(EVERY).await;
    }
}

async fn look_after(server: &Server) -> Result<(), sqlx::Error> {
    let mut ahead = server.pool.acquire().await?;
    let now_ms = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |now| now.as_millis());
    let now_ms = u64::try_from(now_ms).unwrap_or(0);
    let runs = [now_ms, now_ms + SPAN_MS].map(|at| RunId::new(at, 0).to_bytes().to_vec());
    make_partitions(&mut ahead, &runs).await?;
    drop(ahead);
    while let Some(name) = drop_partition(&server.pool).await? {
        tracing::info!(
            name,
            "dropped a partition of events whose retention is over"
        );
    }
    sqlx::query("DELETE FROM weir.follow WHERE until < clock_timestamp()")
        .execute(&server.pool)
        .await?;
    Ok(())
}
