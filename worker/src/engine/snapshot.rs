//! What the engine publishes after each step, for status frames, metrics and the drain.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use weir_protocol::worker::{LoadedModel, WorkerStatus, finish::Reason};

/// The engine's figures at one moment. Counters count from the start of the process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Snapshot {
    /// What runs may name: the version that was loaded, then its adapters.
    pub models: Arc<[LoadedModel]>,
    /// Engine steps: progress is judged by this.
    pub steps: u64,
    /// Sequences with a slot.
    pub running: u32,
    /// Sequences without one.
    pub waiting: u32,
    /// KV blocks.
    pub blocks_total: u32,
    /// Blocks nobody uses.
    pub blocks_free: u32,
    /// Blocks of the prefix cache that can be taken.
    pub blocks_cached: u32,
    /// Tokens held by running sequences.
    pub kv_tokens: u64,
    /// Prompt tokens that waiting and partly prefilled sequences still need.
    pub prefill_tokens_waiting: u64,
    /// Prompt tokens of admitted sequences.
    pub prompt_tokens: u64,
    /// Those of them whose KV was reused.
    pub cached_tokens: u64,
    /// Tokens sampled.
    pub output_tokens: u64,
    /// Tokens guessed and computed ahead.
    pub drafted_tokens: u64,
    /// Those of them that came true.
    pub accepted_tokens: u64,
    /// Sequences that lost their slot to others.
    pub preemptions: u64,
    /// Moving average of a step's time, in microseconds.
    pub step_us_ewma: u64,
    /// Of that, time outside of the backend.
    pub host_us_ewma: u64,
    /// Whether new runs are refused.
    pub draining: bool,
    /// Runs that are not finished.
    pub runs_live: u64,
    /// Runs whose rows are not all acknowledged, finished or not.
    pub runs_held: u64,
    /// While draining: runs with rows that their session has not been sent.
    pub runs_unsent: u64,
    /// Bytes of unacknowledged rows.
    pub window_bytes: u64,
    /// Open sessions.
    pub sessions: u64,
    /// Sessions that do not read.
    pub sessions_stalled: u64,
    /// Choices by how they ended: stop, length, cancelled, failed.
    pub finished: [u64; 4],
    /// Why the engine gave up, if it did.
    pub failure: Option<String>,
}

/// Names of [`Snapshot::finished`], in order.
pub(crate) const FINISH_NAMES: [&str; 4] = ["stop", "length", "cancelled", "failed"];

impl Snapshot {
    pub(crate) fn count_finish(&mut self, reason: Reason) {
        let place = match reason {
            Reason::Stop => 0,
            Reason::Length => 1,
            Reason::Cancelled => 2,
            Reason::Failed | Reason::Unspecified => 3,
        };
        self.finished[place] += 1;
    }

    /// The frame a gateway gets, stamped with the time.
    pub(crate) fn status_frame(&self) -> WorkerStatus {
        let digests = self.models.iter();
        WorkerStatus {
            observed_unix_ms: unix_ms(),
            steps: self.steps,
            running: self.running,
            waiting: self.waiting,
            blocks_total: self.blocks_total,
            blocks_free: self.blocks_free,
            blocks_cached: self.blocks_cached,
            kv_tokens: self.kv_tokens,
            prefill_tokens_waiting: self.prefill_tokens_waiting,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: self.cached_tokens,
            output_tokens: self.output_tokens,
            preemptions: self.preemptions,
            step_us_ewma: self.step_us_ewma,
            draining: self.draining,
            loaded_digests: digests.map(|model| model.version_digest.clone()).collect(),
            loaded: self.models.to_vec(),
        }
    }

    /// Whether everything that someone waits for is on its way: what was sent arrives, because sessions end in order. Rows that no
    /// session has claimed are not waited for: who left before a drain finds the worker gone.
    pub(crate) fn is_drained(&self) -> bool {
        self.draining && self.runs_live == 0 && self.runs_unsent == 0
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
