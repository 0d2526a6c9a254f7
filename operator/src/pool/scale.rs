//! How many workers each model of a pool needs: what its load asks for, at once upwards, downwards only after it asked for less all along.
//! Pure: times are arguments.

use std::collections::VecDeque;
use std::time::Instant;

use weir_api::{AutoscaleTargets, ValidGpuPool};

use super::rate::Rate;

/// What is seen of a model's workers in a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Workers of the version that serves, as ordered last.
    pub current: u32,
    /// These, and those of a version on trial: who carries the load that is told here.
    pub workers: u32,
    /// KV positions in use, in percent; none where nobody says so, which is no reason to remove workers.
    pub occupancy_percent: Option<u32>,
    /// How long runs wait for a worker.
    pub queue_ms: u64,
    /// Tokens that all of them compute in a second; none where it is not known yet.
    pub tokens_per_second: Option<u64>,
    /// Runs that wait or are computed.
    pub runs: u64,
}

/// One model's recent wants, newest last, and what its workers compute.
#[derive(Debug, Default)]
pub struct Scaler {
    /// Tokens a second.
    pub rate: Rate,
    wants: VecDeque<(Instant, u32)>,
}

impl Scaler {
    /// How many workers there should be now.
    pub fn next(&mut self, pool: &ValidGpuPool, load: Load, now: Instant) -> u32 {
        let bounded = |want: u32| want.clamp(pool.min_replicas, pool.max_replicas);
        if pool.min_replicas == pool.max_replicas {
            self.wants.clear();
            return pool.max_replicas;
        }
        let want = bounded(want(&pool.scaling, load));
        let window = pool.scaling.scale_down_stabilization;
        self.wants.push_back((now, want));
        let is_covered = |since: Instant| now.saturating_duration_since(since) >= window;
        // The newest one that is older than the window stays: it says that the window is covered.
        while self
            .wants
            .get(1)
            .is_some_and(|(since, _)| is_covered(*since))
        {
            self.wants.pop_front();
        }
        // Equal wants in a row say nothing new but their first and last.
        let count = self.wants.len();
        if count > 2 && self.wants[count - 2].1 == want && self.wants[count - 3].1 == want {
            self.wants.remove(count - 2);
        }
        if want >= load.current {
            return want;
        }
        let is_seen_long_enough = self
            .wants
            .front()
            .is_some_and(|(since, _)| is_covered(*since));
        let highest = self
            .wants
            .iter()
            .map(|(_, want)| *want)
            .max()
            .unwrap_or(want);
        if is_seen_long_enough {
            highest.min(load.current)
        } else {
            bounded(load.current)
        }
    }
}

/// What the load of this moment asks for, without bounds.
fn want(targets: &AutoscaleTargets, load: Load) -> u32 {
    if load.workers == 0 {
        return u32::from(load.runs > 0);
    }
    let current = u64::from(load.workers);
    let by_memory = match load.occupancy_percent {
        Some(percent) => {
            (current * u64::from(percent)).div_ceil(u64::from(targets.kv_occupancy_percent.max(1)))
        }
        None => current,
    };
    let target_ms = u64::try_from(targets.queue.as_millis())
        .unwrap_or(u64::MAX)
        .max(1);
    // A queue grows faster than what it waits for: at most doubled at a time.
    let by_queue = if load.queue_ms > target_ms {
        (current * load.queue_ms.min(2 * target_ms)).div_ceil(target_ms)
    } else {
        u64::from(load.runs > 0)
    };
    // Not known is no reason to remove workers, like memory that nobody tells of.
    let by_tokens = match (targets.tokens_per_second, load.tokens_per_second) {
        (None, _) => 0,
        (Some(_), None) => current,
        (Some(target), Some(tokens)) => tokens.div_ceil(u64::from(target.max(1))),
    };
    let least = u64::from(load.runs > 0 || load.occupancy_percent.is_none());
    let wanted = by_memory.max(by_queue).max(by_tokens).max(least);
    u32::try_from(wanted.min(2 * current)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use weir_api::{GpuPool, Validate as _, parse};

    use super::*;

    fn pool(min: u32, max: u32) -> ValidGpuPool {
        let pool: GpuPool = parse(&json!({
            "apiVersion": "weir.dev/v1alpha1", "kind": "GpuPool", "metadata": {"name": "p"},
            "spec": {"accelerator": {"type": "cpu"}, "replicas": {"min": min, "max": max},
                     "scaling": {"targetKvOccupancyPercent": 80, "targetQueueMs": 200, "scaleDownStabilization": "60s"}},
        }))
        .unwrap();
        pool.validate().unwrap()
    }

    fn load(current: u32, percent: u32, queue_ms: u64, runs: u64) -> Load {
        Load {
            current,
            workers: current,
            occupancy_percent: Some(percent),
            queue_ms,
            tokens_per_second: Some(0),
            runs,
        }
    }

    #[test]
    fn load_asks_for_workers_by_memory_and_by_queue() {
        let targets = pool(0, 10).scaling;
        for (given, wanted) in [
            (load(2, 80, 0, 5), 2),
            (load(2, 81, 0, 5), 3),
            (load(4, 20, 0, 5), 1),
            (load(2, 50, 300, 5), 3),
            (load(2, 50, 60_000, 5), 4),
            (load(3, 0, 0, 0), 0),
            (load(0, 0, 0, 0), 0),
            (load(0, 0, 0, 1), 1),
            (
                Load {
                    occupancy_percent: None,
                    ..load(3, 0, 0, 0)
                },
                3,
            ),
        ] {
            assert_eq!(want(&targets, given), wanted, "{given:?}");
        }
    }

    #[test]
    fn tokens_a_second_ask_for_workers_where_the_pool_says_how_many_one_is_for() {
        let aims = |tokens_per_second| AutoscaleTargets {
            tokens_per_second,
            ..pool(0, 10).scaling
        };
        for (target, tokens, wanted) in [
            (Some(100), Some(200), 2),
            (Some(100), Some(201), 3),
            (Some(100), Some(900), 4),
            (Some(100), Some(20), 1),
            (Some(100), None, 2),
            (None, Some(900), 1),
        ] {
            let given = Load {
                tokens_per_second: tokens,
                ..load(2, 20, 0, 5)
            };
            assert_eq!(want(&aims(target), given), wanted, "{target:?} {tokens:?}");
        }
    }

    #[test]
    fn workers_are_added_at_once_and_removed_after_they_were_not_needed_for_the_whole_window() {
        let (pool, start, mut scaler) = (pool(1, 8), Instant::now(), Scaler::default());
        let at = |s| start + Duration::from_secs(s);
        assert_eq!(scaler.next(&pool, load(1, 160, 0, 9), at(0)), 2);
        assert_eq!(
            scaler.next(&pool, load(2, 10, 0, 1), at(10)),
            2,
            "it has not been low for long"
        );
        for second in 11..70 {
            assert_eq!(scaler.next(&pool, load(2, 10, 0, 1), at(second)), 2);
        }
        assert_eq!(scaler.next(&pool, load(2, 10, 0, 1), at(71)), 1);
        assert!(scaler.wants.len() < 8, "memory does not grow with time");
        assert_eq!(
            scaler.next(&pool, load(1, 0, 0, 0), at(200)),
            1,
            "never below the fewest"
        );
        assert_eq!(
            scaler.next(&pool, load(8, 100, 9_000, 9), at(201)),
            8,
            "never above the most"
        );
    }

    #[test]
    fn a_pool_may_sleep_and_wakes_up_for_the_first_run() {
        let (pool, start, mut scaler) = (pool(0, 4), Instant::now(), Scaler::default());
        let at = |s| start + Duration::from_secs(s);
        for second in 0..60 {
            assert_eq!(scaler.next(&pool, load(1, 0, 0, 0), at(second)), 1);
        }
        assert_eq!(scaler.next(&pool, load(1, 0, 0, 0), at(60)), 0);
        assert_eq!(scaler.next(&pool, load(0, 0, 0, 1), at(61)), 1);
        let silent = Load {
            current: 1,
            workers: 1,
            ..Load::default()
        };
        let mut scaler = Scaler::default();
        for second in 0..200 {
            assert_eq!(
                scaler.next(&pool, silent, at(second)),
                1,
                "no word is no zero"
            );
        }
    }

    #[test]
    fn a_trial_that_takes_half_of_the_load_takes_no_worker_from_the_version_that_serves() {
        let (pool, start, mut scaler) = (pool(1, 8), Instant::now(), Scaler::default());
        let at = |s| start + Duration::from_secs(s);
        // Four workers at 80 percent; then two more, on trial, take their share: all six are less full, and the load is the same.
        for second in 0..200 {
            let is_on_trial = second >= 20;
            let seen = Load {
                workers: if is_on_trial { 6 } else { 4 },
                ..load(4, if is_on_trial { 53 } else { 80 }, 0, 9)
            };
            assert_eq!(scaler.next(&pool, seen, at(second)), 4, "{second}");
        }
    }

    #[test]
    fn a_fixed_number_is_fixed() {
        let mut scaler = Scaler::default();
        assert_eq!(
            scaler.next(&pool(3, 3), load(1, 0, 0, 0), Instant::now()),
            3
        );
    }
}
