//! The registry of a process, shared by whoever counts and by the admin server that shows it.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _, prometheus_text, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::HistogramWithExemplars;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::process::ProcessCollector;
use crate::vllm;

/// A gauge of fractions and other non-integers.
pub(crate) type FloatGauge = Gauge<f64, std::sync::atomic::AtomicU64>;

/// A label set of name-value pairs. Values must come from a bounded set: never run ids, never anything a client wrote.
pub type Label = Vec<(&'static str, String)>;

/// Histograms told apart by labels.
pub type Histograms = Family<Label, Histogram, Bounds>;

/// Upper bounds of a family's histograms.
#[derive(Clone, Copy, Debug)]
pub struct Bounds(pub &'static [f64]);

/// Histograms told apart by labels, with exemplars.
pub type Exemplified = Family<Label, HistogramWithExemplars<Label>, Bounds>;

impl MetricConstructor<HistogramWithExemplars<Label>> for Bounds {
    fn new_metric(&self) -> HistogramWithExemplars<Label> {
        HistogramWithExemplars::new(self.0.iter().copied())
    }
}

impl MetricConstructor<Histogram> for Bounds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

/// Values of one gauge, by labels.
pub type Rows = Vec<(Label, f64)>;

/// Writes gauges whose values are looked up when they are scraped: name, help and rows of each.
///
/// # Errors
/// The encoder's.
pub fn encode_gauges<const N: usize>(
    encoder: &mut DescriptorEncoder,
    gauges: [(&str, &str, Rows); N],
) -> fmt::Result {
    for (name, help, rows) in gauges {
        let kind = ConstGauge::new(0_f64).metric_type();
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in rows {
            ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

/// The metrics of one process. Cloning shares them.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<RwLock<Registry>>,
}

impl Metrics {
    /// A registry with the figures of the process itself (memory, CPU, open files) under their usual names.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ProcessCollector::new()));
        Self {
            registry: Arc::new(RwLock::new(registry)),
        }
    }

    /// A counter; `_total` is added to its name.
    pub fn counter(&self, name: &str, help: &str) -> Counter {
        let metric = Counter::default();
        self.with(|registry| registry.register(name, help, metric.clone()));
        metric
    }

    /// A gauge of integers.
    pub fn gauge(&self, name: &str, help: &str) -> Gauge {
        let metric = Gauge::default();
        self.with(|registry| registry.register(name, help, metric.clone()));
        metric
    }

    /// A gauge of fractions.
    pub fn float_gauge(&self, name: &str, help: &str) -> Gauge<f64, std::sync::atomic::AtomicU64> {
        let metric = FloatGauge::default();
        self.with(|registry| registry.register(name, help, metric.clone()));
        metric
    }

    /// A histogram with these upper bounds.
    pub fn histogram(&self, name: &str, help: &str, bounds: &[f64]) -> Histogram {
        let metric = Histogram::new(bounds.iter().copied());
        self.with(|registry| registry.register(name, help, metric.clone()));
        metric
    }

    /// Counters told apart by labels.
    pub fn counters(&self, name: &str, help: &str) -> Family<Label, Counter> {
        let metric = Family::default();
        self.with(|registry| registry.register(name, help, metric.clone()));
        metric
    }

    /// Gauges told apart by labels.
    pub fn gauges(&self, name: &str, help: &str) -> Family<Label, Gauge> {
        let metric = Family::default();
        self.with(|registry| registry.register(name, help, metric.clone()));
        metric
    }

    /// Histograms told apart by labels, with these upper bounds.
    pub fn histograms(&self, name: &str, help: &str, bounds: &'static [f64]) -> Histograms {
        let metric = Family::new_with_constructor(Bounds(bounds));
        self.with(|registry| registry.register(name, help, metric.clone()));
        metric
    }

    /// Histograms of vLLM's, told apart by labels.
    pub fn vllm(&self, kind: &vllm::Kind) -> Histograms {
        self.histograms(kind.name, kind.help, kind.bounds)
    }

    /// Histograms told apart by labels, whose buckets show one recent case each in the `OpenMetrics` format.
    pub fn exemplified(&self, name: &str, help: &str, bounds: &'static [f64]) -> Exemplified {
        let metric = Family::new_with_constructor(Bounds(bounds));
        self.with(|registry| registry.register(name, help, metric.clone()));
        metric
    }

    /// Registers anything else.
    pub fn with<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        // A panic while registering leaves the list of metrics whole: it is only ever pushed to.
        register(
            &mut self
                .registry
                .write()
                .unwrap_or_else(PoisonError::into_inner),
        )
    }

    /// In Prometheus' text format, version 0.0.4.
    pub fn prometheus_text(&self) -> String {
        let mut out = String::new();
        let registry = self.registry.read().unwrap_or_else(PoisonError::into_inner);
        prometheus_text::encode(&mut out, &registry).expect("a String takes any text");
        out
    }

    /// In the OpenMetrics text format, version 1.0.0.
    pub fn open_metrics_text(&self) -> String {
        let mut out = String::new();
        let registry = self.registry.read().unwrap_or_else(PoisonError::into_inner);
        text::encode(&mut out, &registry).expect("a String takes any text");
        out
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_show_what_was_counted() {
        let metrics = Metrics::new();
        metrics.counter("weir_things", "Things seen").inc_by(3);
        metrics
            .float_gauge("vllm:kv_cache_usage_perc", "Share of KV blocks in use")
            .set(0.25);
        let runs = metrics.counters("weir_runs", "Runs by how they ended");
        runs.get_or_create(&vec![("status", "completed".to_owned())])
            .inc();
        metrics
            .histogram("weir_wait_seconds", "Wait", &[0.1, 1.0])
            .observe(0.5);

        for shown in [metrics.prometheus_text(), metrics.open_metrics_text()] {
            for want in [
                "weir_things_total 3\n",
                "vllm:kv_cache_usage_perc 0.25\n",
                "weir_runs_total{status=\"completed\"} 1\n",
                "weir_wait_seconds_bucket{le=\"0.1\"} 0\n",
                "process_resident_memory_bytes ",
                "process_open_fds ",
            ] {
                assert!(shown.contains(want), "no {want:?} in\n{shown}");
            }
        }
    }
}
