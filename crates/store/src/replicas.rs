//! Several gateways on one store: who lives, whose runs are whose, and what the others do.

use tokio::sync::broadcast;
use weir_run::RunId;

use crate::{OpenRun, StoreFuture};

/// A gateway process that uses the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// New at every start of a process.
    pub boot: String,
    /// What it was named; no two live gateways have one name.
    pub name: String,
    /// Since its last heartbeat, by the store's clock. `None`: it has left.
    pub silent_ms: Option<u64>,
}

/// What a heartbeat brings back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beat {
    /// The other gateways that have runs or were there lately.
    pub peers: Vec<Peer>,
    /// Live runs, of any gateway, whose cancellation is recorded.
    pub cancelling: Vec<RunId>,
}

/// What another gateway did to a run. A hint: it may come late, twice or never; the store is the truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its cancellation was recorded.
    Cancelled(RunId),
    /// It has new events. Only for runs that somebody [follows](Replicas::follow).
    Grown(RunId),
}

/// What a store that several gateways share offers besides. A live run belongs to the gateway that admitted it or took it over last.
pub trait Replicas: Send + Sync {
    /// This gateway.
    fn me(&self) -> Peer;

    /// Says that this gateway lives, and asks who else does.
    fn beat(&self) -> StoreFuture<'_, Beat>;

    /// Live runs that belong to a gateway, oldest first, at most `limit`.
    fn runs_of(&self, boot: &str, limit: usize) -> StoreFuture<'_, Vec<RunId>>;

    /// Takes a run over from a gateway: raises its epoch and makes it this gateway's. `None`: that gateway does not have it any more.
    fn adopt(&self, run: RunId, from: &str) -> StoreFuture<'_, Option<OpenRun>>;

    /// Those of these runs that are live and belong to other gateways.
    fn elsewhere(&self, runs: Vec<RunId>) -> StoreFuture<'_, Vec<RunId>>;

    /// Forgets a gateway that has no runs left and is gone.
    fn forget(&self, boot: &str) -> StoreFuture<'_, ()>;

    /// Asks to be told of new events of a run for some seconds; ask again while it matters.
    fn follow(&self, runs: Vec<RunId>) -> StoreFuture<'_, ()>;

    /// What other gateways do from now on.
    fn changes(&self) -> broadcast::Receiver<Change>;
}
