//! The set of links, kept equal to the snapshot's workers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::{Mutex, RwLock};
use weir_admission::{Ask, Capacity, Prefixes, RoutePolicy, WorkerId, WorkerView, route};

use crate::clock::random_u128;
use crate::core::Core;
use crate::link::{Command, Dispatch, Job, Link, LinkHandle, prefixes};
use crate::snapshot::WorkerEndpoint;

/// Beginnings of prompts that are remembered: a dozen MiB at most.
const PREFIXES: usize = 65_536;

/// A cache keeps whole blocks only: so many tokens less are no miss.
const GRANULARITY: u64 = 128;

/// Links by worker.
pub(crate) struct Links {
    all: RwLock<Vec<Arc<LinkHandle>>>,
    /// Which worker probably has which beginning of a prompt.
    prefixes: Mutex<Prefixes>,
    prefix_key: [u8; 32],
}

impl Default for Links {
    fn default() -> Self {
        let mut prefix_key = [0; 32];
        prefix_key[..16].copy_from_slice(&random_u128().to_le_bytes());
        Self {
            all: RwLock::default(),
            prefixes: Mutex::new(Prefixes::new(PREFIXES)),
            prefix_key,
        }
    }
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

    /// What the workers of this version could take now.
    pub(crate) fn room(&self, digest: &str) -> Capacity {
        let mut room = Capacity {
            seats: 0,
            total: 0,
            kv_tokens: 0,
        };
        for link in self.all.read().iter().filter(|link| link.takes(digest)) {
            let seats = link.seats();
            room.seats += seats;
            room.total += link.most_seats();
            if seats > 0 {
                room.kv_tokens = room.kv_tokens.max(link.free_kv_tokens());
            }
        }
        room
    }

    /// Seats of this version's workers that are kept for tenants who have fewer than that, and how many each has.
    pub(crate) fn crowd(&self, digest: &str) -> (u32, BTreeMap<String, u32>) {
        let all = self.all.read();
        let (mut reserved, mut held) = (0, BTreeMap::new());
        for link in all.iter().filter(|link| link.takes(digest)) {
            // What is reserved on a worker that is full is in use.
            reserved += link.reserved_seats().min(link.seats());
            for (tenant, count) in link.held() {
                *held.entry(tenant).or_default() += count;
            }
        }
        (reserved, held)
    }

    /// The worker that should take a run: where its first token is expected soonest, among those that have a seat and could hold
    /// it at all.
    pub(crate) fn route(&self, job: &Job) -> Option<(Arc<LinkHandle>, Dispatch)> {
        let all = self.all.read();
        let submit = &job.submit;
        let prompt_tokens = submit.prompt.len() as u64;
        let most_tokens = prompt_tokens + u64::from(submit.max_output_tokens);
        let open = |link: &&Arc<LinkHandle>| link.seats() > 0 && link.takes(job.digest());
        let mut able: Vec<_> = all
            .iter()
            .filter(|link| open(link) && link.could_hold(job.digest(), most_tokens))
            .collect();
        if able.is_empty() {
            // Whether it fits at all a worker says itself.
            able = all.iter().filter(open).collect();
        }
        let mut memory = self.prefixes.lock();
        let known = if able.len() > 1 {
            prefixes(&self.prefix_key, submit)
        } else {
            Vec::new()
        };
        let affinity = |link: &LinkHandle| memory.held_by(WorkerId(link.id), &known);
        let views: Vec<_> = able.iter().map(|link| view(link, affinity(link))).collect();
        let ask = Ask {
            prompt_tokens: prompt_tokens as u32,
            output_tokens: submit.max_output_tokens / 2,
        };
        let routed = route(&views, &ask, &RoutePolicy::default())?;
        memory.went_to(routed.worker, &known);
        let link = able
            .into_iter()
            .find(|link| WorkerId(link.id) == routed.worker)?;
        let expected = (routed.affinity_tokens, routed.predicted_us);
        let dispatch = Dispatch::new(link, submit, known, expected);
        Some((Arc::clone(link), dispatch))
    }

    /// A worker started a run and had fewer tokens of its beginning than was thought: of the longer ones it is forgotten until this
    /// run has put them back.
    pub(crate) fn missed(&self, link: &LinkHandle, dispatch: &Dispatch, cached_tokens: u64) {
        if cached_tokens + GRANULARITY < u64::from(dispatch.affinity_tokens) {
            let cached = u32::try_from(cached_tokens).unwrap_or(u32::MAX);
            let mut memory = self.prefixes.lock();
            memory.had_only(WorkerId(link.id), &dispatch.prefixes, cached);
        }
    }

    /// A worker's process is a new one: its prefix cache is empty.
    pub(crate) fn restarted(&self, link: &LinkHandle) {
        self.prefixes.lock().forget(WorkerId(link.id));
    }

    /// The worker of a version that has the fewest runs.
    pub(crate) fn quietest(&self, digest: &str) -> Option<Arc<LinkHandle>> {
        let all = self.all.read();
        let able = all.iter().filter(|link| link.takes(digest));
        let quietest = able.min_by_key(|link| link.in_flight.load(Ordering::Acquire));
        quietest.cloned()
    }

    /// Whether any worker takes new runs of this version, busy or not.
    pub(crate) fn any(&self, digest: &str) -> bool {
        self.all.read().iter().any(|link| link.takes(digest))
    }

    /// Whether a worker of this pool serves this version.
    pub(crate) fn serves(&self, pool: &str, digest: &str) -> bool {
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

fn view(link: &LinkHandle, prefix_affinity_tokens: u32) -> WorkerView {
    let in_flight = link.in_flight.load(Ordering::Acquire);
    let free_kv_tokens = link.free_kv_tokens();
    let sent = link.outstanding.load(Ordering::Acquire);
    let facts = link.facts.lock();
    let max_running = facts.limits.max_running.max(1);
    // Other gateways of the same store send to it too: what it says of itself counts them.
    let others = facts.status.running.saturating_sub(in_flight);
    WorkerView {
        id: WorkerId(link.id),
        running: (in_flight + others).min(max_running),
        max_running,
        max_batch_tokens: facts.limits.max_batch_tokens,
        waiting: (in_flight + others).saturating_sub(max_running),
        outstanding_prefill_tokens: facts.status.prefill_tokens_waiting.max(sent),
        free_kv_tokens,
        pace: facts.pace,
        step_us: facts.status.step_us_ewma,
        prefix_affinity_tokens,
    }
}
