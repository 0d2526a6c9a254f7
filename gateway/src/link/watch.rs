//! Regular looks at a session: whether it still lives, and whether its worker gets anything done.

use tokio::time::Instant;
use weir_protocol::worker::Ping;
use weir_run::RunId;

use super::Link;
use super::session::Held;

/// After so many times the time in which a worker counts as stalled, runs that it started are given up.
const GIVE_UP_STALLS: u64 = 8;

impl Link {
    /// Regular checks; whether the session was given up.
    pub(super) fn watch(&mut self) -> bool {
        let now = Instant::now();
        if let Some(lost) = self.lost
            && now - lost >= self.core.config.reattach_within
        {
            self.lost = None;
            self.give_up("the worker's session was lost and did not come back in time");
        }
        if self.conn.is_none() {
            return false;
        }
        let silence = now - self.heard;
        if silence >= self.core.config.worker_silence {
            tracing::warn!(worker = self.name(), ?silence, "the worker says nothing");
            self.disconnected();
            return true;
        }
        if silence >= self.core.config.worker_silence / 4 {
            self.send(Ping { nonce: 0 });
        }
        self.take_back();
        self.watch_progress();
        false
    }

    /// A worker that answers and gets nothing done is stalled all the same: what it never started goes to another one, and in the end
    /// the rest ends with what it has. While the store does not answer it is not the worker's fault.
    fn watch_progress(&mut self) {
        if self.committing.is_some() || self.runs.is_empty() {
            return;
        }
        let (stalled_ms, after_ms) = (self.handle.stalled_ms(), self.handle.stall_after_ms());
        if stalled_ms <= 2 * after_ms {
            return;
        }
        let is_over = stalled_ms > GIVE_UP_STALLS * after_ms;
        let lost = |held: &&Held| is_over || (!held.writer.started && held.submit.is_some());
        let runs: Vec<RunId> = self
            .runs
            .values()
            .filter(lost)
            .map(|held| held.writer.id())
            .collect();
        if runs.is_empty() {
            return;
        }
        tracing::warn!(
            worker = self.name(),
            stalled_ms,
            runs = runs.len(),
            "the worker gets nothing done"
        );
        self.handle.suspect();
        for run in runs {
            self.cancel(run);
            self.lose(run, "the worker got nothing done for too long");
        }
    }
}
