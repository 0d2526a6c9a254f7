//! What is measured: kinds of load, and who takes it.

use super::peers::Peer;

/// One kind of load.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// Ways to run the gateway.
    pub(super) modes: &'static [Mode],
    pub(super) with_peers: bool,
    /// Streams, or connections of requests.
    pub(super) n: u32,
    /// Of each answer.
    pub(super) tokens: u32,
    /// Milliseconds between two tokens; 0: all at once.
    pub(super) interval_ms: u32,
    /// Milliseconds over which streams begin; 0: requests that are answered at once.
    pub(super) ramp_ms: u32,
    /// Requests a second; 0: as fast as they are answered.
    pub(super) rate: u32,
    /// Streams on one HTTP/2 connection; 0: HTTP/1.1.
    pub(super) per_connection: u32,
    /// Too long for several rounds.
    pub(super) once: bool,
}

/// A way to run the gateway.
pub(super) struct Mode {
    pub(super) name: &'static str,
    pub(super) durability: &'static str,
    /// Events as Weir has them, instead of chunks of OpenAI's API.
    pub(super) is_native: bool,
}

const DURABLE: Mode = Mode {
    name: "weir, durable",
    durability: "disk",
    is_native: false,
};
const MEMORY: Mode = Mode {
    name: "weir, events in memory",
    durability: "memory",
    is_native: false,
};
const NATIVE: Mode = Mode {
    name: "weir, durable, own API",
    durability: "disk",
    is_native: true,
};

/// Who takes the load.
pub(super) enum Subject<'a> {
    Weir(&'a Mode),
    /// Nobody: the client asks the backend itself.
    Direct,
    Peer(&'a Peer),
}

impl Subject<'_> {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Weir(mode) => mode.name,
            Self::Direct => "no gateway",
            Self::Peer(peer) => &peer.name,
        }
    }
}

impl Row {
    pub(super) fn is_requests(&self) -> bool {
        self.ramp_ms == 0
    }
}

/// What most rows have in common.
const STREAMS: Row = Row {
    name: "",
    modes: &[MEMORY],
    with_peers: false,
    n: 5_000,
    tokens: 100,
    interval_ms: 100,
    ramp_ms: 3_000,
    rate: 0,
    per_connection: 0,
    once: false,
};

/// All rows, in the order of the table.
pub(super) fn all() -> Vec<Row> {
    vec![
        Row {
            name: "64 connections, 8 tokens at once",
            modes: &[DURABLE, MEMORY],
            with_peers: true,
            n: 64,
            tokens: 8,
            interval_ms: 0,
            ramp_ms: 0,
            ..STREAMS
        },
        Row {
            name: "100 requests/s, 8 tokens at once",
            modes: &[DURABLE, MEMORY],
            with_peers: true,
            n: 1,
            tokens: 8,
            interval_ms: 0,
            ramp_ms: 0,
            rate: 100,
            ..STREAMS
        },
        Row {
            name: "5,000 streams, 10 events/s each",
            modes: &[MEMORY, DURABLE],
            with_peers: true,
            ..STREAMS
        },
        Row {
            name: "9,500 streams, 10 events/s each",
            modes: &[MEMORY, DURABLE],
            with_peers: true,
            n: 9_500,
            ramp_ms: 5_000,
            ..STREAMS
        },
        Row {
            name: "5,000 streams, 6 events/s each",
            modes: &[DURABLE],
            tokens: 60,
            interval_ms: 166,
            ..STREAMS
        },
        Row {
            name: "4,000 streams over HTTP/2, 10 events/s each",
            modes: &[NATIVE, DURABLE],
            n: 4_000,
            per_connection: 100,
            ..STREAMS
        },
        Row {
            name: "100,000 streams over HTTP/2, 0.3 events/s each",
            modes: &[NATIVE],
            n: 100_000,
            tokens: 30,
            interval_ms: 3_200,
            ramp_ms: 50_000,
            per_connection: 250,
            once: true,
            ..STREAMS
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_names_of_their_own_and_peers_a_base_to_be_held_against() {
        let rows = all();
        for (place, row) in rows.iter().enumerate() {
            assert!(rows[..place].iter().all(|other| other.name != row.name));
            assert!(!row.modes.is_empty() && row.tokens > 0 && row.n > 0);
            assert!(row.rate == 0 || row.is_requests());
        }
    }
}
