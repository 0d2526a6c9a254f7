//! Plays kubelet and the controller of Deployments: pods from the operator's own templates, workers that are real processes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use serde_json::{Value, json};
use weir_e2e::cluster::Kubectl;
use weir_e2e::{Client, Signal, send, weir_command};

use super::{NAMESPACE, Running};

/// How often the player looks.
const TURN: Duration = Duration::from_millis(700);

/// The player.
pub(super) struct Player {
    kubectl: Kubectl,
    folder: PathBuf,
    pub(super) stop: AtomicBool,
    /// Whether looking is left out, while the API server is away.
    pub(super) rest: AtomicBool,
    pub(super) pods: Mutex<BTreeMap<String, PlayedPod>>,
    count: AtomicU32,
}

pub(super) struct PlayedPod {
    child: String,
    pub(super) worker: Running,
    admin: String,
    is_ready: bool,
    restarts: u32,
    command: Vec<String>,
    /// Where the ConfigMap with plans of several versions is mounted.
    plans: Option<PathBuf>,
}

impl Player {
    pub(super) fn new(kubectl: Kubectl, folder: PathBuf) -> Self {
        Self {
            kubectl,
            folder,
            stop: AtomicBool::new(false),
            rest: AtomicBool::new(false),
            pods: Mutex::default(),
            count: AtomicU32::new(0),
        }
    }

    pub(super) fn play(&self) {
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
            let map = plans
                .iter()
                .find(|map| map["metadata"]["name"] == pod.child.as_str());
            if let Some((folder, map)) = pod.plans.as_ref().zip(map) {
                mount_map(folder, map)?;
            }
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
        let text = plan["data"]["plan.json"].as_str();
        if let Some(text) = text {
            std::fs::write(&file, self.mounted(text, template)?)?;
        } else {
            mount_map(&file, plan)?;
        }
        let mut command = vec!["worker".to_owned(), format!("--name={name}")];
        for argument in template["spec"]["containers"][0]["args"]
            .as_array()
            .context("arguments")?
        {
            let argument = argument.as_str().context("text")?;
            command.push(match argument.split_once('=') {
                Some((option @ ("--load-plan" | "--versions"), _)) => {
                    format!("{option}={}", file.display())
                }
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
            plans: text.is_none().then_some(file),
        };
        Ok((name, played))
    }

    /// A plan whose folders are where this machine has what volumes have: one cache, as of a node, and the Secret's entries as files.
    fn mounted(&self, plan: &str, template: &Value) -> Result<String> {
        let mut plan: Value = serde_json::from_str(plan)?;
        if plan["fetch"].is_null() {
            return Ok(plan.to_string());
        }
        plan["fetch"]["cache"] = json!(self.folder.join("node-cache"));
        let volumes = template["spec"]["volumes"].as_array().into_iter().flatten();
        let mut of_place = volumes.filter(|volume| volume["name"] == "artifact-secret");
        let named = of_place
            .next()
            .and_then(|volume| volume["secret"]["secretName"].as_str());
        if let Some(name) = named {
            plan["fetch"]["secret"] = json!(self.mount(name)?);
        }
        Ok(plan.to_string())
    }

    /// A Secret's entries as files.
    fn mount(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.join(format!("secret-{name}"));
        std::fs::create_dir_all(&folder)?;
        let secret = self.kubectl.get(&["secret", name, "-n", NAMESPACE])?;
        for (key, value) in secret["data"].as_object().into_iter().flatten() {
            let value = value.as_str().context("base64")?;
            let value = base64::engine::general_purpose::STANDARD.decode(value)?;
            std::fs::write(folder.join(key), value)?;
        }
        Ok(folder)
    }

    pub(super) fn mount_again(&self) -> Result<()> {
        for entry in std::fs::read_dir(&self.folder)?.flatten() {
            if let Some(secret) = entry.file_name().to_string_lossy().strip_prefix("secret-") {
                self.mount(secret)?;
            }
        }
        Ok(())
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

    pub(super) fn status(&self, name: &str, ip: &str, ready: bool, restarts: u32) -> Result<()> {
        let word = if ready { "True" } else { "False" };
        let status = json!({"status": {
            "phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
            "conditions": [{"type": "Ready", "status": word}],
            "containerStatuses": [{
                "name": if name.starts_with("gateway") { "gateway" } else { "worker" },
                "ready": ready, "restartCount": restarts, "image": "played", "imageID": "",
            }],
        }});
        let pod = format!("pod/{name}");
        self.kubectl
            .merge(&pod, NAMESPACE, &status, &["--subresource=status"])
    }
}

/// A ConfigMap's entries as files, as kubelet mounts them: links through `..data`, which is changed at one stroke.
fn mount_map(folder: &Path, map: &Value) -> Result<()> {
    let entries = map["data"].as_object().cloned().unwrap_or_default();
    let version = map["metadata"]["resourceVersion"].as_str().context("one")?;
    let (now, data) = (format!("..{version}"), folder.join("..data"));
    if std::fs::read_link(&data).is_ok_and(|target| target == Path::new(&now)) {
        return Ok(());
    }
    std::fs::create_dir_all(folder.join(&now))?;
    for (name, text) in &entries {
        std::fs::write(folder.join(&now).join(name), text.as_str().context("text")?)?;
    }
    let before = std::fs::read_link(&data).ok();
    let next = folder.join("..data_tmp");
    std::os::unix::fs::symlink(&now, &next)?;
    std::fs::rename(&next, &data)?;
    for name in entries.keys() {
        let link = folder.join(name);
        if !link.is_symlink() {
            std::os::unix::fs::symlink(Path::new("..data").join(name), link)?;
        }
    }
    for entry in std::fs::read_dir(folder)?.flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        if !name.starts_with("..") && !entries.contains_key(&name) {
            std::fs::remove_file(entry.path())?;
        }
    }
    if let Some(before) = before {
        std::fs::remove_dir_all(folder.join(before))?;
    }
    Ok(())
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
