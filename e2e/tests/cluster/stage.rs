//! A namespace with an operator, gateways and workers that are real processes, on an API server without nodes: what kubelet and the
//! controller of Deployments would do is played here. Pods are made from the operator's own templates.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use weir_e2e::cluster::{ControlPlane, Kubectl};
use weir_e2e::{
    Client, RandomModel, Signal, Site, Tenant, repository, send, wait_for, weir_command,
};

/// Where everything is.
pub(crate) const NAMESPACE: &str = "default";
/// Who the operator is: what its role does not allow, it cannot do here either.
pub(crate) const OPERATOR: &str = "system:serviceaccount:default:weir-operator";
/// Who a gateway is.
pub(crate) const GATEWAY: &str = "system:serviceaccount:default:weir-gateway";
/// How often the player looks.
const TURN: Duration = Duration::from_millis(700);
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

/// The stage.
pub(crate) struct Stage {
    pub(crate) plane: ControlPlane,
    pub(crate) site: Site,
    operators: Mutex<BTreeMap<String, Running>>,
    gateway: Mutex<Option<Running>>,
    pub(crate) gateway_url: String,
    player: Arc<Player>,
    thread: Option<std::thread::JoinHandle<()>>,
    /// Stories with deadlines are told one at a time: a machine of two cores has no room for more.
    _alone: MutexGuard<'static, ()>,
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Plays kubelet and the controller of Deployments.
struct Player {
    kubectl: Kubectl,
    folder: PathBuf,
    stop: AtomicBool,
    /// Whether looking is left out, while the API server is away.
    pub(crate) rest: AtomicBool,
    pods: Mutex<BTreeMap<String, PlayedPod>>,
    count: AtomicU32,
}

struct PlayedPod {
    child: String,
    worker: Running,
    admin: String,
    is_ready: bool,
    restarts: u32,
    command: Vec<String>,
}

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
        let player = Arc::new(Player {
            kubectl,
            folder: site.path().join("kubelet"),
            stop: AtomicBool::new(false),
            rest: AtomicBool::new(false),
            pods: Mutex::default(),
            count: AtomicU32::new(0),
        });
        std::fs::create_dir_all(&player.folder)?;
        let playing = Arc::clone(&player);
        let thread = std::thread::spawn(move || playing.play());
        let mut stage = Self {
            plane,
            site,
            operators: Mutex::default(),
            gateway: Mutex::default(),
            gateway_url: String::new(),
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
                "127.0.0.1:0",
                "--worker-drain-s",
                "5",
            ])
            .stderr(Stdio::from(log))
            .stdin(Stdio::null())
            .spawn()?;
        self.operators
            .lock()
            .unwrap()
            .insert(identity.to_owned(), Running(child));
        Ok(())
    }

    /// `kill -9` of an operator.
    pub(crate) fn kill_operator(&self, identity: &str) {
        self.operators.lock().unwrap().remove(identity);
    }

    /// SIGTERM: it gives its lease back.
    pub(crate) fn stop_operator(&self, identity: &str) {
        if let Some(mut operator) = self.operators.lock().unwrap().remove(identity) {
            send(i32::try_from(operator.0.id()).unwrap(), Signal::TERM);
            let _ = operator.0.wait();
        }
    }

    /// What an operator logged.
    pub(crate) fn log(&self, identity: &str) -> String {
        std::fs::read_to_string(self.site.path().join(format!("{identity}.log")))
            .unwrap_or_default()
    }

    fn start_gateway(&mut self) -> Result<()> {
        let [listen, admin] = [free_port()?, free_port()?];
        self.gateway_url = format!("http://127.0.0.1:{listen}");
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.site.path().join("gateway.log"))?;
        let mut command = weir_command();
        kubeconfig(&mut command, &self.plane.kubeconfig_for(GATEWAY, None)?);
        let child = command
            .args([
                "gateway",
                "--cluster",
                "--namespace",
                NAMESPACE,
                "--replica",
                "gateway-0",
                "--data",
            ])
            .arg(self.site.path().join("gateway"))
            .args([
                "--listen",
                &format!("127.0.0.1:{listen}"),
                "--admin",
                &format!("127.0.0.1:{admin}"),
            ])
            .stderr(Stdio::from(log))
            .stdin(Stdio::null())
            .spawn()?;
        *self.gateway.lock().unwrap() = Some(Running(child));
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "gateway-0", "namespace": NAMESPACE, "labels": {"app.kubernetes.io/component": "gateway"}},
            "spec": {"containers": [{"name": "gateway", "image": "weir-gateway", "ports": [{"name": "admin", "containerPort": admin}]}]},
        });
        self.kubectl().apply("play", &pod)?;
        self.player.status("gateway-0", "127.0.0.1", true, 0)
    }

    /// A client of the tenant.
    pub(crate) fn client(&self) -> Client {
        Client::new(&self.gateway_url, "acme-dev-key")
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
        let gateway = std::fs::read_to_string(self.site.path().join("gateway.log"));
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
        found["reason"].as_str()?.to_owned(),
    ))
}

fn free_port() -> Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port())
}

impl Player {
    fn play(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            if !self.rest.load(Ordering::Relaxed)
                && let Err(error) = self.turn()
            {
                eprintln!("the player: {error:#}");
            }
            std::thread::sleep(TURN);
        }
    }

    fn turn(&self) -> Result<()> {
        let deployments = self.kubectl.get(&[
            "deployments,configmaps",
            "-n",
            NAMESPACE,
            "-l",
            "app.kubernetes.io/managed-by=weir-operator",
        ])?;
        let items = deployments["items"].as_array().cloned().unwrap_or_default();
        let of = |kind: &str| {
            items
                .iter()
                .filter(|item| item["kind"] == kind)
                .cloned()
                .collect::<Vec<_>>()
        };
        let (deployments, plans) = (of("Deployment"), of("ConfigMap"));
        let mut pods = self.pods.lock().unwrap();
        for deployment in &deployments {
            let name = deployment["metadata"]["name"].as_str().context("a name")?;
            let wanted = usize::try_from(deployment["spec"]["replicas"].as_u64().unwrap_or(1))?;
            let mine: Vec<String> = pods
                .iter()
                .filter(|(_, pod)| pod.child == name)
                .map(|(name, _)| name.clone())
                .collect();
            for surplus in mine.iter().skip(wanted) {
                self.end(&mut pods, surplus)?;
            }
            for _ in mine.len()..wanted {
                let plan = plans.iter().find(|plan| plan["metadata"]["name"] == name);
                let Some(plan) = plan else { break };
                let (pod, played) = self.begin(name, deployment, plan)?;
                pods.insert(pod, played);
            }
        }
        let gone = |pod: &PlayedPod| {
            !deployments
                .iter()
                .any(|deployment| deployment["metadata"]["name"] == pod.child.as_str())
        };
        let orphans: Vec<String> = pods
            .iter()
            .filter(|(_, pod)| gone(pod))
            .map(|(name, _)| name.clone())
            .collect();
        for name in orphans {
            self.end(&mut pods, &name)?;
        }
        for (name, pod) in pods.iter_mut() {
            self.watch(name, pod)?;
        }
        Ok(())
    }

    /// What kubelet sees of a container.
    fn watch(&self, name: &str, pod: &mut PlayedPod) -> Result<()> {
        if pod.worker.is_over() {
            pod.restarts += 1;
            pod.is_ready = false;
            pod.worker = start(&pod.command, &self.folder, name)?;
            return self.status(name, host(&pod.admin), false, pod.restarts);
        }
        let ready = Client::new(&format!("http://{}", pod.admin), "")
            .get("/readyz")
            .is_ok_and(|reply| reply.status == 200);
        if ready != pod.is_ready {
            self.status(name, host(&pod.admin), ready, pod.restarts)?;
            pod.is_ready = ready;
        }
        Ok(())
    }

    fn begin(&self, child: &str, deployment: &Value, plan: &Value) -> Result<(String, PlayedPod)> {
        let count = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        let (name, ip) = (
            format!("{child}-{count}"),
            format!("127.0.{}.{}", 10 + count / 250, 1 + count % 250),
        );
        let template = &deployment["spec"]["template"];
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]});
        pod["metadata"]["name"] = json!(name);
        pod["metadata"]["namespace"] = json!(NAMESPACE);
        self.kubectl.apply("play", &pod)?;
        let file = self.folder.join(format!("{name}.plan"));
        std::fs::write(&file, plan["data"]["plan.json"].as_str().context("a plan")?)?;
        let mut command = vec!["worker".to_owned(), format!("--name={name}")];
        for argument in template["spec"]["containers"][0]["args"]
            .as_array()
            .context("arguments")?
        {
            let argument = argument.as_str().context("text")?;
            command.push(match argument.split_once('=') {
                Some(("--load-plan", _)) => format!("--load-plan={}", file.display()),
                Some((option @ ("--listen" | "--admin"), address)) => {
                    format!("{option}={}", address.replace("0.0.0.0", &ip))
                }
                _ => argument.to_owned(),
            });
        }
        command.push("--threads=1".to_owned());
        let worker = start(&command, &self.folder, &name)?;
        self.status(&name, &ip, false, 0)?;
        let played = PlayedPod {
            child: child.to_owned(),
            worker,
            admin: format!("{ip}:9090"),
            is_ready: false,
            restarts: 0,
            command,
        };
        Ok((name, played))
    }

    fn end(&self, pods: &mut BTreeMap<String, PlayedPod>, name: &str) -> Result<()> {
        self.kubectl.run(&[
            "delete",
            "pod",
            name,
            "-n",
            NAMESPACE,
            "--force",
            "--grace-period=0",
            "--wait=false",
        ])?;
        if let Some(mut pod) = pods.remove(name) {
            send(i32::try_from(pod.worker.0.id())?, Signal::TERM);
            std::thread::spawn(move || {
                let _ = pod.worker.0.wait();
            });
        }
        Ok(())
    }

    fn status(&self, name: &str, ip: &str, ready: bool, restarts: u32) -> Result<()> {
        let word = if ready { "True" } else { "False" };
        let status = json!({"status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": word}],
            "containerStatuses": [{
                "name": if name.starts_with("gateway") { "gateway" } else { "worker" },
                "ready": ready, "restartCount": restarts, "image": "played", "imageID": "",
            }],
        }});
        let patch = status.to_string();
        self.kubectl.run(&[
            "patch",
            "pod",
            name,
            "-n",
            NAMESPACE,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ])?;
        Ok(())
    }
}

fn host(address: &str) -> &str {
    address.split(':').next().unwrap_or_default()
}

fn start(command: &[String], folder: &Path, name: &str) -> Result<Running> {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(folder.join(format!("{name}.log")))?;
    let child = weir_command()
        .args(command)
        .stdout(Stdio::null())
        .stderr(Stdio::from(log))
        .stdin(Stdio::null())
        .spawn()?;
    Ok(Running(child))
}
