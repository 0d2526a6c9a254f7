//! Hints from other gateways. A hint may be late, doubled or lost; the store is the truth.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use weir_run::RunId;
use weir_store::Change;

use crate::open::Server;

/// Between attempts to listen while the server is away.
const AGAIN: Duration = Duration::from_secs(1);

/// Passes hints on for ever.
pub(crate) async fn run(server: Arc<Server>) {
    loop {
        if let Err(error) = listen(&server).await {
            tracing::debug!(%error, "no hints from other gateways now; the store is asked at intervals");
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn listen(server: &Server) -> Result<(), sqlx::Error> {
    // A connection of its own: readers must not wait for one that never comes back.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_with(server.options.clone())
        .await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen("weir").await?;
    loop {
        let hint = listener.recv().await?;
        if let Some(change) = parse(hint.payload()) {
            // Nobody may be listening here.
            server.changes.send(change).ok();
        }
    }
}

fn parse(payload: &str) -> Option<Change> {
    let (what, run) = payload.split_once(' ')?;
    let bytes = u128::from_str_radix(run, 16).ok()?;
    let run = RunId::from_bytes(bytes.to_be_bytes());
    match what {
        "cancelled" => Some(Change::Cancelled(run)),
        "grown" => Some(Change::Grown(run)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_of_a_later_version_are_no_hints() {
        let run = RunId::new(7, 9);
        let hex = format!("{:032x}", u128::from_be_bytes(run.to_bytes()));
        assert_eq!(parse(&format!("grown {hex}")), Some(Change::Grown(run)));
        assert_eq!(
            parse(&format!("cancelled {hex}")),
            Some(Change::Cancelled(run))
        );
        for other in ["", "grown", "grown xyz", &format!("moved {hex}")] {
            assert_eq!(parse(other), None, "{other:?}");
        }
    }
}
