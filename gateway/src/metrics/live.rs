//! How things stand at this moment: queues, shares of traffic, evidence, sessions. Read when someone asks.

use std::fmt;
use std::sync::Weak;
use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

use crate::core::Core;

/// Labels come from objects: pools, models, versions.
pub(crate) struct LiveCollector(pub(crate) Weak<Core>);

impl fmt::Debug for LiveCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LiveCollector")
    }
}

const PRIORITIES: [&str; 3] = ["interactive", "standard", "batch"];

type Labels = Vec<(&'static str, String)>;
type Rows = Vec<(Labels, i64)>;

impl Collector for LiveCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Some(core) = self.0.upgrade() else {
            return Ok(());
        };
        let [settled, bad] = evidence(&core);
        let families = [
            (
                "weir_gateway_live_runs",
                "Runs that this gateway writes and that have not ended",
                vec![(Vec::new(), signed(core.hub.len() as u64))],
            ),
            (
                "weir_gateway_draining",
                "Whether this gateway takes no new runs",
                vec![(Vec::new(), i64::from(core.is_draining()))],
            ),
            (
                "weir_gateway_queue_depth",
                "Runs that wait for a worker",
                queues(&core),
            ),
            (
                "weir_gateway_worker_connected",
                "Whether there is a session with the worker",
                sessions(&core),
            ),
            (
                "weir_rollout_weight_percent",
                "Share of a model's new runs that a version takes",
                weights(&core),
            ),
            (
                "weir_rollout_evidence_runs",
                "Runs that count as evidence of a version under the tables that are remembered",
                settled,
            ),
            (
                "weir_rollout_evidence_bad_runs",
                "Those of them that were bad",
                bad,
            ),
        ];
        for (name, help, rows) in families {
            let gauge = ConstGauge::new(0_i64);
            let mut family = encoder.encode_descriptor(name, help, None, gauge.metric_type())?;
            for (labels, value) in rows {
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Model and version of a digest; none of one that left the snapshot.
fn named(core: &Core, digest: &str) -> Option<(String, String)> {
    let directory = core.directory.load();
    let of = |model: &crate::snapshot::ModelRoute| {
        let version = model.by_digest(digest)?;
        Some((version.model.clone(), version.version.to_string()))
    };
    directory.models.values().find_map(of)
}

fn queues(core: &Core) -> Rows {
    let mut rows = Vec::new();
    for (digest, pool, depths) in core.queues.depths() {
        let Some((model, version)) = named(core, &digest) else {
            continue;
        };
        for (priority, depth) in PRIORITIES.iter().zip(depths) {
            let labels = vec![
                ("pool", pool.clone()),
                ("model", model.clone()),
                ("version", version.clone()),
                ("priority", (*priority).to_owned()),
            ];
            rows.push((labels, i64::from(depth)));
        }
    }
    rows
}

fn sessions(core: &Core) -> Rows {
    let row = |link: std::sync::Arc<crate::link::LinkHandle>| {
        let labels = vec![
            ("pool", link.endpoint.pool.clone()),
            ("worker", link.endpoint.name.clone()),
        ];
        (labels, i64::from(link.connected.load(Ordering::Acquire)))
    };
    core.links.handles().into_iter().map(row).collect()
}

fn weights(core: &Core) -> Rows {
    let directory = core.directory.load();
    let mut rows = Vec::new();
    for route in directory.models.values() {
        for version in &route.versions {
            let labels = vec![
                ("model", version.model.clone()),
                ("version", version.version.to_string()),
            ];
            rows.push((labels, i64::from(route.table.weight(&version.digest))));
        }
    }
    rows
}

fn evidence(core: &Core) -> [Rows; 2] {
    let (mut settled, mut bad) = (Vec::new(), Vec::new());
    for (digest, counts) in core.evidence.totals() {
        let Some((model, version)) = named(core, &digest) else {
            continue;
        };
        for (guardrail, judged) in [
            ("errors", &counts.errors),
            ("ttft", &counts.ttft_limit),
            ("interToken", &counts.inter_token_limit),
            ("output", &counts.output),
            ("refusal", &counts.refusal),
        ] {
            let labels = vec![
                ("model", model.clone()),
                ("version", version.clone()),
                ("guardrail", guardrail.to_owned()),
            ];
            settled.push((labels.clone(), signed(judged.runs)));
            bad.push((labels, signed(judged.bad)));
        }
    }
    [settled, bad]
}
