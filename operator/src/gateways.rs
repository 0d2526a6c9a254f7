//! What the gateways say: asked every half second while something is on trial, every two seconds otherwise.
//!
//! Each is asked by itself. One that takes long holds up no other, is not asked again meanwhile, and its answer counts whenever it comes.
//! Tables are handed over likewise, and who took one is asked at once, so that what follows need not wait for the next tick.

mod line;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::runtime::reflector::Store;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use weir_api::LABEL_COMPONENT;
use weir_rollout::report::GatewayReport;
use weir_rollout::routing::{Table, TableOrder};

pub use self::line::Heard;
use self::line::Line;
use crate::controllers::jitter;
use crate::http::{Http, Proof};
use crate::names;
use crate::queue::pause_after;
use crate::world::{Agenda, Key};

/// How often gateways are asked while a version is on trial.
pub const TICK: Duration = Duration::from_millis(500);
/// How long an answer may take. On a machine that has no time it takes long, and says as much as a quick one.
const ANSWER: Duration = Duration::from_secs(5);
/// How often otherwise, in ticks.
const IDLE_TICKS: u64 = 4;
/// How often a table is offered in a row; whoever looks at the model afterwards offers it again.
const OFFERS: u32 = 4;
/// Where gateways are asked, if their pods do not say it: `admin`, and `control`, where both ends prove who they are.
const ADMIN_PORT: i32 = 9090;
const CONTROL_PORT: i32 = 9443;

/// All live gateways. Cloning shares it.
#[derive(Clone)]
pub struct Gateways(Arc<Inner>);

struct Inner {
    pods: Store<Pod>,
    agenda: Agenda,
    http: Http,
    door: Door,
    lines: Mutex<BTreeMap<String, Line>>,
    on_trial: Mutex<BTreeSet<String>>,
}

/// A table for a gateway.
struct Offer {
    to: (String, String),
    model: String,
    order: TableOrder,
    body: String,
}

impl Gateways {
    /// Of the gateways among `pods`; with a proof, none is asked that does not prove to be one.
    pub fn new(pods: Store<Pod>, agenda: Agenda, proof: Option<Proof>) -> Self {
        let is_proved = proof.is_some();
        Self(Arc::new(Inner {
            pods,
            agenda,
            http: Http::new(ANSWER, proof),
            door: if is_proved {
                Door::Control
            } else {
                Door::Admin
            },
            lines: Mutex::default(),
            on_trial: Mutex::default(),
        }))
    }

    /// Every gateway that exists, as last heard.
    pub fn all(&self) -> Vec<Heard> {
        let now = Instant::now();
        let lines = self.0.lines.lock();
        lines.values().map(|line| line.as_heard(now)).collect()
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
            count += 1;
            if self.0.on_trial.lock().is_empty() && !count.is_multiple_of(IDLE_TICKS) {
                continue;
            }
            self.find();
            let names: Vec<String> = self.0.lines.lock().keys().cloned().collect();
            for name in names {
                self.begin(&name);
            }
        }
    }

    /// Which gateways there are now. One that moved is another one.
    fn find(&self) {
        let found = self.0.pods.state();
        let found: Vec<(String, String)> = found
            .iter()
            .filter_map(|pod| gateway(pod, self.0.door))
            .collect();
        let mut lines = self.0.lines.lock();
        lines.retain(|name, line| {
            found
                .iter()
                .any(|(known, address)| known == name && *address == line.heard.address)
        });
        for (name, address) in &found {
            lines
                .entry(name.clone())
                .or_insert_with(|| Line::new(name, address));
        }
    }

    /// Asks a gateway unless it owes an answer or is being given a table.
    fn begin(&self, name: &str) {
        let now = Instant::now();
        let begins = |line: &mut Line| line.begins(now).then(|| line.heard.address.clone());
        let Some(address) = self.with(name, begins) else {
            return;
        };
        let (this, name) = (self.clone(), name.to_owned());
        tokio::spawn(async move { this.ask(&name, &address).await });
    }

    async fn ask(&self, name: &str, address: &str) {
        let on_trial = self.0.on_trial.lock().clone();
        let query: Vec<String> = on_trial
            .iter()
            .map(|model| format!("evidence={}", escaped(model)))
            .collect();
        let url = format!("http://{address}/observed?{}", query.join("&"));
        let answer = self.0.http.get_json::<GatewayReport>(&url).await;
        let is_answer = answer.is_ok();
        let mut lines = self.0.lines.lock();
        let line = lines.get_mut(name);
        let Some(line) = line.filter(|line| line.heard.address == address) else {
            return;
        };
        let mut changed: BTreeSet<String> =
            line.hears(answer, Instant::now()).into_iter().collect();
        let is_due = line.is_due;
        drop(lines);
        if is_answer {
            changed.extend(on_trial);
        }
        for model in changed {
            self.0.agenda.touch(Key::Model(model));
        }
        if is_due {
            self.begin(name);
        }
    }

    /// Hands a model's table to gateways that do not have it yet, without waiting for them.
    pub fn push(&self, model: &str, table: &Table, names: &[String]) {
        let body = serde_json::json!({"model": model, "table": table}).to_string();
        let mut lines = self.0.lines.lock();
        for (name, line) in lines.iter_mut().filter(|(name, _)| names.contains(name)) {
            if !line.offers(model, table.order) {
                continue;
            }
            let offer = Offer {
                to: (name.clone(), line.heard.address.clone()),
                model: model.to_owned(),
                order: table.order,
                body: body.clone(),
            };
            let this = self.clone();
            tokio::spawn(async move { this.offer(offer).await });
        }
    }

    async fn offer(&self, offer: Offer) {
        let Offer {
            to: (name, address),
            model,
            order,
            body,
        } = offer;
        let url = format!("http://{address}/tables");
        for attempt in 1..=OFFERS {
            let Err(error) = self.0.http.post(&url, body.clone()).await else {
                break;
            };
            tracing::debug!(
                gateway = name,
                model,
                error,
                "a gateway does not take a table"
            );
            if !self.with(&name, |line| line.refuses(&model, order)) {
                return;
            }
            tokio::time::sleep(pause_after(attempt, jitter())).await;
        }
        self.with(&name, |line| line.is_offered(&model, order));
        self.begin(&name);
    }

    /// Something about a gateway; the default where it is gone.
    fn with<T: Default>(&self, name: &str, work: impl FnOnce(&mut Line) -> T) -> T {
        let mut lines = self.0.lines.lock();
        lines.get_mut(name).map(work).unwrap_or_default()
    }

    /// What one gateway answers to a question, JSON.
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

/// Which of its ports a gateway is asked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Admin,
    Control,
}

impl Door {
    /// The port's name in a pod, and its number where the pod has none of the name.
    fn port(self) -> (&'static str, i32) {
        match self {
            Self::Admin => ("admin", ADMIN_PORT),
            Self::Control => ("control", CONTROL_PORT),
        }
    }
}

/// A pod's name and where it is asked, if it is a gateway that lives.
fn gateway(pod: &Pod, door: Door) -> Option<(String, String)> {
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
    let (name, usual) = door.port();
    let port = ports.find(|port| port.name.as_deref() == Some(name));
    let port = port.map_or(usual, |port| port.container_port);
    let host = if ip.contains(':') {
        format!("[{ip}]")
    } else {
        ip.clone()
    };
    Some((pod.name_any(), format!("{host}:{port}")))
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
        gateway(&serde_json::from_value(value.clone()).unwrap(), Door::Admin)
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
