//! A node that runs pods, in namespaces of its own.

mod config;

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Binaries;
use super::certificates::Issued;
use super::control_plane::ControlPlane;
use super::images::Images;
use super::kubectl::Kubectl;
use super::process::{Process, child_of, watch};
use crate::wait_for;

/// The node's address.
const ADDRESS: &str = "198.18.0.1";
/// Addresses of pods.
const PODS: &str = "198.18.64.0/18";
/// How long a program may take to come up.
const UP_WITHIN: Duration = Duration::from_mins(2);

/// A cluster of one node: control plane, node, network, names. The thread that started it is in its network, with all threads and
/// processes it starts from then on: Services and pods are reached as from the node.
pub struct Node {
    // Dropped in this order; whatever is left dies with `init`.
    servers: Vec<(&'static str, Process)>,
    plane: ControlPlane,
    init: Process,
    home: File,
    /// What starts a program in the cluster's namespaces.
    prefix: Vec<String>,
    folder: TempDir,
}

impl Node {
    /// Starts a cluster with these images and waits until its node is ready.
    ///
    /// # Errors
    /// A program does not come up: the text holds the end of its log.
    pub fn start(binaries: &Binaries, images: &Images) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("weir-node-").tempdir()?;
        let root = folder.path().to_owned();
        let cgroup = root
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .context("a temporary folder without a name")?;
        executable(
            &root.join("cleanup"),
            &config::CLEANUP.replace("NAME", &cgroup),
        )?;
        watch(&root)?;
        let init = init(&root, &cgroup)?;
        let pid = init
            .pid()
            .and_then(child_of)
            .context("the cluster's first process is gone")?
            .as_raw_nonzero()
            .to_string();
        let home = File::open("/proc/thread-self/ns/net")?;
        enter(&File::open(format!("/proc/{pid}/ns/net"))?)?;
        let prefix: Vec<String> = [
            "nsenter", "--net", "--mount", "--pid", "--target", &pid, "--",
        ]
        .map(str::to_owned)
        .to_vec();
        let plane = ControlPlane::start_at(binaries, ADDRESS, &prefix)?;
        let mut node = Self {
            servers: Vec::new(),
            plane,
            init,
            home,
            prefix,
            folder,
        };
        node.start_runtime(binaries, images)?;
        node.start_controllers(binaries)?;
        node.start_kubelet(binaries, &cgroup)?;
        node.start_network(binaries)?;
        node.wait_ready()?;
        Ok(node)
    }

    /// The number of its first process, whose network and mounts are the cluster's.
    pub fn process(&self) -> Option<i32> {
        self.init
            .pid()
            .and_then(child_of)
            .map(|pid| pid.as_raw_nonzero().get())
    }

    /// The control plane.
    pub fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// kubectl as an administrator.
    pub fn kubectl(&self) -> &Kubectl {
        self.plane.kubectl()
    }

    /// A program by name: `containerd`, `kubelet`, `kube-proxy`, `kube-controller-manager`, `kube-scheduler` or `coredns`.
    pub fn server(&self, name: &str) -> Option<&Process> {
        self.servers
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, process)| process)
    }

    /// Makes a claim in a namespace that is bound to a folder of this machine, for pods to read models from.
    ///
    /// # Errors
    /// The cluster refuses it, or does not bind it.
    pub fn claim(&self, namespace: &str, name: &str, folder: &Path) -> Result<()> {
        let volume = format!("{namespace}-{name}");
        let size = json!({"storage": "1Gi"});
        let objects: [Value; 2] = [
            json!({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume},
                "spec": {
                    "capacity": size, "accessModes": ["ReadOnlyMany"], "storageClassName": "",
                    "hostPath": {"path": folder}, "claimRef": {"namespace": namespace, "name": name},
                },
            }),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"namespace": namespace, "name": name},
                "spec": {
                    "accessModes": ["ReadOnlyMany"], "storageClassName": "", "volumeName": volume,
                    "resources": {"requests": size},
                },
            }),
        ];
        for object in &objects {
            self.kubectl().apply("weir-test", object)?;
        }
        let claim = format!("pvc/{name}");
        let wait = [
            "wait",
            "--for=jsonpath={.status.phase}=Bound",
            "--timeout=60s",
            "-n",
        ];
        self.kubectl()
            .run(&[&wait[..], &[namespace, &claim]].concat())?;
        Ok(())
    }

    /// Everything that says why something does not run: pods, events, the logs of pods. For the text of a failing test.
    pub fn story(&self, namespace: &str) -> String {
        let say = |arguments: &[&str]| {
            self.kubectl()
                .say(arguments, None)
                .map_or_else(|error| error.to_string(), |said| said.out + &said.err)
        };
        let mut story = say(&["get", "all", "-n", namespace, "-o", "wide"]);
        story += &say(&["get", "events", "-n", namespace, "--sort-by=.lastTimestamp"]);
        let pods = say(&["get", "pods", "-n", namespace, "-o", "name"]);
        for pod in pods.lines() {
            story.push_str(&["--- ", pod, "\n"].concat());
            story += &say(&[
                "logs",
                "-n",
                namespace,
                "--all-containers",
                "--tail=30",
                pod,
            ]);
        }
        story
    }

    /// A program in the cluster's namespaces, where `127.0.0.1` is the node's own; not started yet, and to be dropped before the node.
    pub(super) fn program(&self, name: &'static str, command: &[String]) -> Process {
        let command = [&self.prefix, command].concat();
        Process::new(name, self.folder.path(), command)
    }

    fn add(&mut self, name: &'static str, command: &[String]) -> Result<&Process> {
        let process = self.program(name, command);
        process.start()?;
        self.servers.push((name, process));
        self.server(name).context("just added")
    }

    fn start_runtime(&mut self, binaries: &Binaries, images: &Images) -> Result<()> {
        let root = self.folder.path().to_owned();
        let cni = root.join("cni");
        std::fs::create_dir_all(&cni)?;
        std::fs::write(cni.join("10-weir.conflist"), config::cni(&root).to_string())?;
        let file = root.join("containerd.toml");
        std::fs::write(&file, config::containerd(&root))?;
        let program = binaries.path("containerd")?;
        // It looks for its shim, and for runc, on its path.
        let path = format!(
            "PATH={}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            program
                .parent()
                .context("containerd lies in a folder")?
                .display()
        );
        let command = ["env", &path, &text(program), "--config", &text(&file)].map(str::to_owned);
        let ctr = binaries.path("ctr")?.to_owned();
        let prefix = self.prefix.clone();
        let call = |arguments: &[&str]| -> Result<bool> {
            let status = std::process::Command::new("nsenter")
                .args(&prefix[1..])
                .arg(&ctr)
                .arg("--address")
                .arg(root.join("containerd.sock"))
                .args(["--namespace", "k8s.io"])
                .args(arguments)
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .status()?;
            Ok(status.success())
        };
        let containerd = self.add("containerd", &command)?;
        containerd.wait_until("its socket", UP_WITHIN, || {
            call(&["version"]).is_ok_and(|done| done)
        })?;
        for archive in images.archives() {
            let archive = text(archive);
            ensure!(
                call(&["images", "import", &archive])?,
                "the image {archive} was not taken"
            );
        }
        Ok(())
    }

    fn start_controllers(&mut self, binaries: &Binaries) -> Result<()> {
        let pki = self.plane.folder().join("pki");
        for (name, more) in [
            (
                "kube-controller-manager",
                vec![
                    format!("--cluster-signing-cert-file={}", text(&pki.join("ca.crt"))),
                    format!("--cluster-signing-key-file={}", text(&pki.join("ca.key"))),
                    format!("--root-ca-file={}", text(&pki.join("ca.crt"))),
                    format!(
                        "--service-account-private-key-file={}",
                        text(&pki.join("sa.key"))
                    ),
                    "--use-service-account-credentials".to_owned(),
                ],
            ),
            ("kube-scheduler", Vec::new()),
        ] {
            let kubeconfig = text(&self.plane.kubeconfig_for(&format!("system:{name}"), None)?);
            let mut command = vec![text(binaries.path(name)?)];
            for flag in [
                "kubeconfig",
                "authentication-kubeconfig",
                "authorization-kubeconfig",
            ] {
                command.push(format!("--{flag}={kubeconfig}"));
            }
            command.push("--leader-elect=false".to_owned());
            command.push("--bind-address=127.0.0.1".to_owned());
            command.push(format!(
                "--cert-dir={}",
                text(&self.folder.path().join(name))
            ));
            command.extend(more);
            self.add(name, &command)?;
        }
        Ok(())
    }

    fn start_kubelet(&mut self, binaries: &Binaries, cgroup: &str) -> Result<()> {
        let root = self.folder.path().to_owned();
        let user = format!("system:node:{}", config::NODE);
        let kubeconfig = self.plane.kubeconfig_for(&user, Some("system:nodes"))?;
        let authority = self.plane.authority();
        let serving: Issued = authority.issue(
            "kubelet",
            &user,
            Some("system:nodes"),
            &[config::NODE, ADDRESS],
        )?;
        std::fs::write(root.join("resolv.conf"), "")?;
        let file = root.join("kubelet.yaml");
        let settings = config::kubelet(&root, &authority.certificate(), &serving, cgroup);
        std::fs::write(&file, serde_yaml::to_string(&settings)?)?;
        let command = [
            text(binaries.path("kubelet")?),
            format!("--config={}", text(&file)),
            format!("--kubeconfig={}", text(&kubeconfig)),
            format!("--root-dir={}", text(&root.join("kubelet"))),
            format!("--cert-dir={}", text(&root.join("kubelet-pki"))),
            format!("--hostname-override={}", config::NODE),
            format!("--node-ip={ADDRESS}"),
        ];
        self.add("kubelet", &command).map(drop)
    }

    fn start_network(&mut self, binaries: &Binaries) -> Result<()> {
        let root = self.folder.path().to_owned();
        let kubeconfig = self.plane.kubeconfig_for("system:kube-proxy", None)?;
        let file = root.join("proxy.yaml");
        std::fs::write(&file, serde_yaml::to_string(&config::proxy(&kubeconfig))?)?;
        let proxy = [
            text(binaries.path("kube-proxy")?),
            format!("--config={}", text(&file)),
        ];
        self.add("kube-proxy", &proxy)?;
        let file = root.join("Corefile");
        std::fs::write(&file, config::coredns(&self.plane.kubeconfig()))?;
        let names = [
            text(binaries.path("coredns")?),
            "-conf".to_owned(),
            text(&file),
        ];
        self.add("coredns", &names).map(drop)
    }

    fn wait_ready(&self) -> Result<()> {
        let node = format!("node/{}", config::NODE);
        let wait = ["wait", "--for=condition=Ready", "--timeout=5s", &node];
        let kubelet = self.server("kubelet").context("kubelet")?;
        kubelet.wait_until("a ready node", UP_WITHIN, || {
            self.kubectl().say(&wait, None).is_ok_and(|said| said.ok)
        })?;
        let names = self.server("coredns").context("coredns")?;
        names.wait_until("names", UP_WITHIN, || {
            ureq::get("http://127.0.0.1:8181/ready").call().is_ok()
        })?;
        // The controller makes one in each namespace; no pod is taken before.
        wait_for("the default ServiceAccount", 60, || {
            let said = self.kubectl().say(&["get", "sa/default"], None).ok()?;
            said.ok.then_some(())
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The kernel kills what is in a namespace of processes before its first one is gone.
        let _ = self.init.kill();
        let _ = std::process::Command::new(self.folder.path().join("cleanup")).status();
        let _ = enter(&self.home);
    }
}

fn init(root: &Path, cgroup: &str) -> Result<Process> {
    let mut command: Vec<String> = [
        "unshare",
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "sh",
        "-c",
        config::INIT,
        "init",
    ]
    .map(str::to_owned)
    .to_vec();
    command.push(text(root));
    command.push(cgroup.to_owned());
    let init = Process::new("init", root, command);
    init.start()?;
    let entered = root.join("entered");
    init.wait_until("its namespaces", UP_WITHIN, || entered.exists())?;
    Ok(init)
}

/// Moves this thread into a network.
fn enter(network: &File) -> Result<()> {
    use std::os::fd::AsFd;
    move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
        .context("entering the cluster's network")
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn executable(path: &Path, content: &str) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, content)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}
