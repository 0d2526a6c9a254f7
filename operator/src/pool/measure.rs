//! What gateways say of a pool's workers, put together.

use std::collections::BTreeMap;

use weir_rollout::report::{GatewayReport, WorkerReport};

use super::rate::Counted;

/// What gateways say of a pool, put together: a worker that several see counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// KV positions that running sequences hold, and those there are.
    pub kv: [u64; 2],
    /// Runs that wait.
    pub queue: u64,
    /// Runs that wait for the versions that were asked for.
    pub waiting: u64,
    /// How long they wait.
    pub queue_ms: u64,
    /// Runs that are computed.
    pub running: u64,
    /// Prompt tokens taken in, and those whose KV was reused.
    pub prompt: [u64; 2],
    /// Whether any gateway said anything.
    pub is_known: bool,
}

/// Puts together what gateways say of the workers of a pool that serve one of `digests`; of all of them where there are none.
#[must_use]
pub fn measure<'a>(
    reports: impl Iterator<Item = &'a GatewayReport>,
    pool: &str,
    digests: &[&str],
) -> Measured {
    let mut measured = Measured::default();
    let mut workers: BTreeMap<&str, WorkerReport> = BTreeMap::new();
    for report in reports {
        measured.is_known = true;
        if let Some(of_pool) = report.pools.get(pool) {
            measured.queue += of_pool.queue_depth;
            measured.queue_ms = measured.queue_ms.max(of_pool.queue_ms);
        }
        for model in report.models.values() {
            let of_digests = |(digest, _): &(&String, &u64)| digests.contains(&digest.as_str());
            let waiting = model.waiting.iter().filter(of_digests);
            measured.waiting += waiting.map(|(_, waiting)| waiting).sum::<u64>();
        }
        let is_asked = |worker: &&WorkerReport| {
            digests.is_empty()
                || worker
                    .digests
                    .iter()
                    .any(|held| digests.contains(&held.as_str()))
        };
        for (name, worker) in report
            .workers
            .iter()
            .filter(|(_, worker)| worker.pool == pool)
        {
            if is_asked(&worker) {
                measured.running += u64::from(worker.in_flight);
                workers.insert(name, worker.clone());
            }
        }
    }
    for worker in workers.values().filter(|worker| worker.connected) {
        measured.kv[0] += worker.kv_held;
        measured.kv[1] += worker.kv_total;
        measured.prompt[0] += worker.prompt_tokens[0];
        measured.prompt[1] += worker.prompt_tokens[1];
    }
    measured
}

/// Tokens that the workers of these versions in a pool have computed so far: prompts without what was cached, and outputs.
#[must_use]
pub fn computed<'a>(
    reports: impl Iterator<Item = &'a GatewayReport>,
    pool: &str,
    digests: &[&str],
) -> Counted {
    let workers = reports.flat_map(|report| &report.workers);
    let of_version = workers.filter(|(_, worker)| {
        let mut held = worker.digests.iter();
        worker.pool == pool && held.any(|held| digests.contains(&held.as_str()))
    });
    let mut counted = Counted::new();
    for (name, worker) in of_version {
        let [prompt, cached] = worker.prompt_tokens;
        let tokens = worker.output_tokens + prompt.saturating_sub(cached);
        let known = counted.entry(name.clone()).or_default();
        *known = tokens.max(*known);
    }
    counted
}

impl Measured {
    /// KV positions in use, in percent.
    #[must_use]
    pub fn occupancy(&self) -> Option<u32> {
        percent(self.kv[0], self.kv[1])
    }
}

pub(super) fn percent(part: u64, whole: u64) -> Option<u32> {
    u32::try_from((part * 100).checked_div(whole)?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_worker_that_two_gateways_see_counts_once_and_its_runs_twice() {
        let report: GatewayReport = serde_json::from_value(json!({
            "replica": "g",
            "workers": {
                "w": {"pool": "p", "digests": ["sha256:a"], "connected": true, "draining": false, "inFlight": 3,
                      "kvTotal": 100, "kvHeld": 40, "promptTokens": [10, 5], "outputTokens": 1},
                "x": {"pool": "q", "digests": [], "connected": true, "draining": false, "inFlight": 3,
                      "kvTotal": 100, "kvHeld": 40, "promptTokens": [10, 5], "outputTokens": 1},
            },
            "pools": {"p": {"queueDepth": 2, "queueMs": 70}},
        }))
        .unwrap();
        let both = [report.clone(), report];
        let measured = measure(both.iter(), "p", &[]);
        assert_eq!(
            (measured.kv, measured.queue, measured.running),
            ([40, 100], 4, 6)
        );
        assert_eq!(measured.occupancy(), Some(40));
        assert_eq!(measure(both.iter(), "p", &["sha256:b"]).kv, [0, 0]);
        assert!(!measure([].iter(), "p", &[]).is_known);
        assert_eq!(
            computed(both.iter(), "p", &["sha256:b", "sha256:a"]),
            Counted::from([("w".to_owned(), 6)])
        );
        assert!(computed(both.iter(), "q", &["sha256:a"]).is_empty());
    }
}
