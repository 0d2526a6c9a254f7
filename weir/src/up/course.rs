//! The course of each model's rollout: shares, failures, latencies and evidence over time, for plots. Kept in memory, bounded, and never
//! asked by anything that decides.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use serde::Serialize;
use serde_json::Value;
use weir_rollout::decide::VersionStatus;
use weir_rollout::evidence::{Counts, Snapshot, edge_us};
use weir_telemetry::{Rows, encode_gauges};

/// How often a point is taken.
const EVERY: Duration = Duration::from_secs(2);
/// Points that are kept of a model; when there are more, every second one of the older half goes. The newest are the densest.
const MOST_POINTS: usize = 400;

/// What is known of all models so far.
#[derive(Default)]
pub struct Course(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    models: BTreeMap<String, Vec<Point>>,
    looked: BTreeMap<String, Instant>,
}

/// How a model's versions stood at one moment.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Point {
    at_ms: u64,
    versions: Vec<VersionPoint>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct VersionPoint {
    version: u32,
    weight_percent: u32,
    is_attempted: bool,
    settled: u64,
    failed: u64,
    ttft_p95_ms: Option<u64>,
    inter_token_p95_ms: Option<f64>,
    /// Natural logarithm of the evidence against it, and where that is a breach.
    log_evidence: Option<f64>,
    boundary: Option<f64>,
}

impl Course {
    /// Notes how a model stands, if the last note is old enough and something is there to note.
    pub fn note(&self, model: &str, status: &[VersionStatus], evidence: &Snapshot, at_ms: u64) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let looked = kept.looked.get(model);
        if looked.is_some_and(|at| now.duration_since(*at) < EVERY) {
            return;
        }
        kept.looked.insert(model.to_owned(), now);
        let mut totals: BTreeMap<&str, Counts> = BTreeMap::new();
        for (key, counts) in &evidence.entries {
            totals.entry(&key.digest).or_default().add(counts);
        }
        let versions = status.iter().filter_map(|status| {
            let counts = totals.get(status.id.digest.as_str());
            let is_part = status.weight_percent.is_some_and(|weight| weight > 0)
                || status.attempt.is_some()
                || counts.is_some();
            is_part.then(|| version_point(status, counts.unwrap_or(&Counts::default())))
        });
        let point = Point {
            at_ms,
            versions: versions.collect(),
        };
        let points = kept.models.entry(model.to_owned()).or_default();
        add(points, point);
    }

    /// Everything, as JSON by model.
    pub fn page(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        serde_json::to_string(&kept.models).unwrap_or_default()
    }
}

/// Of equal points in a row only the first and the last are kept.
fn add(points: &mut Vec<Point>, point: Point) {
    if let [.., before, last] = points.as_mut_slice()
        && before.versions == last.versions
        && last.versions == point.versions
    {
        last.at_ms = point.at_ms;
        return;
    }
    points.push(point);
    if points.len() > MOST_POINTS {
        let mut index = 0;
        points.retain(|_| {
            index += 1;
            index > MOST_POINTS / 2 || index % 2 == 1
        });
    }
}

fn version_point(status: &VersionStatus, counts: &Counts) -> VersionPoint {
    let [evidence, boundary] = match status.suspicion_milli {
        Some(milli) => milli.map(|milli| Some(milli as f64 / 1000.0)),
        None => [None, None],
    };
    VersionPoint {
        version: status.id.version,
        weight_percent: status.weight_percent.unwrap_or(0),
        is_attempted: status.attempt.is_some(),
        settled: counts.errors.runs,
        failed: counts.errors.bad.max(counts.failed_so_far),
        ttft_p95_ms: counts
            .ttft
            .quantile(95)
            .map(|bucket| edge_us(bucket) / 1000),
        inter_token_p95_ms: counts
            .inter_token
            .quantile(95)
            .map(|bucket| edge_us(bucket) as f64 / 1000.0),
        log_evidence: evidence,
        boundary,
    }
}

/// Objects and rollouts as metrics: whether each condition holds, and what stands against versions on trial.
pub struct ObjectCollector {
    /// `/objects`.
    pub objects: Arc<arc_swap::ArcSwap<String>>,
    /// The newest point of each model.
    pub course: Arc<Course>,
}

impl fmt::Debug for ObjectCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ObjectCollector")
    }
}

impl Collector for ObjectCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let objects: Value = serde_json::from_str(&self.objects.load()).unwrap_or_default();
        let [evidence, boundary] = self.course.against();
        let gauges = [
            (
                "weir_object_condition",
                "Whether a condition of an object is True",
                conditions(&objects),
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
        ];
        encode_gauges(&mut encoder, gauges)
    }
}

impl Course {
    fn against(&self) -> [Rows; 2] {
        let (mut evidence, mut boundary) = (Rows::new(), Rows::new());
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (model, points) in &kept.models {
            for version in points.last().into_iter().flat_map(|point| &point.versions) {
                let labels = || {
                    vec![
                        ("model", model.clone()),
                        ("version", version.version.to_string()),
                    ]
                };
                evidence.extend(version.log_evidence.map(|value| (labels(), value)));
                boundary.extend(version.boundary.map(|value| (labels(), value)));
            }
        }
        [evidence, boundary]
    }
}

fn conditions(objects: &Value) -> Rows {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut rows = Rows::new();
    for object in objects.as_array().into_iter().flatten() {
        let all = object["status"]["conditions"].as_array();
        for condition in all.into_iter().flatten() {
            let labels = vec![
                ("kind", text(&object["kind"])),
                ("name", text(&object["metadata"]["name"])),
                ("condition", text(&condition["type"])),
            ];
            rows.push((labels, f64::from(u8::from(condition["status"] == "True"))));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn point(at_ms: u64, settled: u64) -> Point {
        let version = VersionPoint {
            version: 1,
            weight_percent: 100,
            is_attempted: false,
            settled,
            failed: 0,
            ttft_p95_ms: None,
            inter_token_p95_ms: None,
            log_evidence: None,
            boundary: None,
        };
        Point {
            at_ms,
            versions: vec![version],
        }
    }

    #[test]
    fn points_are_bounded_and_the_first_and_the_last_stay() {
        let mut points = Vec::new();
        for at in 0..10_000 {
            add(&mut points, point(at, at));
        }
        assert!(points.len() <= MOST_POINTS, "{}", points.len());
        assert_eq!(points[0].at_ms, 0);
        assert_eq!(points.last().unwrap().at_ms, 9_999);
        assert!(points.is_sorted_by_key(|point| point.at_ms));
    }

    #[test]
    fn a_time_in_which_nothing_moves_takes_two_points() {
        let mut points = Vec::new();
        for at in 0..100 {
            add(&mut points, point(at, 7));
        }
        assert_eq!(points, [point(0, 7), point(99, 7)]);
    }

    #[test]
    fn conditions_are_rows_by_kind_and_name() {
        let objects = json!([{"kind": "GpuPool", "metadata": {"name": "small"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Stalled", "status": "Unknown"}]}}]);
        let values: Vec<f64> = conditions(&objects)
            .into_iter()
            .map(|(_, value)| value)
            .collect();
        assert_eq!(values, [1.0, 0.0]);
    }
}
