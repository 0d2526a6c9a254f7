//! Which worker takes a run.

/// A worker, as the caller counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u64);

/// What the caller knows of a worker: its last status, and what was sent since.
#[derive(Clone, Copy, Debug)]
pub struct WorkerView<'a> {
    /// Which.
    pub id: WorkerId,
    /// The model version it serves.
    pub digest: &'a str,
    /// Runs it computes.
    pub running: u32,
    /// Runs it can compute at the same time.
    pub max_running: u32,
    /// Tokens per step at most.
    pub max_batch_tokens: u32,
    /// Runs that wait on it, those sent since its last status included.
    pub waiting: u32,
    /// Prompt tokens it has not computed yet, those sent since its last status included.
    pub outstanding_prefill_tokens: u64,
    /// KV tokens that are free or evictable.
    pub free_kv_tokens: u64,
    /// Recent duration of a step.
    pub step_us: u64,
    /// When its step counter last moved, or it last said that it has nothing to do.
    pub last_progress_ms: u64,
    /// Prompt tokens of this run that are probably in its prefix cache.
    pub prefix_affinity_tokens: u32,
}

/// What is to be placed.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The model version.
    pub digest: &'a str,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Output tokens it is expected to make.
    pub output_tokens: u32,
    /// Now, on the clock of `last_progress_ms`.
    pub now_ms: u64,
}

/// How far the rules reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutePolicy {
    /// A worker without progress for so long gets nothing.
    pub stall_ms: u64,
    /// A cached prefix is worth at most so much extra wait, whatever its length: a popular prefix must not pile a whole
    /// tenant onto one worker.
    pub affinity_cap_us: u64,
}

impl Default for RoutePolicy {
    fn default() -> Self {
        Self {
            stall_ms: 5_000,
            affinity_cap_us: 500_000,
        }
    }
}

/// The worker where the run is expected to see its first token soonest, among those that serve the version and make progress.
/// Equal ones go by load, then by id. O(workers).
pub fn route(workers: &[WorkerView<'_>], ask: &Ask<'_>, policy: &RoutePolicy) -> Option<WorkerId> {
    workers
        .iter()
        .filter(|worker| worker.digest == ask.digest && worker.max_running > 0)
        .filter(|worker| ask.now_ms.saturating_sub(worker.last_progress_ms) <= policy.stall_ms)
        .min_by_key(|worker| {
            (
                predicted_us(worker, ask, policy),
                worker.running + worker.waiting,
                worker.id,
            )
        })
        .map(|worker| worker.id)
}

/// Time to the first token: prefill of what is outstanding and of this prompt, plus the wait for a seat and for memory, less
/// what the prefix cache saves.
fn predicted_us(worker: &WorkerView<'_>, ask: &Ask<'_>, policy: &RoutePolicy) -> u64 {
    // Before the first step any positive number orders workers by their load.
    let step_us = worker.step_us.max(1);
    let prefill = |tokens: u64| tokens * step_us / u64::from(worker.max_batch_tokens.max(1));
    let prompt = u64::from(ask.prompt_tokens);
    let work = prefill(worker.outstanding_prefill_tokens + prompt);
    let cached = u64::from(worker.prefix_affinity_tokens).min(prompt.saturating_sub(1));
    let saved = prefill(cached).min(policy.affinity_cap_us);
    // A seat frees itself after an output's worth of steps, and all seats do so at the same pace.
    let seat_us = u64::from(ask.output_tokens.max(1)) * step_us / u64::from(worker.max_running);
    let seats_short = (u64::from(worker.running) + u64::from(worker.waiting) + 1)
        .saturating_sub(u64::from(worker.max_running));
    let need = prompt - cached + u64::from(ask.output_tokens);
    let memory_short = need
        .saturating_sub(worker.free_kv_tokens)
        .div_ceil(need.max(1));
    // One step in any case: the one that makes the token.
    step_us + work - saved + seat_us * (seats_short + memory_short)
}

#[cfg(test)]
mod tests;
