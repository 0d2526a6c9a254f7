//! A namespace with an operator, gateways and workers that are real processes, on an API server without nodes: what kubelet and the
//! controller of Deployments would do is played here. Pods are made from the operator's own templates.

mod player;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use weir_e2e::cluster::{ControlPlane, Kubectl};
use weir_e2e::{
    Client, RandomModel, Signal, Site, Tenant, repository, send, wait_for, weir_command,
};

use self::player::Player;

/// Where everything is.
pub(crate) const NAMESPACE: &str = "default";
/// Who the operator is: what its role does not allow, it cannot do here either.
pub(crate) const OPERATOR: &str = "system:serviceaccount:default:weir-operator";
/// Who a gateway is.
pub(crate) const GATEWAY: &str = "system:serviceaccount:default:weir-gateway";
/// Deadlines are for a machine that does nothing else; a busy one takes so many times as long.
const PATIENCE: u64 = 4;

/// A process that ends with its owner.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    fn is_over(&mut self) -> bool {
        !matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An operator, and its admin port.
struct Operator {
    process: Running,
    admin: u16,
}

/// The stage.
pub(crate) struct Stage {
    pub(crate) plane: ControlPlane,
    pub(crate) site: Site,
    operators: Mutex<BTreeMap<String, Operator>>,
    gateways: Vec<Running>,
    gateway_urls: Vec<String>,
    player: Arc<Player>,
    thread: Option<std::thread::JoinHandle<()>>,
    /// Stories with deadlines are told one at a time: a machine of two cores has no room for more.
    _alone: MutexGuard<'static, ()>,
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn kubeconfig(command: &mut Command, path: &Path) {
    command.env("KUBECONFIG", path).env("WEIR_LOG", "info");
}

impl Stage {
    /// API server, objects, one gateway; no operator yet. `random` version 1 is written and not applied.
    pub(crate) fn new(plane: ControlPlane) -> Result<Self> {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        plane.apply_crds()?;
        let roles = repository().join("deploy/rbac.yaml");
        let roles = roles.to_str().context("a path")?;
        plane
            .kubectl()
            .run(&["apply", "--server-side", "-n", NAMESPACE, "-f", roles])?;
        let kubectl = plane.kubectl().clone();
        kubectl
            .run(&["create", "serviceaccount", "default", "-n", NAMESPACE])
            .ok();
        let tenant = Tenant {
            name: "acme",
            spec: json!({"models": [{"name": "random", "pinning": "Allowed"}], "windows": [{"period": "1h", "tokens": 100_000_000}]}),
        };
        let site = Site::random(RandomModel::default(), &[tenant])?;
        let folder = site.path().join("kubelet");
        std::fs::create_dir_all(&folder)?;
        let player = Arc::new(Player::new(kubectl, folder));
        let playing = Arc::clone(&player);
        let thread = std::thread::spawn(move || playing.play());
        let mut stage = Self {
            plane,
            site,
            operators: Mutex::default(),
            gateways: Vec::new(),
            gateway_urls: Vec::new(),
            player,
            thread: Some(thread),
            _alone: alone,
        };
        for file in ["pool", "trust", "tenant-acme", "secret-acme"] {
            stage.apply(&format!("{file}.yaml"))?;
        }
        stage.start_gateway()?;
        Ok(stage)
    }

    pub(crate) fn kubectl(&self) -> &Kubectl {
        self.plane.kubectl()
    }

    /// Applies one of the site's files.
    pub(crate) fn apply(&self, file: &str) -> Result<()> {
        let path = self.site.manifests().join(file);
        let path = path.to_str().context("a path")?;
        self.kubectl().run(&[
            "apply",
            "--server-side",
            "--field-manager=people",
            "-n",
            NAMESPACE,
            "-f",
            path,
        ])?;
        Ok(())
    }

    /// Starts an operator.
    pub(crate) fn start_operator(&self, identity: &str) -> Result<()> {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.site.path().join(format!("{identity}.log")))?;
        let admin = free_port()?;
        let mut command = weir_command();
        kubeconfig(&mut command, &self.plane.kubeconfig_for(OPERATOR, None)?);
        let child = command
            .args([
                "operator",
                "--namespace",
                NAMESPACE,
                "--identity",
                identity,
                "--admin",
                &format!("127.0.0.1:{admin}"),
                "--worker-drain-s",
                "5",
            ])
            .stderr(Stdio::from(log))
            .stdin(Stdio::null())
            .spawn()?;
        self.operators.lock().unwrap().insert(
            identity.to_owned(),
            Operator {
                process: Running(child),
                admin,
            },
        );
        Ok(())
    }

    /// `kill -9` of an operator.
    pub(crate) fn kill_operator(&self, identity: &str) {
        self.operators.lock().unwrap().remove(identity);
    }

    /// SIGTERM: it gives its lease back.
    pub(crate) fn stop_operator(&self, identity: &str) {
        if let Some(mut operator) = self.operators.lock().unwrap().remove(identity) {
            let process = &mut operator.process.0;
            send(i32::try_from(process.id()).unwrap(), Signal::TERM);
            let _ = process.wait();
        }
    }

    /// What an operator logged.
    pub(crate) fn log(&self, identity: &str) -> String {
        std::fs::read_to_string(self.site.path().join(format!("{identity}.log")))
            .unwrap_or_default()
    }

    /// What an operator's metrics say.
    pub(crate) fn metrics(&self, identity: &str) -> Result<String> {
        let operators = self.operators.lock().unwrap();
        let admin = operators.get(identity).context("it runs")?.admin;
        drop(operators);
        let reply = ureq::get(format!("http://127.0.0.1:{admin}/metrics")).call()?;
        Ok(reply.into_body().read_to_string()?)
    }

    /// Starts another gateway, with a store of its own.
    pub(crate) fn start_gateway(&mut self) -> Result<()> {
        let name = format!("gateway-{}", self.gateways.len());
        let [listen, admin] = [free_port()?, free_port()?];
        self.gateway_urls.push(format!("http://127.0.0.1:{listen}"));
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.site.path().join(format!("{name}.log")))?;
        let mut command = weir_command();
        kubeconfig(&mut command, &self.plane.kubeconfig_for(GATEWAY, None)?);
        let child = command
            .args([
                "gateway",
                "--cluster",
                "--namespace",
                NAMESPACE,
                "--replica",
                &name,
                "--data",
            ])
            .arg(self.site.path().join(&name))
            .args([
                "--listen",
                &format!("127.0.0.1:{listen}"),
                "--admin",
                &format!("127.0.0.1:{admin}"),
            ])
            .stderr(Stdio::from(log))
            .stdin(Stdio::null())
            .spawn()?;
        self.gateways.push(Running(child));
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app.kubernetes.io/component": "gateway"}},
            "spec": {"containers": [{"name": "gateway", "image": "weir-gateway", "ports": [{"name": "admin", "containerPort": admin}]}]},
        });
        self.kubectl().apply("play", &pod)?;
        self.player.status(&name, "127.0.0.1", true, 0)
    }

    /// A client of the tenant at each gateway.
    pub(crate) fn clients(&self) -> Vec<Client> {
        let client = |url: &String| Client::new(url, "acme-dev-key");
        self.gateway_urls.iter().map(client).collect()
    }

    /// A version's object.
    pub(crate) fn version(&self, number: u32) -> Value {
        let name = format!("random-v{number}");
        self.kubectl()
            .get(&["modelversion", &name, "-n", NAMESPACE])
            .unwrap_or_default()
    }

    /// The rollout's newest record.
    pub(crate) fn head(&self) -> Value {
        let all = self
            .kubectl()
            .get(&[
                "controllerrevisions",
                "-n",
                NAMESPACE,
                "-l",
                "weir.dev/log=rollout",
            ])
            .unwrap_or_default();
        let records = all["items"].as_array().cloned().unwrap_or_default();
        let place = |record: &Value| {
            (
                record["data"]["stamp"]["epoch"].as_u64(),
                record["data"]["stamp"]["revision"].as_u64(),
            )
        };
        records
            .into_iter()
            .max_by_key(place)
            .map_or(Value::Null, |record| record["data"].clone())
    }

    /// Everything that there is of a kind that the operator makes.
    pub(crate) fn children(&self, kind: &str) -> Vec<Value> {
        let found = self.kubectl().get(&[
            kind,
            "-n",
            NAMESPACE,
            "-l",
            "app.kubernetes.io/managed-by=weir-operator",
        ]);
        found.unwrap_or_default()["items"]
            .as_array()
            .cloned()
            .unwrap_or_default()
    }

    /// Waits for something about the cluster; what the operators logged is in the failure.
    pub(crate) fn wait(&self, what: &str, seconds: u64, holds: impl Fn() -> bool) {
        let waited = wait_for(what, seconds * PATIENCE, || {
            let holds = holds();
            if !holds {
                std::thread::sleep(Duration::from_millis(250));
            }
            holds.then_some(())
        });
        let story = waited.err().map(|error| self.story(&error));
        assert!(story.is_none(), "{}", story.unwrap_or_default());
    }

    /// What statuses and logs say, for whoever reads why a test failed.
    fn story(&self, error: &anyhow::Error) -> String {
        let tail = |log: String| {
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        let gateway = std::fs::read_to_string(self.site.path().join("gateway-0.log"));
        let versions: Vec<Value> = (1..=3)
            .map(|number| self.version(number)["status"].clone())
            .collect();
        format!(
            "{error:#}\n{versions:#?}\n== operator a\n{}\n== operator b\n{}\n== gateway\n{}",
            tail(self.log("a")),
            tail(self.log("b")),
            tail(gateway.unwrap_or_default())
        )
    }

    pub(crate) fn wait_ready(&self, number: u32, seconds: u64) {
        self.wait(&format!("version {number} is ready"), seconds, || {
            condition(&self.version(number), "Ready")
                == Some(("True".to_owned(), "Serving".to_owned()))
        });
    }

    /// `kill -9` of a worker.
    pub(crate) fn kill_worker(&self) {
        if let Some(pod) = self.player.pods.lock().unwrap().values_mut().next() {
            pod.worker.kill();
        }
    }

    /// What kubelet does a while after a Secret was changed.
    pub(crate) fn kubelet_mounts_again(&self) -> Result<()> {
        self.player.mount_again()
    }

    /// Lets the player rest, so that it does not report what it cannot see.
    pub(crate) fn rest(&self, rests: bool) {
        self.player.rest.store(rests, Ordering::Relaxed);
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.player.stop.store(true, Ordering::Relaxed);
        self.operators.lock().unwrap().clear();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.player.pods.lock().unwrap().clear();
    }
}

/// A condition's status and reason.
pub(crate) fn condition(object: &Value, kind: &str) -> Option<(String, String)> {
    let all = object["status"]["conditions"].as_array()?;
    let found = all.iter().find(|condition| condition["type"] == kind)?;
    Some((
        found["status"].as_str()?.to_owned(),
        // Those of pods often have none.
        found["reason"].as_str().unwrap_or_default().to_owned(),
    ))
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port())
}
