//! How much of everything a load needs: arithmetic on what was measured, no clock and no files.

use serde::Serialize;

/// Processor of a gateway for one request and for one event of it, durable and over HTTP/1.1; BENCHMARKS.md, "Load, beside other gateways".
const REQUEST_MICROS: f64 = 130.0;
const EVENT_MICROS: f64 = 24.0;
/// Memory of a gateway for an open stream, and for everything else.
const STREAM_BYTES: f64 = 20_000.0;
const GATEWAY_BYTES: f64 = (128 << 20) as f64;
/// The store's bytes for an event, a run's own rows included: 480 runs of 83 events in the embedded log.
const EVENT_BYTES: f64 = 165.0;
/// What the embedded log takes before the first event.
const STORE_BYTES: f64 = (32 << 20) as f64;
/// Events of a run that are no tokens: accepted, started, and its end.
const OTHER_EVENTS: f64 = 3.0;

/// What is asked of the system.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Requests a second, in the busiest minutes.
    pub(super) requests_per_s: f64,
    /// Tokens of a prompt, in the mean.
    pub(super) prompt_tokens: f64,
    /// Which part of them an earlier request of the same scope has left in the cache.
    pub(super) cached: f64,
    /// Tokens of an answer, in the mean.
    pub(super) output_tokens: f64,
    /// How long events are kept.
    pub(super) retention_s: f64,
}

/// What one worker does, as measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Worker {
    /// Prompt tokens a second.
    pub(super) prefill_per_s: f64,
    /// Tokens a second of all streams together.
    pub(super) decode_per_s: f64,
    /// Streams at once by which that was measured.
    pub(super) streams: f64,
    /// Tokens whose keys and values fit.
    pub(super) kv_tokens: f64,
    /// Which part of its time it may be busy: what is left takes bursts.
    pub(super) busy: f64,
}

/// What it takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Plan {
    /// Seconds of a worker that a run takes.
    pub(super) run_s: f64,
    /// Streams that a worker has at once when it is as busy as it may be.
    pub(super) streams: f64,
    /// Those that its KV memory has room for.
    pub(super) streams_in_kv: f64,
    /// Workers.
    pub(super) workers: u64,
    /// Seconds from the first to the last token, in the mean.
    pub(super) answer_s: f64,
    /// Events a second.
    pub(super) events_per_s: f64,
    /// Processors of the gateways.
    pub(super) gateway_cores: f64,
    /// Memory of the gateways.
    pub(super) gateway_bytes: f64,
    /// Of the store, when as much expires as comes.
    pub(super) store_bytes: f64,
}

pub(super) fn plan(load: &Load, worker: &Worker) -> Plan {
    let context = load.prompt_tokens + load.output_tokens;
    let streams_in_kv = worker.kv_tokens / context;
    // Fewer streams share each reading of the weights: tokens a second fall with them, at worst in proportion.
    let share = (streams_in_kv / worker.streams).min(1.0);
    let decode_per_s = worker.decode_per_s * share;
    let prefill_s = load.prompt_tokens * (1.0 - load.cached) / worker.prefill_per_s;
    let decode_s = load.output_tokens / decode_per_s;
    let run_s = prefill_s + decode_s;
    let workers = (load.requests_per_s * run_s / worker.busy).ceil().max(1.0);
    let streams = worker.streams.min(streams_in_kv);
    let busy = load.requests_per_s * run_s / workers;
    // Each stream has its share of the decoding, and stands still while another's prompt is computed.
    let answer_s = load.output_tokens * streams / decode_per_s + busy.min(worker.busy) * prefill_s;
    let open = load.requests_per_s * (answer_s + prefill_s);
    let events_per_run = load.output_tokens + OTHER_EVENTS;
    let events_per_s = load.requests_per_s * events_per_run;
    let micros = load.requests_per_s * REQUEST_MICROS + events_per_s * EVENT_MICROS;
    Plan {
        run_s,
        streams,
        streams_in_kv,
        workers: as_count(workers),
        answer_s,
        events_per_s,
        gateway_cores: micros / 1e6 / worker.busy,
        gateway_bytes: GATEWAY_BYTES + open * STREAM_BYTES,
        store_bytes: STORE_BYTES + events_per_s * load.retention_s * EVENT_BYTES,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a whole number that is at least 1; beyond 2^64 workers it does not matter which"
)]
fn as_count(whole: f64) -> u64 {
    whole as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load() -> Load {
        Load {
            requests_per_s: 10.0,
            prompt_tokens: 400.0,
            cached: 0.0,
            output_tokens: 100.0,
            retention_s: 86_400.0,
        }
    }

    fn worker() -> Worker {
        Worker {
            prefill_per_s: 2000.0,
            decode_per_s: 500.0,
            streams: 16.0,
            kv_tokens: 16_000.0,
            busy: 0.7,
        }
    }

    #[test]
    fn workers_are_as_many_as_the_time_of_all_runs_needs() {
        // 0.2 s of prefill and 0.2 s of decoding: 4 workers' time each second, 5.7 of which 70 % may be busy.
        let found = plan(&load(), &worker());
        assert!((found.run_s - 0.4).abs() < 1e-9, "{found:?}");
        assert_eq!((found.workers, found.streams), (6, 16.0));
        let twice = plan(
            &Load {
                requests_per_s: 20.0,
                ..load()
            },
            &worker(),
        );
        assert_eq!(twice.workers, 12);
        let cached = plan(
            &Load {
                cached: 0.5,
                ..load()
            },
            &worker(),
        );
        assert_eq!(
            cached.workers, 5,
            "half of the prompts are not computed: 0.3 s"
        );
    }

    #[test]
    fn what_does_not_fit_into_kv_memory_costs_tokens_a_second() {
        // Room for 8 of 16 streams: 250 tokens a second.
        let small = Worker {
            kv_tokens: 4000.0,
            ..worker()
        };
        let found = plan(&load(), &small);
        assert!((found.run_s - 0.6).abs() < 1e-9, "{found:?}");
        assert_eq!(
            (found.workers, found.streams, found.streams_in_kv),
            (9, 8.0, 8.0)
        );
    }

    #[test]
    fn gateways_and_store_follow_the_events() {
        let found = plan(&load(), &worker());
        assert!((found.events_per_s - 1030.0).abs() < 1e-9, "{found:?}");
        let day = STORE_BYTES + 1030.0 * 86_400.0 * EVENT_BYTES;
        assert!((found.store_bytes - day).abs() < 1.0, "{found:?}");
        assert!(
            found.gateway_cores > 0.03 && found.gateway_cores < 0.05,
            "{found:?}"
        );
    }

    #[test]
    fn nothing_asked_still_needs_one_worker() {
        let none = Load {
            requests_per_s: 0.0,
            ..load()
        };
        assert_eq!(plan(&none, &worker()).workers, 1);
    }
}
