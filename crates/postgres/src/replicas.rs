//! The other gateways of the store.

use sqlx::Row;
use tokio::sync::broadcast;
use weir_run::RunId;
use weir_store::engine::{Adopt, key};
use weir_store::{Beat, Change, OpenRun, Peer, Replicas, StoreError, StoreFuture};

use crate::error::unreadable;
use crate::store::Postgres;

/// How long a wish to be told of a run's events lasts.
const FOLLOWED_S: i32 = 10;
/// Cancellations that one heartbeat brings back.
const CANCELLING: i64 = 1000;

impl Postgres {
    pub(crate) async fn rows(
        &self,
        query: sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments>,
    ) -> Result<Vec<sqlx::postgres::PgRow>, StoreError> {
        query
            .fetch_all(&self.server.pool)
            .await
            .map_err(|error| unreadable(&self.server.path, &error))
    }

    async fn runs(
        &self,
        query: sqlx::query::Query<'_, sqlx::Postgres, sqlx::postgres::PgArguments>,
    ) -> Result<Vec<RunId>, StoreError> {
        let rows = self.rows(query).await?;
        let ids = rows.iter().filter_map(|row| {
            let key: Vec<u8> = row.try_get(0).ok()?;
            key::trailing_run(&key)
        });
        Ok(ids.collect())
    }
}

impl Replicas for Postgres {
    fn me(&self) -> Peer {
        Peer {
            boot: self.server.boot.clone(),
            name: self.server.name.clone(),
            silent_ms: Some(0),
        }
    }

    fn beat(&self) -> StoreFuture<'_, Beat> {
        const BEAT: &str = "
            WITH me AS (
              INSERT INTO weir.gateway AS g (boot, name, turn, beat) VALUES ($1, $2, 0, clock_timestamp())
              ON CONFLICT (boot) DO UPDATE SET beat = excluded.beat, gone = false RETURNING g.boot)
            SELECT g.boot, g.name, CASE WHEN g.gone THEN NULL
                ELSE greatest(0, extract(epoch FROM clock_timestamp() - g.beat) * 1000)::bigint END
            FROM weir.gateway g WHERE g.boot <> (SELECT boot FROM me) ORDER BY g.boot";
        Box::pin(async move {
            let query = sqlx::query(BEAT)
                .bind(&self.server.boot)
                .bind(&self.server.name);
            let rows = self.rows(query).await;
            match &rows {
                // That it is heard again does not say that it can write again.
                Ok(_) if !matches!(self.server.trouble(), Some(StoreError::Away { .. })) => {}
                heard => self
                    .server
                    .went(heard.as_ref().map(|_| ()).map_err(StoreError::clone)),
            }
            let rows = rows?;
            let decode = |row: &sqlx::postgres::PgRow| -> Result<Peer, sqlx::Error> {
                let silent: Option<i64> = row.try_get(2)?;
                Ok(Peer {
                    boot: row.try_get(0)?,
                    name: row.try_get(1)?,
                    silent_ms: silent.map(|ms| u64::try_from(ms).unwrap_or(0)),
                })
            };
            let peers: Result<Vec<Peer>, _> = rows.iter().map(decode).collect();
            let peers = peers.map_err(|error| unreadable(&self.server.path, &error))?;
            let (from, to) = key::family(key::CANCELLING);
            let query = sqlx::query(
                "SELECT r.key FROM weir.record r WHERE r.key >= $1 AND r.key < $2 ORDER BY r.key LIMIT $3",
            );
            let cancelling = self
                .runs(query.bind(from).bind(to).bind(CANCELLING))
                .await?;
            Ok(Beat { peers, cancelling })
        })
    }

    fn runs_of(&self, boot: &str, limit: usize) -> StoreFuture<'_, Vec<RunId>> {
        // A value ends with a checksum of four bytes.
        const RUNS: &str = "
            SELECT r.key FROM weir.record r WHERE r.key >= $1 AND r.key < $2
              AND substring(r.value FROM 1 FOR length(r.value) - 4) = $3 ORDER BY r.key LIMIT $4";
        let (boot, limit) = (
            boot.as_bytes().to_vec(),
            i64::try_from(limit).unwrap_or(i64::MAX),
        );
        Box::pin(async move {
            let (from, to) = key::family(key::BELONGS);
            let query = sqlx::query(RUNS).bind(from).bind(to).bind(boot).bind(limit);
            self.runs(query).await
        })
    }

    fn adopt(&self, run: RunId, from: &str) -> StoreFuture<'_, Option<OpenRun>> {
        let from = from.to_owned();
        self.write(Adopt { run, from })
    }

    fn elsewhere(&self, runs: Vec<RunId>) -> StoreFuture<'_, Vec<RunId>> {
        const ELSEWHERE: &str = "
            SELECT r.key FROM weir.record r WHERE r.key = ANY ($1) AND substring(r.value FROM 1 FOR length(r.value) - 4) <> $2";
        Box::pin(async move {
            let keys: Vec<Vec<u8>> = runs.iter().map(|run| key::belongs(*run)).collect();
            let query = sqlx::query(ELSEWHERE)
                .bind(keys)
                .bind(self.server.boot.as_bytes());
            self.runs(query).await
        })
    }

    fn forget(&self, boot: &str) -> StoreFuture<'_, ()> {
        const FORGET: &str = "
            DELETE FROM weir.gateway WHERE boot = $1 AND (gone OR beat < clock_timestamp() - interval '1 minute')";
        let boot = boot.to_owned();
        Box::pin(async move {
            self.rows(sqlx::query(FORGET).bind(boot)).await?;
            Ok(())
        })
    }

    fn follow(&self, runs: Vec<RunId>) -> StoreFuture<'_, ()> {
        const FOLLOW: &str = "
            INSERT INTO weir.follow (run, until) SELECT r, clock_timestamp() + make_interval(secs => $2) FROM unnest($1::bytea[]) AS u (r)
            ORDER BY r ON CONFLICT (run) DO UPDATE SET until = excluded.until";
        Box::pin(async move {
            let runs: Vec<Vec<u8>> = runs.iter().map(|run| run.to_bytes().to_vec()).collect();
            let query = sqlx::query(FOLLOW).bind(runs).bind(f64::from(FOLLOWED_S));
            self.rows(query).await?;
            Ok(())
        })
    }

    fn changes(&self) -> broadcast::Receiver<Change> {
        self.server.changes.subscribe()
    }
}
