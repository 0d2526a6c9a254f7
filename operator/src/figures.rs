//! What the metrics of an operator say of rollouts. Only the one that acts shows where versions are: the same figure never comes from two.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::Resource;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use weir_api::Condition;
use weir_rollout::Record;
use weir_rollout::decide::{Note, StatusStage, VersionStatus};
use weir_rollout::record::Phase;
use weir_telemetry::{Label, Metrics, Rows, encode_gauges};

use crate::leader::{Leadership, Role};
use crate::world::World;

/// From a sample to the table that answers it: a poll, a write and a push.
const BOUNDS: &[f64] = &[
    0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0,
];

/// The figures. Cloning shares them.
#[derive(Clone)]
pub struct Figures {
    models: Arc<Mutex<BTreeMap<String, Vec<Shown>>>>,
    decisions: Family<Label, Counter>,
    rollbacks: Family<Label, Counter>,
    rollback: Histogram,
}

/// A version, as it is shown.
struct Shown {
    version: u32,
    stage: &'static str,
    weight: u32,
    evidence: Option<[i64; 2]>,
}

impl Figures {
    /// Registers them.
    pub fn new(metrics: &Metrics, world: &World, leadership: &Leadership) -> Self {
        let figures = Self {
            models: Arc::default(),
            decisions: metrics.counters(
                "weir_rollout_decisions",
                "Records of rollouts that this operator wrote, by what they say",
            ),
            rollbacks: metrics.counters(
                "weir_rollout_rollbacks",
                "Versions that this operator took back, by why",
            ),
            rollback: metrics.histogram(
                "weir_rollout_rollback_seconds",
                "From the sample that took a version back, or a little before it, to the last gateway that routes around it",
                BOUNDS,
            ),
        };
        let collector = Levels {
            models: Arc::clone(&figures.models),
            world: world.clone(),
            leadership: leadership.clone(),
        };
        metrics.with(|registry| registry.register_collector(Box::new(collector)));
        figures
    }

    /// Where a model's versions are now.
    pub fn show(&self, model: &str, versions: &[VersionStatus]) {
        // Those that wait for nothing and serve nobody are many, and say nothing.
        let is_shown = |status: &&VersionStatus| {
            !matches!(status.stage, StatusStage::Registered | StatusStage::Retired)
        };
        let shown = versions.iter().filter(is_shown).map(|status| Shown {
            version: status.id.version,
            stage: stage(status.stage),
            weight: status.weight_percent.unwrap_or(0),
            evidence: status.suspicion_milli,
        });
        self.models.lock().insert(model.to_owned(), shown.collect());
    }

    /// A model is gone.
    pub fn forget(&self, model: &str) {
        self.models.lock().remove(model);
    }

    /// A record was written after `before`.
    pub fn wrote(
        &self,
        model: &str,
        before: Option<&Record>,
        record: &Record,
        note: Option<&Note>,
    ) {
        let label = |reason: &str| -> Label {
            vec![("model", model.to_owned()), ("reason", reason.to_owned())]
        };
        let reason = note.map_or("RecordRebuilt", |note| note.reason.as_str());
        self.decisions.get_or_create(&label(reason)).inc();
        if begins_rollback(before, record) {
            let ending = record.attempt.as_ref().and_then(|of| of.ending.as_ref());
            let reason = ending.map_or("RolledBack", |ending| ending.reason.as_str());
            self.rollbacks.get_or_create(&label(reason)).inc();
        }
    }

    /// Every gateway routes around a version so long after the sample that took it back, as the last of them said so many answers after
    /// the one that decided.
    pub fn rolled_back(&self, model: &str, after: Duration, answers: u64) {
        self.rollback.observe(after.as_secs_f64());
        let seconds = after.as_secs_f64();
        tracing::info!(
            model,
            seconds,
            answers,
            "every gateway routes around the version that was taken back"
        );
    }
}

/// Whether a record is the one that ends an attempt for want of trust in its version.
#[must_use]
pub fn begins_rollback(before: Option<&Record>, record: &Record) -> bool {
    let was = before.map_or(Phase::Idle, Record::phase);
    record.phase() == Phase::RollingBack && was != Phase::RollingBack
}

fn stage(stage: StatusStage) -> &'static str {
    match stage {
        StatusStage::Registered => "Registered",
        StatusStage::Shadow => "Shadow",
        StatusStage::Canary => "Canary",
        StatusStage::Production => "Production",
        StatusStage::RolledBack => "RolledBack",
        StatusStage::Retired => "Retired",
    }
}

/// What is true at the moment of a scrape.
struct Levels {
    models: Arc<Mutex<BTreeMap<String, Vec<Shown>>>>,
    world: World,
    leadership: Leadership,
}

impl fmt::Debug for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Levels")
    }
}

impl Levels {
    fn rollouts(&self) -> [Rows; 4] {
        let mut all = [const { Rows::new() }; 4];
        for (model, versions) in &*self.models.lock() {
            for shown in versions {
                let labels = || -> Label {
                    vec![
                        ("model", model.clone()),
                        ("version", shown.version.to_string()),
                    ]
                };
                let mut of_stage = labels();
                of_stage.push(("stage", shown.stage.to_owned()));
                all[0].push((of_stage, 1.0));
                all[1].push((labels(), f64::from(shown.weight)));
                if let Some([evidence, boundary]) = shown.evidence {
                    all[2].push((labels(), evidence as f64 / 1000.0));
                    all[3].push((labels(), boundary as f64 / 1000.0));
                }
            }
        }
        all
    }

    fn conditions(&self) -> Rows {
        let mut rows = Rows::new();
        for object in self.world.versions.state() {
            let status = object.status.as_ref();
            let of = status.map_or(&[][..], |status| &status.conditions);
            add(&mut rows, "ModelVersion", &*object, of);
        }
        for object in self.world.pools.state() {
            let status = object.status.as_ref();
            let of = status.map_or(&[][..], |status| &status.conditions);
            add(&mut rows, "GpuPool", &*object, of);
        }
        for object in self.world.quotas.state() {
            let status = object.status.as_ref();
            let of = status.map_or(&[][..], |status| &status.conditions);
            add(&mut rows, "TenantQuota", &*object, of);
        }
        rows
    }
}

fn add(rows: &mut Rows, kind: &str, object: &impl Resource, conditions: &[Condition]) {
    let name = object.meta().name.clone().unwrap_or_default();
    for condition in conditions {
        let labels = vec![
            ("condition", condition.type_.clone()),
            ("kind", kind.to_owned()),
            ("name", name.clone()),
        ];
        rows.push((labels, f64::from(u8::from(condition.status == "True"))));
    }
}

impl Collector for Levels {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let leads = self.leadership.role(Instant::now()) != Role::Following;
        let ([stage, weight, evidence, boundary], conditions) = if leads {
            (self.rollouts(), self.conditions())
        } else {
            Default::default()
        };
        let gauges = [
            (
                "weir_object_condition",
                "Whether a condition of an object is True",
                conditions,
            ),
            (
                "weir_rollout_acknowledged_weight_percent",
                "Share of a model's new runs that a version takes by the newest table that every gateway acknowledged",
                weight,
            ),
            (
                "weir_rollout_log_evidence",
                "Natural logarithm of the evidence against a version on trial",
                evidence,
            ),
            (
                "weir_rollout_log_evidence_boundary",
                "Where that evidence takes the version back",
                boundary,
            ),
            (
                "weir_rollout_stage",
                "1 for the stage that a version is in",
                stage,
            ),
        ];
        encode_gauges(&mut encoder, gauges)
    }
}
