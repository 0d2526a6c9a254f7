//! What the gateways say: asked every half second while something is on trial, every two seconds otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::runtime::reflector::Store;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use weir_api::LABEL_COMPONENT;
use weir_rollout::report::GatewayReport;
use weir_rollout::routing::Table;

use crate::http::Http;
use crate::names;
use crate::world::{Agenda, Key};

/// How often gateways are asked while a version is on trial.
pub const TICK: Duration = Duration::from_millis(500);
/// How long an answer may take: less than a tick.
const ANSWER: Duration = Duration::from_millis(450);
/// How often otherwise, in ticks.
const IDLE_TICKS: u64 = 4;
/// Admin port of a gateway whose pod does not name it.
const ADMIN_PORT: i32 = 9090;

/// A gateway as last heard.
#[derive(Clone, Debug)]
pub struct Heard {
    /// Its pod.
    pub name: String,
    /// Where its admin port is, `host:port`.
    pub address: String,
    /// Whether it answered when it was asked last.
    pub is_reachable: bool,
    /// What it said last, and when.
    pub report: Option<(Arc<GatewayReport>, Instant)>,
    /// When its last two answers were asked for: what the last one says anew happened after the one before.
    pub asked: [Option<Instant>; 2],
}

/// All live gateways. Cloning shares it.
#[derive(Clone)]
pub struct Gateways(Arc<Inner>);

struct Inner {
    pods: Store<Pod>,
    agenda: Agenda,
    http: Http,
    heard: Mutex<BTreeMap<String, Heard>>,
    on_trial: Mutex<BTreeSet<String>>,
}

impl Gateways {
    /// Of the gateways among `pods`.
    pub fn new(pods: Store<Pod>, agenda: Agenda) -> Self {
        Self(Arc::new(Inner {
            pods,
            agenda,
            http: Http::new(ANSWER),
            heard: Mutex::default(),
            on_trial: Mutex::default(),
        }))
    }

    /// Every gateway that exists, as last heard.
    pub fn all(&self) -> Vec<Heard> {
        self.0.heard.lock().values().cloned().collect()
    }

    /// Whether a model's runs are to be counted.
    pub fn watch(&self, model: &str, is_on_trial: bool) {
        let mut on_trial = self.0.on_trial.lock();
        if is_on_trial {
            on_trial.insert(model.to_owned());
        } else {
            on_trial.remove(model);
        }
    }

    /// Asks until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut count = 0_u64;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => return,
            }
            let on_trial = self.0.on_trial.lock().clone();
            count += 1;
            if on_trial.is_empty() && !count.is_multiple_of(IDLE_TICKS) {
                continue;
            }
            self.ask(&on_trial).await;
        }
    }

    async fn ask(&self, on_trial: &BTreeSet<String>) {
        let found = self.0.pods.state();
        let gateways: Vec<(String, String)> = found.iter().filter_map(|pod| gateway(pod)).collect();
        let query: Vec<String> = on_trial
            .iter()
            .map(|model| format!("evidence={}", escaped(model)))
            .collect();
        let query = query.join("&");
        let asked = gateways.iter().map(|(name, address)| {
            let url = format!("http://{address}/observed?{query}");
            async move {
                (
                    name,
                    address,
                    self.0.http.get_json::<GatewayReport>(&url).await,
                )
            }
        });
        let asked_at = Instant::now();
        let answers = join_all(asked).await;
        let mut changed = on_trial.clone();
        {
            let mut heard = self.0.heard.lock();
            heard.retain(|name, _| gateways.iter().any(|(known, _)| known == name));
            for (name, address, answer) in answers {
                let entry = heard.entry(name.clone()).or_insert_with(|| Heard {
                    name: name.clone(),
                    address: address.clone(),
                    is_reachable: false,
                    report: None,
                    asked: [None; 2],
                });
                entry.address.clone_from(address);
                entry.is_reachable = answer.is_ok();
                match answer {
                    Ok(report) => {
                        let before = entry.report.as_ref().map(|(report, _)| Arc::clone(report));
                        changed.extend(differing(before.as_deref(), &report));
                        entry.report = Some((Arc::new(report), Instant::now()));
                        entry.asked = [entry.asked[1], Some(asked_at)];
                    }
                    Err(error) => {
                        tracing::debug!(gateway = name, error, "a gateway does not answer");
                    }
                }
            }
        }
        for model in changed {
            self.0.agenda.touch(Key::Model(model));
        }
    }

    /// Hands a model's table to gateways that do not have it yet; how many took it.
    pub async fn push(&self, model: &str, table: &Table, names: &[String]) -> usize {
        let body = serde_json::json!({"model": model, "table": table}).to_string();
        let all = self.all();
        let wanted = all.iter().filter(|gateway| names.contains(&gateway.name));
        let sent = wanted.map(|gateway| {
            let (url, body) = (format!("http://{}/tables", gateway.address), body.clone());
            async move { self.0.http.post(&url, body).await.is_ok() }
        });
        join_all(sent)
            .await
            .into_iter()
            .filter(|took| *took)
            .count()
    }

    /// What one gateway answers to a question, JSON from its admin port.
    ///
    /// # Errors
    /// None is there, or none answers.
    pub async fn question(&self, path: &str) -> Result<serde_json::Value, String> {
        let all = self.all();
        let mut last = "there is no gateway".to_owned();
        for gateway in all.iter().filter(|gateway| gateway.is_reachable) {
            match self
                .0
                .http
                .get_json(&format!("http://{}{path}", gateway.address))
                .await
            {
                Ok(answer) => return Ok(answer),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// A pod's name and where it is asked, if it is a gateway that lives.
fn gateway(pod: &Pod) -> Option<(String, String)> {
    if pod.labels().get(LABEL_COMPONENT).map(String::as_str) != Some(names::GATEWAY) {
        return None;
    }
    let status = pod.status.as_ref()?;
    if matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
        return None;
    }
    let ip = status.pod_ip.as_ref()?;
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let port = ports.find(|port| port.name.as_deref() == Some("admin"));
    let port = port.map_or(ADMIN_PORT, |port| port.container_port);
    let host = if ip.contains(':') {
        format!("[{ip}]")
    } else {
        ip.clone()
    };
    Some((pod.name_any(), format!("{host}:{port}")))
}

/// Models of which a gateway says something else than before.
fn differing(before: Option<&GatewayReport>, now: &GatewayReport) -> Vec<String> {
    let order = |report: &GatewayReport, model: &str| {
        let table = report.models.get(model)?.table.as_ref()?;
        Some(table.order)
    };
    let serving = |report: &GatewayReport| -> Vec<(String, bool, Vec<String>)> {
        let of = |(name, worker): (&String, &weir_rollout::report::WorkerReport)| {
            (
                name.clone(),
                worker.connected && !worker.draining,
                worker.digests.clone(),
            )
        };
        report.workers.iter().map(of).collect()
    };
    let Some(before) = before else {
        return now.models.keys().cloned().collect();
    };
    let all = serving(before) != serving(now);
    let is_other = |model: &&String| all || order(before, model) != order(now, model);
    now.models.keys().filter(is_other).cloned().collect()
}

/// A model's name in a query.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(value: &serde_json::Value) -> Option<(String, String)> {
        gateway(&serde_json::from_value(value.clone()).unwrap())
    }

    #[test]
    fn a_gateway_is_a_living_pod_with_its_label() {
        let mut value = json!({
            "metadata": {"name": "g-0", "labels": {"app.kubernetes.io/component": "gateway"}},
            "spec": {"containers": [{"name": "gateway", "ports": [{"name": "admin", "containerPort": 9191}]}]},
            "status": {"podIP": "fd00::1", "phase": "Running"},
        });
        assert_eq!(
            pod(&value),
            Some(("g-0".to_owned(), "[fd00::1]:9191".to_owned()))
        );
        value["status"]["phase"] = json!("Failed");
        assert_eq!(pod(&value), None);
        value["status"] = json!({"podIP": "10.0.0.1"});
        value["spec"]["containers"][0]["ports"] = json!([]);
        assert_eq!(
            pod(&value),
            Some(("g-0".to_owned(), "10.0.0.1:9090".to_owned()))
        );
        value["metadata"]["labels"]["app.kubernetes.io/component"] = json!("worker");
        assert_eq!(pod(&value), None);
    }

    #[test]
    fn a_models_name_is_escaped_in_a_query() {
        assert_eq!(escaped("org/m:1 x"), "org%2Fm%3A1%20x");
    }
}
