//! One run on trial: what was seen of it, and what that counts as.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use weir_rollout::evidence::{Counts, EntryKey, bucket_of_length, bucket_of_us};
use weir_rollout::routing::Thresholds;

use super::Assigned;

/// Gaps between tokens from which on a run says something of them.
const LEAST_GAPS: u64 = 8;
/// One gap in so many may be over the limit.
const GAPS_PER_LONG: u64 = 20;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It completed.
    Completed(Output),
    /// The engine, the worker or the version failed.
    Failed,
    /// It says nothing: cancelled, expired after its first token, cut by a worker's death.
    Neutral,
    /// It waited too long.
    Overload,
}

/// What a completed run made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) tokens: u64,
    /// Ended by its ceiling, going round in circles, or empty.
    pub(crate) is_odd: bool,
    /// It begins with words of refusal.
    pub(crate) is_refusal: bool,
}

pub(super) struct Trial {
    pub(super) key: Arc<EntryKey>,
    pub(super) model: String,
    pub(super) tenant: String,
    pub(super) assigned: Instant,
    pub(super) sent: Option<Instant>,
    thresholds: Thresholds,
    is_warm: bool,
    first: Option<Instant>,
    last: Option<Instant>,
    gaps: u64,
    long_gaps: u64,
    end: Option<End>,
    is_stalled: bool,
}

impl Trial {
    pub(super) fn new(
        key: Arc<EntryKey>,
        assigned: &Assigned<'_>,
        is_warm: bool,
        now: Instant,
    ) -> Self {
        Self {
            key,
            model: assigned.model.to_owned(),
            tenant: assigned.tenant.to_owned(),
            assigned: now,
            sent: None,
            thresholds: assigned.table.thresholds,
            is_warm,
            first: None,
            last: None,
            gaps: 0,
            long_gaps: 0,
            end: None,
            is_stalled: false,
        }
    }

    pub(super) fn shown(&mut self, tokens: u64, now: Instant) {
        let Some(last) = self.last.replace(now) else {
            self.first = Some(now);
            return;
        };
        // Tokens that became visible together share the time since those before them.
        let each = now.duration_since(last) / u32::try_from(tokens).unwrap_or(u32::MAX).max(1);
        self.gaps += tokens;
        if let Some(limit_ms) = self.thresholds.inter_token_limit_ms
            && each > Duration::from_millis(limit_ms.into())
        {
            self.long_gaps += tokens;
        }
    }

    /// Notes the end; what counts at once.
    pub(super) fn ended(&mut self, end: End, now: Instant) -> Counts {
        let mut counts = Counts::default();
        if self.end.is_some() {
            return counts;
        }
        self.end = Some(end);
        self.last = self.last.or(Some(now));
        match end {
            End::Failed => counts.failed_so_far = u64::from(!self.is_stalled),
            End::Neutral => counts.neutral = u64::from(!self.is_stalled),
            End::Overload => counts.overload = u64::from(!self.is_stalled),
            End::Completed(_) => {}
        }
        counts
    }

    /// Whether it turns out now that a worker that has the run shows nothing of it.
    pub(super) fn stalls(&mut self, now: Instant, stall: Duration) -> bool {
        let quiet_since = self.last.or(self.sent);
        let is_quiet = quiet_since.is_some_and(|since| now.duration_since(since) >= stall);
        if self.end.is_some() || self.is_stalled || self.sent.is_none() || !is_quiet {
            return false;
        }
        self.is_stalled = true;
        true
    }

    pub(super) fn is_over(&self) -> bool {
        self.end.is_some() || self.is_stalled
    }

    /// Whether it is bad; `None` where it says nothing.
    pub(super) fn is_bad(&self) -> Option<bool> {
        match self.end {
            _ if self.is_stalled => Some(true),
            Some(End::Failed) => Some(true),
            Some(End::Completed(_)) => Some(false),
            _ => None,
        }
    }

    /// What it counts as once it has settled.
    pub(super) fn settled(&self) -> Counts {
        let mut counts = Counts::default();
        if let Some(is_bad) = self.is_bad() {
            counts.errors.record(is_bad);
        }
        if let (false, Some(End::Completed(output))) = (self.is_stalled, self.end) {
            let tokens = u32::try_from(output.tokens).unwrap_or(u32::MAX);
            counts.output.record(output.is_odd || tokens == 0);
            counts.refusal.record(output.is_refusal);
            counts.length.record(bucket_of_length(tokens), 1);
        }
        if self.is_warm {
            self.latencies(&mut counts);
        }
        counts
    }

    fn latencies(&self, counts: &mut Counts) {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let limit = self.thresholds.ttft_limit_ms.map(u64::from);
        match self.first {
            Some(first) => {
                let ttft = us(first.duration_since(self.assigned));
                counts.ttft.record(bucket_of_us(ttft), 1);
                if let Some(limit_ms) = limit {
                    counts.ttft_limit.record(ttft > limit_ms * 1000);
                }
            }
            // No first token within any limit.
            None if self.is_stalled && limit.is_some() => counts.ttft_limit.record(true),
            None => {}
        }
        if self.gaps >= LEAST_GAPS && self.thresholds.inter_token_limit_ms.is_some() {
            let is_bad = self.long_gaps * GAPS_PER_LONG > self.gaps;
            counts.inter_token_limit.record(is_bad);
        }
        if let (Some(first), Some(last), 1..) = (self.first, self.last, self.gaps) {
            let each = us(last.duration_since(first)) / self.gaps;
            counts.inter_token.record(bucket_of_us(each), 1);
        }
    }
}
