//! Histograms the engine fills; everything else is read from the snapshot when someone asks.

use prometheus_client::metrics::histogram::Histogram;
use weir_telemetry::Metrics;

/// From a tenth of a millisecond (a small model's step) to a minute (a long prompt behind others).
const SECONDS: [f64; 18] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0, 60.0,
];
/// Around the target of 50 microseconds.
const HOST_SECONDS: [f64; 9] = [
    0.000_01, 0.000_025, 0.000_05, 0.0001, 0.0002, 0.0005, 0.001, 0.005, 0.025,
];

/// The engine's histograms.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    /// A step, from plan to rows sent.
    pub(crate) step: Histogram,
    /// The part of it outside of the backend.
    pub(crate) host: Histogram,
    /// The mask of one row with a grammar.
    pub(crate) mask: Histogram,
    /// From submit to the first slot.
    pub(crate) queue: Histogram,
    /// From submit to the first token.
    pub(crate) first_token: Histogram,
}

impl Observer {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            step: metrics.histogram(
                "weir_engine_step_seconds",
                "Time of an engine step",
                &SECONDS,
            ),
            host: metrics.histogram(
                "weir_engine_step_host_seconds",
                "Time of an engine step outside of the backend",
                &HOST_SECONDS,
            ),
            mask: metrics.histogram(
                "weir_engine_mask_seconds",
                "Time to make the mask of one row with a grammar",
                &HOST_SECONDS,
            ),
            queue: metrics.histogram(
                "vllm:request_queue_time_seconds",
                "Time from submit to the first slot",
                &SECONDS,
            ),
            first_token: metrics.histogram(
                "vllm:time_to_first_token_seconds",
                "Time from submit to the first token",
                &SECONDS,
            ),
        }
    }
}
