//! The set of links, kept equal to the snapshot's workers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::RwLock;
use weir_admission::{Ask, Capacity, RoutePolicy, WorkerId, WorkerView, route};

use crate::core::Core;
use crate::link::{Command, Job, Link, LinkHandle};
use crate::snapshot::WorkerEndpoint;

/// Links by worker.
#[derive(Default)]
pub(crate) struct Links {
    all: RwLock<Vec<Arc<LinkHandle>>>,
}

impl Links {
    /// Opens links to new workers and retires links to workers that are gone; a retired link ends after its last run.
    pub(crate) fn apply(&self, core: &Arc<Core>, endpoints: &[WorkerEndpoint]) {
        let mut all = self.all.write();
        all.retain(|link| {
            let stays = endpoints.contains(&link.endpoint);
            if !stays {
                link.retire();
            }
            stays
        });
        for endpoint in endpoints {
            if all.iter().any(|link| link.endpoint == *endpoint) {
                continue;
            }
            let (handle, commands) = LinkHandle::new(endpoint.clone());
            all.push(Arc::clone(&handle));
            core.tasks
                .spawn(Link::new(Arc::clone(core), handle, commands).run());
        }
    }

    /// What the worker of this version with most room could take now.
    pub(crate) fn room(&self, digest: &str) -> Capacity {
        self.all
            .read()
            .iter()
            .filter(|link| link.serves(digest))
            .map(|link| (link.seats(), link.free_kv_tokens()))
            .max_by_key(|(seats, kv_tokens)| (*seats > 0, *kv_tokens, *seats))
            .map_or(
                Capacity {
                    seats: 0,
                    kv_tokens: 0,
                },
                |(seats, kv_tokens)| Capacity { seats, kv_tokens },
            )
    }

    /// Seats of this version's workers that are kept for tenants who have fewer than that, and how many each has.
    pub(crate) fn crowd(&self, digest: &str) -> (u32, BTreeMap<String, u32>) {
        let all = self.all.read();
        let serving = all.iter().filter(|link| link.serves(digest));
        let (mut reserved, mut held) = (0, BTreeMap::new());
        for link in serving {
            // Of one worker, as `room` is: others may be full.
            reserved = link.reserved_seats().max(reserved);
            for (tenant, count) in link.held() {
                *held.entry(tenant).or_default() += count;
            }
        }
        (reserved, held)
    }

    /// The worker that should take a run: where its first token is expected soonest.
    pub(crate) fn route(&self, job: &Job) -> Option<Arc<LinkHandle>> {
        let all = self.all.read();
        let serving: Vec<_> = all
            .iter()
            .filter(|link| link.seats() > 0 && link.serves(job.digest()))
            .collect();
        let views: Vec<_> = serving
            .iter()
            .zip(0..)
            .map(|(link, place)| view(link, job.digest(), WorkerId(place)))
            .collect();
        let ask = Ask {
            digest: job.digest(),
            prompt_tokens: job.submit.prompt.len() as u32,
            output_tokens: job.submit.max_output_tokens / 2,
            now_ms: ANY_NOW_MS,
        };
        let WorkerId(place) = route(&views, &ask, &RoutePolicy::default())?;
        serving.get(place as usize).map(|link| Arc::clone(link))
    }

    /// Whether any worker serves this version, busy or not.
    pub(crate) fn any(&self, pool: &str, digest: &str) -> bool {
        self.all
            .read()
            .iter()
            .any(|link| link.endpoint.pool == pool && link.serves(digest))
    }

    /// KV positions of a pool's connected workers.
    pub(crate) fn kv_tokens(&self, pool: &str) -> u64 {
        self.all
            .read()
            .iter()
            .filter(|link| link.endpoint.pool == pool && link.connected.load(Ordering::Acquire))
            .map(|link| link.kv_tokens())
            .sum()
    }

    /// Whether there are workers and every one has had its say on the runs it holds.
    pub(crate) fn all_welcomed(&self) -> bool {
        let all = self.all.read();
        !all.is_empty() && all.iter().all(|link| link.welcomed.load(Ordering::Acquire))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.read().is_empty()
    }

    pub(crate) fn died(&self, worker: &str) {
        for link in &*self.all.read() {
            if link.endpoint.name == worker {
                link.send(Command::Died).ok();
            }
        }
    }

    pub(crate) fn handles(&self) -> Vec<Arc<LinkHandle>> {
        self.all.read().clone()
    }
}

/// Routing wants points in time and compares them with "now" alone, while links keep durations: "now" may be any number that is
/// larger than every stall.
const ANY_NOW_MS: u64 = 1 << 40;

fn view<'a>(link: &LinkHandle, digest: &'a str, id: WorkerId) -> WorkerView<'a> {
    let in_flight = link.in_flight.load(Ordering::Acquire);
    let (free_kv_tokens, stalled_ms) = (link.free_kv_tokens(), link.stalled_ms());
    let facts = link.facts.lock();
    let max_running = facts.limits.max_running.max(1);
    WorkerView {
        id,
        digest,
        running: in_flight.min(max_running),
        max_running,
        max_batch_tokens: facts.limits.max_batch_tokens,
        waiting: in_flight.saturating_sub(max_running),
        outstanding_prefill_tokens: facts.status.prefill_tokens_waiting,
        free_kv_tokens,
        step_us: facts.status.step_us_ewma,
        last_progress_ms: ANY_NOW_MS - stalled_ms,
        prefix_affinity_tokens: 0,
    }
}
