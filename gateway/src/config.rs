//! What a gateway is started with. What changes while it runs is in [`crate::Snapshot`].

use std::time::Duration;

/// Bounds and times of one gateway. Every bound has a reason in its comment; the defaults serve one machine and a cluster alike.
#[derive(Clone, Debug)]
pub struct Config {
    /// Names this process among several that share the store.
    pub replica: String,
    /// Largest request body in bytes. A context of 128k tokens as JSON text stays below 1 MiB; as token ids below 1 MiB too.
    pub body_bytes: usize,
    /// Bytes of bodies held at once, of all requests from their arrival to their admission; of one tenant a quarter of that. One that finds no
    /// room is refused and may try again.
    pub bodies_bytes: usize,
    /// Deepest nesting of a JSON body: the contract needs 5.
    pub json_depth: usize,
    /// Largest block of request headers in bytes.
    pub header_bytes: usize,
    /// Most request headers.
    pub header_count: usize,
    /// Longest time a client may take for its headers.
    pub header_timeout: Duration,
    /// Longest time a client may take for its body.
    pub body_timeout: Duration,
    /// Longest time a client may leave its connection full before it is cut; it can resume by `after`.
    pub write_timeout: Duration,
    /// Most connections at once; further ones wait in the listener's backlog.
    pub max_connections: usize,
    /// Most of them from one address.
    pub max_connections_of_one: usize,
    /// How long a connection may stay open without a request.
    pub idle_timeout: Duration,
    /// Silence on a stream after which a comment is sent.
    pub keep_alive: Duration,
    /// Largest file that a client may send: as large as `OpenAI` takes for a batch.
    pub file_bytes: u64,
    /// Space for the files of one tenant.
    pub tenant_file_bytes: u64,
    /// How long a gateway has a batch to itself after it last said so; another takes it when the gateway died.
    pub batch_lease: Duration,
    /// How often batches are looked for that nobody works on.
    pub batch_look_every: Duration,
    /// Threads that tokenize at once.
    pub tokenizer_threads: usize,
    /// Requests that may wait for such a thread; more are refused.
    pub tokenizer_queue: usize,
    /// Events of a live run kept in memory for its subscribers; a reader that lags further reads from the store.
    pub tail_events: usize,
    /// Rows of a run that a worker may send ahead of what is durable.
    pub row_window: u64,
    /// How long runs of a lost session wait for the same worker to return.
    pub reattach_within: Duration,
    /// How long runs found at start wait for the worker that holds them.
    pub adopt_within: Duration,
    /// Silence of another gateway of the same store after which its runs are taken over.
    pub dead_after: Duration,
    /// Runs of a dead gateway, or of this one's last life, that are queued again or ended per second: an outage is not followed by a burst.
    pub recover_per_second: u32,
    /// How often accounts that have changed are looked at for thresholds: an alert comes this late at most.
    pub alerts_every: Duration,
    /// From the first attempt at a webhook to the second; doubles with each further one.
    pub webhook_pause: Duration,
    /// How often it is written when keys were last used: what is shown after a crash may be that much too old.
    pub key_use_every: Duration,
    /// Silence of a worker (it answers pings) after which its session is given up.
    pub worker_silence: Duration,
    /// Age at which a run counts as evidence of its version, and time without a token after which it counts as failed.
    pub settle: Duration,
    /// Latencies count as evidence only for runs that come so long after their table.
    pub warm_up: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            replica: "gateway-0".to_owned(),
            body_bytes: 4 << 20,
            bodies_bytes: 64 << 20,
            json_depth: 32,
            header_bytes: 32 << 10,
            header_count: 100,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            max_connections: 10_000,
            max_connections_of_one: 5_000,
            idle_timeout: Duration::from_mins(1),
            keep_alive: Duration::from_secs(15),
            file_bytes: 200 << 20,
            tenant_file_bytes: 1 << 30,
            batch_lease: Duration::from_secs(5),
            batch_look_every: Duration::from_millis(500),
            tokenizer_threads: std::thread::available_parallelism().map_or(1, usize::from),
            tokenizer_queue: 256,
            tail_events: 64,
            row_window: 256,
            reattach_within: Duration::from_secs(2),
            adopt_within: Duration::from_secs(5),
            dead_after: Duration::from_secs(5),
            recover_per_second: 500,
            alerts_every: Duration::from_secs(1),
            webhook_pause: Duration::from_secs(1),
            key_use_every: Duration::from_mins(1),
            worker_silence: Duration::from_secs(10),
            settle: Duration::from_secs(10),
            warm_up: Duration::from_secs(30),
        }
    }
}
