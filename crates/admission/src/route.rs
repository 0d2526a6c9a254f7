//! Which worker takes a run.

use crate::pace::{Pace, Times, whole};

/// A worker, as the caller counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub u64);

/// What the caller knows of a worker: its last status, and what was sent since. Those that do not serve the version, that get
/// nothing done, or that could never hold the run are left out before.
#[derive(Clone, Copy, Debug)]
pub struct WorkerView {
    /// Which.
    pub id: WorkerId,
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
    /// How fast it computes, as was learned of it.
    pub pace: Pace,
    /// Recent duration of a step: a first guess until its pace is learned.
    pub step_us: u64,
    /// Prompt tokens of this run that are probably in its prefix cache.
    pub prefix_affinity_tokens: u32,
}

/// What is to be sent to a worker.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Output tokens it is expected to make.
    pub output_tokens: u32,
}

/// How far the rules reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutePolicy {
    /// A cached prefix is worth at most so much extra wait, whatever its length: a popular prefix must not pile a whole
    /// tenant onto one worker.
    pub affinity_cap_us: u64,
}

impl Default for RoutePolicy {
    fn default() -> Self {
        Self {
            affinity_cap_us: 500_000,
        }
    }
}

/// Where a run goes, and what was expected of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routed {
    /// The worker.
    pub worker: WorkerId,
    /// Until its first token.
    pub predicted_us: u64,
    /// Prompt tokens that the worker probably has already.
    pub affinity_tokens: u32,
}

/// The worker where the run is expected to see its first token soonest. Equal ones go by load, then by id. O(workers).
///
/// A cached prefix is worth the prefill it saves, up to the policy's cap, and no more: so affinity never costs more time than it
/// was thought to save.
pub fn route(workers: &[WorkerView], ask: &Ask, policy: &RoutePolicy) -> Option<Routed> {
    workers
        .iter()
        .filter(|worker| worker.max_running > 0)
        .map(|worker| {
            let predicted_us = predicted_us(worker, *ask, *policy);
            let load = worker.running + worker.waiting;
            (predicted_us, load, worker)
        })
        .min_by_key(|(predicted_us, load, worker)| (*predicted_us, *load, worker.id))
        .map(|(predicted_us, _, worker)| Routed {
            worker: worker.id,
            predicted_us,
            affinity_tokens: worker.prefix_affinity_tokens.min(ask.prompt_tokens),
        })
}

/// Time to the first token: prefill of what is outstanding and of this prompt, plus the wait for a seat and for memory, less
/// what the prefix cache saves.
fn predicted_us(worker: &WorkerView, ask: Ask, policy: RoutePolicy) -> u64 {
    let times = times(worker);
    let running = u64::from(worker.running.min(worker.max_running));
    let batch = u64::from(worker.max_batch_tokens.max(1));
    // Running runs have a token in each step; a prompt takes what they leave, and never less than a quarter.
    let room = batch.saturating_sub(running).max(batch.div_ceil(4));
    let step_us = times.step_us + times.token_us * running as f64;
    let prefill = |tokens: u64| {
        let steps = tokens.div_ceil(room).max(1);
        step_us * steps as f64 + times.token_us * tokens as f64
    };
    let prompt = u64::from(ask.prompt_tokens);
    // One token of the prompt is computed in any case: the one that makes the first of the output.
    let cached = u64::from(worker.prefix_affinity_tokens).min(prompt.saturating_sub(1));
    let work = prefill(worker.outstanding_prefill_tokens + prompt);
    let with_cached = prefill(worker.outstanding_prefill_tokens + prompt - cached);
    let saved = (work - with_cached).min(policy.affinity_cap_us as f64);
    // A seat frees itself after an output's worth of steps, and all seats do so at the same pace.
    let output = u64::from(ask.output_tokens.max(1));
    let seat_us = step_us * output as f64 / f64::from(worker.max_running);
    let seats_short = (u64::from(worker.running) + u64::from(worker.waiting) + 1)
        .saturating_sub(u64::from(worker.max_running));
    let need = prompt - cached + output;
    let memory_short = need
        .saturating_sub(worker.free_kv_tokens)
        .div_ceil(need.max(1));
    whole(work - saved + seat_us * (seats_short + memory_short) as f64)
}

/// A step of a worker that said nothing yet.
const FIRST_STEP_US: u64 = 10_000;

/// As learned; before that, a full step takes as long as the recent ones.
fn times(worker: &WorkerView) -> Times {
    worker.pace.times().unwrap_or_else(|| {
        let step_us = match worker.step_us {
            0 => FIRST_STEP_US as f64,
            step_us => step_us as f64,
        };
        Times {
            step_us: step_us / 2.0,
            token_us: step_us / 2.0 / f64::from(worker.max_batch_tokens.max(1)),
        }
    })
}

#[cfg(test)]
mod tests;
