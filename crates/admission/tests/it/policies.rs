//! Routing over time: engines that batch, prefix caches that evict, and three ways to choose among them.

use std::collections::VecDeque;

use weir_admission::{Ask, Pace, Prefix, Prefixes, RoutePolicy, WorkerId, WorkerView, route};

use crate::pool::Random;

const MAX_RUNNING: usize = 16;
const BATCH: u64 = 512;
/// Prefixes that a worker's cache holds.
const CACHED: usize = 12;
const PREFIX_TOKENS: u32 = 1_024;

#[derive(Clone, Copy)]
struct Job {
    /// Which of the shared prefixes it begins with.
    group: u64,
    suffix: u64,
    output: u64,
    arrived_us: u64,
}

struct Sequence {
    job: Job,
    prefill: u64,
    output: u64,
}

/// An engine: each step has a token of every decoding run and prompt tokens up to the batch, and takes a time for itself and for each.
struct Worker {
    step_us: u64,
    token_us: u64,
    waiting: VecDeque<Job>,
    running: Vec<Sequence>,
    cache: VecDeque<u64>,
    busy_until: Option<u64>,
    /// Prompt tokens per sequence in the step under way.
    chunks: Vec<u64>,
    pace: Pace,
    computed: u64,
    taken: u64,
    ttft_us: Vec<u64>,
}

impl Worker {
    fn new(step_us: u64, token_us: u64) -> Self {
        Self {
            step_us,
            token_us,
            waiting: VecDeque::new(),
            running: Vec::new(),
            cache: VecDeque::new(),
            busy_until: None,
            chunks: Vec::new(),
            pace: Pace::default(),
            computed: 0,
            taken: 0,
            ttft_us: Vec::new(),
        }
    }

    fn in_flight(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    fn touch(&mut self, group: u64) {
        self.cache.retain(|known| *known != group);
        self.cache.push_back(group);
        if self.cache.len() > CACHED {
            self.cache.pop_front();
        }
    }

    fn begin(&mut self, now_us: u64) {
        while self.running.len() < MAX_RUNNING
            && let Some(job) = self.waiting.pop_front()
        {
            let hit = self.cache.contains(&job.group);
            let prefill = job.suffix + if hit { 0 } else { u64::from(PREFIX_TOKENS) };
            self.running.push(Sequence {
                job,
                prefill,
                output: job.output,
            });
        }
        if self.running.is_empty() {
            self.busy_until = None;
            return;
        }
        let decoding = self.running.iter().filter(|s| s.prefill == 0).count() as u64;
        let mut room = BATCH.saturating_sub(decoding);
        self.chunks.clear();
        for sequence in &self.running {
            let chunk = sequence.prefill.min(room);
            room -= chunk;
            self.chunks.push(chunk);
        }
        let tokens = decoding + self.chunks.iter().sum::<u64>();
        let us = self.step_us + self.token_us * tokens;
        self.pace.observe(1, tokens, us);
        self.computed += tokens;
        self.busy_until = Some(now_us + us);
    }

    fn end(&mut self, now_us: u64) {
        let chunks = std::mem::take(&mut self.chunks);
        let mut done = Vec::new();
        for (sequence, chunk) in self.running.iter_mut().zip(&chunks) {
            if sequence.prefill > 0 {
                sequence.prefill -= chunk;
                if sequence.prefill > 0 {
                    continue;
                }
                done.push(sequence.job.group);
                self.ttft_us.push(now_us - sequence.job.arrived_us);
            }
            sequence.output -= 1;
        }
        self.running.retain(|sequence| sequence.output > 0);
        for group in done {
            self.touch(group);
        }
        self.begin(now_us);
    }

    fn view(&self, id: u64, affinity: u32) -> WorkerView {
        let waiting: u64 = self.waiting.iter().map(|job| job.suffix).sum();
        let running: u64 = self.running.iter().map(|s| s.prefill).sum();
        WorkerView {
            id: WorkerId(id),
            running: self.running.len() as u32,
            max_running: MAX_RUNNING as u32,
            max_batch_tokens: BATCH as u32,
            waiting: self.waiting.len() as u32,
            outstanding_prefill_tokens: waiting + running,
            free_kv_tokens: 1 << 30,
            pace: self.pace,
            step_us: self.step_us,
            prefix_affinity_tokens: affinity,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Random,
    LeastLoaded,
    Predicted,
}

struct Outcome {
    mean_ms: u64,
    p95_ms: u64,
    computed: u64,
    /// Of the busiest worker, in percent of the mean.
    largest_share: u64,
}

fn prefixes(group: u64) -> Vec<Prefix> {
    let prefix = |nth: u32| Prefix {
        hash: group * 100 + u64::from(nth),
        tokens: nth * PREFIX_TOKENS / 4,
    };
    (1..=4).map(prefix).collect()
}

fn choose(
    policy: Policy,
    workers: &[Worker],
    job: &Job,
    (memory, random): (&mut Prefixes, &mut Random),
) -> usize {
    let count = u32::try_from(workers.len()).unwrap();
    match policy {
        Policy::Random => random.below(count) as usize,
        Policy::LeastLoaded => {
            let least = workers
                .iter()
                .enumerate()
                .min_by_key(|(_, w)| w.in_flight());
            least.unwrap().0
        }
        Policy::Predicted => {
            let known = prefixes(job.group);
            let views: Vec<_> = workers
                .iter()
                .zip(0..)
                .map(|(worker, id)| worker.view(id, memory.held_by(WorkerId(id), &known)))
                .collect();
            let ask = Ask {
                prompt_tokens: PREFIX_TOKENS + job.suffix as u32,
                output_tokens: 40,
            };
            let routed = route(&views, &ask, &RoutePolicy::default()).unwrap();
            memory.went_to(routed.worker, &known);
            usize::try_from(routed.worker.0).unwrap()
        }
    }
}

/// Four workers, one of them half as fast; `groups` shared beginnings, the first ones asked for most.
fn simulate(policy: Policy, groups: u32, gap_us: u32, seed: u64) -> Outcome {
    let mut random = Random(seed);
    let mut workers = vec![
        Worker::new(2_000, 40),
        Worker::new(2_000, 40),
        Worker::new(2_000, 40),
        Worker::new(4_000, 80),
    ];
    let mut memory = Prefixes::new(1_000);
    let mut at = 0;
    for _ in 0..4_000 {
        at += u64::from(random.below(2 * gap_us));
        loop {
            let next = workers
                .iter_mut()
                .filter(|w| w.busy_until.is_some_and(|t| t <= at));
            let Some(worker) = next.min_by_key(|w| w.busy_until) else {
                break;
            };
            let now = worker.busy_until.unwrap();
            worker.end(now);
        }
        let job = Job {
            group: u64::from(random.below(groups).min(random.below(groups))),
            suffix: 16 + u64::from(random.below(200)),
            output: 1 + u64::from(random.below(80)),
            arrived_us: at,
        };
        let place = choose(policy, &workers, &job, (&mut memory, &mut random));
        let worker = &mut workers[place];
        worker.waiting.push_back(job);
        worker.taken += 1;
        if worker.busy_until.is_none() {
            worker.begin(at);
        }
    }
    let mut ttft: Vec<u64> = workers.iter().flat_map(|w| w.ttft_us.clone()).collect();
    ttft.sort_unstable();
    let taken: u64 = workers.iter().map(|w| w.taken).sum();
    Outcome {
        mean_ms: ttft.iter().sum::<u64>() / ttft.len() as u64 / 1000,
        p95_ms: ttft[ttft.len() * 95 / 100] / 1000,
        computed: workers.iter().map(|w| w.computed).sum(),
        largest_share: workers.iter().map(|w| w.taken).max().unwrap() * 400 / taken,
    }
}

fn compare(name: &str, groups: u32, gap_us: u32, seed: u64) -> [Outcome; 3] {
    let policies = [Policy::Random, Policy::LeastLoaded, Policy::Predicted];
    policies.map(|policy| {
        let outcome = simulate(policy, groups, gap_us, seed);
        println!(
            "{name}, seed {seed}, {policy:?}: first token {} ms in the mean, {} at 95 %; {} tokens computed; busiest worker {} %",
            outcome.mean_ms, outcome.p95_ms, outcome.computed, outcome.largest_share
        );
        outcome
    })
}

#[test]
fn predicted_wait_with_affinity_beats_random_and_least_loaded() {
    for seed in 0..2 {
        let [random, least, ours] = compare("40 prefixes", 40, 22_000, seed);
        assert!(ours.p95_ms * 2 <= random.p95_ms, "seed {seed}");
        assert!(ours.p95_ms * 10 <= least.p95_ms * 8, "seed {seed}");
        assert!(ours.mean_ms * 10 <= least.mean_ms * 8, "seed {seed}");
        assert!(ours.computed * 100 <= least.computed * 85, "seed {seed}");
    }
}

#[test]
fn affinity_never_beats_load() {
    for seed in 0..2 {
        // Everybody has the same beginning: it is on every worker soon, and nobody is piled up.
        let [_, least, ours] = compare("one prefix", 1, 9_000, seed);
        assert!(ours.largest_share <= 160, "seed {seed}");
        assert!(ours.p95_ms * 10 <= least.p95_ms * 11 + 20, "seed {seed}");
        // Nobody shares anything: nothing is lost by looking.
        let [_, least, ours] = compare("no prefix", 1_000_000, 34_000, seed);
        assert!(ours.p95_ms * 10 <= least.p95_ms * 11, "seed {seed}");
    }
}
