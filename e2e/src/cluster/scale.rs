//! Nodes and pods that are only pretended: control plane, controllers and scheduler are real, kubelets are played by kwok.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::Binaries;
use super::control_plane::ControlPlane;
use super::kubectl::Kubectl;
use super::process::Process;

/// How long a program may take to come up.
const UP_WITHIN: Duration = Duration::from_mins(2);

/// What becomes of nodes and pods: ready at once, gone when they are deleted.
const STAGES: &str = r#"
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: node-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Node}
  selector:
    matchExpressions:
    - {key: '.status.conditions.[] | select( .type == "Ready" ) | .status', operator: NotIn, values: ["True"]}
  next:
    statusTemplate: |
      conditions:
      - {type: Ready, status: "True", reason: Played, message: played, lastHeartbeatTime: {{ Now | Quote }}, lastTransitionTime: {{ Now | Quote }}}
      allocatable: {cpu: 1k, memory: 1Ti, pods: 1M}
      capacity: {cpu: 1k, memory: 1Ti, pods: 1M}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-ready}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.phase, operator: In, values: [Pending]}
    - {key: '.status.conditions.[] | select( .type == "Ready" ) | .status', operator: NotIn, values: ["True"]}
  next:
    statusTemplate: |
      phase: Running
      conditions:
      - {type: Initialized, status: "True", lastTransitionTime: {{ Now | Quote }}}
      - {type: ContainersReady, status: "True", lastTransitionTime: {{ Now | Quote }}}
      - {type: Ready, status: "True", lastTransitionTime: {{ Now | Quote }}}
      containerStatuses:
      {{ range .spec.containers }}
      - {name: {{ .name | Quote }}, image: {{ .image | Quote }}, imageID: played, ready: true, restartCount: 0, state: {running: {startedAt: {{ Now | Quote }}}}}
      {{ end }}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-gone}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: Exists}
  next: {delete: true}
"#;

/// A cluster of played nodes on loopback.
pub struct Scale {
    // Dropped in this order.
    servers: Vec<Process>,
    plane: ControlPlane,
}

impl Scale {
    /// Starts a cluster and waits until its nodes are ready.
    ///
    /// # Errors
    /// A program does not come up: the text holds the end of its log.
    pub fn start(binaries: &Binaries, nodes: u32) -> Result<Self> {
        let plane = ControlPlane::start(binaries)?;
        let mut scale = Self {
            servers: Vec::new(),
            plane,
        };
        scale.controllers(binaries)?;
        scale.kwok(binaries)?;
        for number in 0..nodes {
            let name = format!("played-{number}");
            let node = json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "type": "kwok"}},
            });
            scale.kubectl().apply("weir-test", &node)?;
        }
        let wait = ["wait", "--for=condition=Ready", "--timeout=60s", "nodes"];
        scale.kubectl().run(&[&wait[..], &["--all"]].concat())?;
        let server = scale.servers.last().context("kwok")?;
        server.wait_until("the default ServiceAccount", UP_WITHIN, || {
            scale
                .kubectl()
                .say(&["get", "sa/default"], None)
                .is_ok_and(|said| said.ok)
        })?;
        Ok(scale)
    }

    /// The control plane.
    pub fn plane(&self) -> &ControlPlane {
        &self.plane
    }

    /// kubectl as an administrator.
    pub fn kubectl(&self) -> &Kubectl {
        self.plane.kubectl()
    }

    fn add(&mut self, name: &'static str, command: Vec<String>) -> Result<()> {
        let process = Process::new(name, self.plane.folder(), command);
        process.start()?;
        self.servers.push(process);
        Ok(())
    }

    fn controllers(&mut self, binaries: &Binaries) -> Result<()> {
        let pki = self.plane.folder().join("pki");
        let accounts = [
            format!(
                "--service-account-private-key-file={}",
                pki.join("sa.key").display()
            ),
            format!("--root-ca-file={}", pki.join("ca.crt").display()),
            "--use-service-account-credentials".to_owned(),
        ];
        for (name, more) in [
            ("kube-controller-manager", &accounts[..]),
            ("kube-scheduler", &[]),
        ] {
            let user = format!("system:{name}");
            let kubeconfig = self.plane.kubeconfig_for(&user, None)?;
            let kubeconfig = kubeconfig.display();
            let mut command = vec![
                binaries.path(name)?.display().to_string(),
                format!("--kubeconfig={kubeconfig}"),
                format!("--authentication-kubeconfig={kubeconfig}"),
                format!("--authorization-kubeconfig={kubeconfig}"),
                "--leader-elect=false".to_owned(),
                // Nobody asks them anything.
                "--secure-port=0".to_owned(),
            ];
            command.extend(more.iter().cloned());
            self.add(name, command)?;
        }
        Ok(())
    }

    fn kwok(&mut self, binaries: &Binaries) -> Result<()> {
        let stages = self.plane.folder().join("kwok.yaml");
        std::fs::write(&stages, STAGES)?;
        let command = vec![
            binaries.path("kwok")?.display().to_string(),
            format!("--kubeconfig={}", self.plane.kubeconfig().display()),
            format!("--config={}", stages.display()),
            "--manage-all-nodes=true".to_owned(),
            "--node-lease-duration-seconds=40".to_owned(),
            "--server-address=".to_owned(),
            "--cidr=198.18.64.0/18".to_owned(),
        ];
        self.add("kwok", command)
    }
}
