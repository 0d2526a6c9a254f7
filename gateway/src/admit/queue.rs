//! Runs that wait for a worker, pool by pool.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;
use weir_protocol::error::ErrorCode;
use weir_run::RunId;

use crate::error::ApiError;
use crate::link::{Job, LinkHandle};
use crate::snapshot::Pool;

/// Queues of all pools. Cloning shares them.
#[derive(Clone, Default)]
pub(crate) struct Queues(Arc<Mutex<HashMap<String, PoolQueue>>>);

#[derive(Default)]
struct PoolQueue {
    /// By priority, most urgent first.
    waiting: [VecDeque<Box<Job>>; 3],
    /// Places promised to runs that are being admitted.
    reserved: usize,
    pace: Pace,
}

/// How fast runs leave a queue.
#[derive(Default)]
struct Pace {
    last_ms: u64,
    interval_ms: f64,
}

/// A place in a queue, given back unless it is used.
pub(crate) struct Slot {
    queues: Queues,
    pool: String,
    priority: usize,
    pub(crate) max_wait_ms: u64,
}

/// What a request says about waiting.
pub(crate) struct Wait {
    pub(crate) now_ms: u64,
    pub(crate) priority: u8,
    pub(crate) max_queue_ms: Option<u64>,
    pub(crate) deadline_ms: Option<u64>,
    /// A worker has room right now.
    pub(crate) idle: bool,
}

impl PoolQueue {
    fn len(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum::<usize>() + self.reserved
    }

    /// How long a run that comes now will wait, as far as the recent past tells.
    fn estimate_ms(&self, wait: &Wait) -> u64 {
        if wait.idle && self.len() == 0 {
            return 0;
        }
        let ahead: usize = self.waiting[..=usize::from(wait.priority.min(2))]
            .iter()
            .map(VecDeque::len)
            .sum();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a product of small positive numbers"
        )]
        let estimate = ((ahead + 1) as f64 * self.pace.interval_ms) as u64;
        estimate
    }
}

impl Pace {
    fn left(&mut self, now_ms: u64) {
        if self.last_ms > 0 {
            let interval = now_ms.saturating_sub(self.last_ms).min(60_000) as f64;
            self.interval_ms += 0.2 * (interval - self.interval_ms);
        }
        self.last_ms = now_ms;
    }
}

impl Queues {
    /// Promises a place, or says why there is none.
    pub(crate) fn reserve(&self, pool: &Pool, wait: &Wait) -> Result<Slot, ApiError> {
        let mut pools = self.0.lock();
        let queue = pools.entry(pool.name.clone()).or_default();
        let estimate_ms = queue.estimate_ms(wait);
        if queue.len() >= pool.max_queue_depth as usize {
            return Err(ApiError::new(
                ErrorCode::QueueFull,
                format!("the queue of pool {:?} is full; try again", pool.name),
            )
            .retry_after_ms(estimate_ms.max(100))
            .details(json!({"queueDepth": queue.len(), "maxQueueDepth": pool.max_queue_depth})));
        }
        let max_wait_ms = pool.max_wait_ms.min(wait.max_queue_ms.unwrap_or(u64::MAX));
        check_wait(wait, max_wait_ms, estimate_ms)?;
        queue.reserved += 1;
        Ok(Slot {
            queues: self.clone(),
            pool: pool.name.clone(),
            priority: usize::from(wait.priority.min(2)),
            max_wait_ms,
        })
    }

    /// Uses a place.
    pub(crate) fn push(&self, slot: Slot, job: Box<Job>) {
        let mut pools = self.0.lock();
        let queue = pools.entry(slot.pool.clone()).or_default();
        queue.waiting[slot.priority].push_back(job);
        drop(pools);
        drop(slot);
    }

    /// Queues a run again that had its turn.
    pub(crate) fn push_front(&self, job: Box<Job>) {
        let priority = (job.submit.priority as usize).min(2);
        let mut pools = self.0.lock();
        let queue = pools.entry(job.pool.clone()).or_default();
        queue.waiting[priority].push_front(job);
    }

    /// The next run that some worker can take now, and that worker.
    pub(crate) fn next(
        &self,
        pool: &str,
        best: impl Fn(&str) -> Option<Arc<LinkHandle>>,
    ) -> Option<(Box<Job>, Arc<LinkHandle>)> {
        let mut pools = self.0.lock();
        let queue = pools.get_mut(pool)?;
        // Versions that were found busy: a run behind one of another version must not wait for it.
        let mut busy: Vec<String> = Vec::new();
        for waiting in &mut queue.waiting {
            let mut place = 0;
            while let Some(job) = waiting.get(place) {
                let digest = &job.submit.version_digest;
                if busy.contains(digest) {
                    place += 1;
                    continue;
                }
                let Some(link) = best(digest) else {
                    busy.push(digest.clone());
                    place += 1;
                    continue;
                };
                let job = waiting.remove(place)?;
                queue.pace.left(crate::clock::now_ms());
                return Some((job, link));
            }
        }
        None
    }

    pub(crate) fn depth(&self, pool: &str) -> usize {
        self.0.lock().get(pool).map_or(0, PoolQueue::len)
    }

    /// Takes a waiting run out.
    pub(crate) fn remove(&self, run: RunId) -> Option<Box<Job>> {
        let mut pools = self.0.lock();
        pools
            .values_mut()
            .flat_map(|queue| &mut queue.waiting)
            .find_map(|waiting| {
                let place = waiting.iter().position(|job| job.writer.id() == run)?;
                waiting.remove(place)
            })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(queue) = self.queues.0.lock().get_mut(&self.pool) {
            queue.reserved -= 1;
        }
    }
}

fn check_wait(wait: &Wait, max_wait_ms: u64, estimate_ms: u64) -> Result<(), ApiError> {
    let unmeetable = |what: String, param: &str| {
        Err(ApiError::new(ErrorCode::DeadlineUnmeetable, what)
            .param(param)
            .details(json!({"estimateMs": estimate_ms})))
    };
    if let Some(deadline_ms) = wait.deadline_ms
        && wait.now_ms.saturating_add(estimate_ms) >= deadline_ms
    {
        let left = deadline_ms.saturating_sub(wait.now_ms);
        return unmeetable(
            format!(
                "the deadline is in {left} ms and the wait alone is estimated at {estimate_ms} ms; allow more time"
            ),
            "deadline",
        );
    }
    if estimate_ms > max_wait_ms {
        return unmeetable(
            format!(
                "the wait is estimated at {estimate_ms} ms and at most {max_wait_ms} ms are allowed; allow more or try again"
            ),
            "maxQueueMs",
        );
    }
    Ok(())
}
