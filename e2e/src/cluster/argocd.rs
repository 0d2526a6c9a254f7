//! Argo CD beside a node: its programs as processes, its kinds and settings as its own manifests have them.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::node::Node;
use super::process::Process;
use super::{Binaries, module_files};
use crate::repository;

/// Where its objects are.
const NAMESPACE: &str = "argocd";
/// Who it is to the API server.
const USER: &str = "argocd";
/// How often it asks a repository for commits and looks at an Application that nothing happened to.
const LOOKS_EVERY: &str = "5s";
/// How long a program may take to come up.
const UP_WITHIN: Duration = Duration::from_mins(2);

/// Its servers in the order in which they start: name, flags, and where each says how it is.
const SERVERS: &[(&str, &[&str], &str)] = &[
    (
        "argocd-repo-server",
        &[
            "--disable-tls",
            "--address=127.0.0.1",
            "--metrics-address=127.0.0.1",
        ],
        "http://127.0.0.1:8084/healthz",
    ),
    (
        "argocd-server",
        &[
            "--namespace=argocd",
            "--repo-server=127.0.0.1:8081",
            "--repo-server-plaintext",
            "--insecure",
            "--disable-auth",
            "--address=127.0.0.1",
            "--metrics-address=127.0.0.1",
        ],
        "http://127.0.0.1:8080/healthz",
    ),
    (
        "argocd-application-controller",
        &[
            "--namespace=argocd",
            "--repo-server=127.0.0.1:8081",
            "--repo-server-plaintext",
        ],
        "http://127.0.0.1:8082/healthz",
    ),
];

/// An Argo CD that runs in a node's namespaces, on the node's loopback. Whoever may reach that may do everything.
pub struct ArgoCd {
    // Dropped in this order.
    servers: Vec<Process>,
    folder: TempDir,
}

impl ArgoCd {
    /// Its pages and its API, reached from within the node's network.
    pub const PAGES: &str = "http://127.0.0.1:8080";
    /// The user by whose name the API server knows what it writes.
    pub const USER: &str = USER;
    /// The namespace of its Applications.
    pub const NAMESPACE: &str = NAMESPACE;

    /// Starts one, with Weir's health and actions in its settings, and waits until it answers.
    ///
    /// # Errors
    /// A program does not come up: the text holds the end of its log.
    pub fn start(binaries: &Binaries, node: &Node) -> Result<Self> {
        settle(node)?;
        let folder = tempfile::Builder::new().prefix("weir-argocd-").tempdir()?;
        std::fs::create_dir(folder.path().join("tmp"))?;
        let mut argocd = Self {
            servers: Vec::new(),
            folder,
        };
        argocd.start_redis(node)?;
        let program = argocd.command(binaries, node)?;
        for (name, flags, health) in SERVERS {
            let acts_as = format!("ARGOCD_BINARY_NAME={name}");
            let flags = flags.iter().copied().map(str::to_owned);
            let command = ["env".to_owned(), acts_as]
                .into_iter()
                .chain(program.iter().cloned())
                .chain(flags);
            let server = node.program(name, &command.collect::<Vec<_>>());
            server.start()?;
            server.wait_until("its health", UP_WITHIN, || {
                ureq::get(*health).call().is_ok()
            })?;
            argocd.servers.push(server);
        }
        Ok(argocd)
    }

    /// Runs an action on an object of an Application, as a person does on its page.
    ///
    /// # Errors
    /// It is refused: the text holds why.
    pub fn act(&self, application: &str, object: &Value, action: &str) -> Result<()> {
        let kind = object["apiVersion"].as_str().unwrap_or_default();
        let (group, version) = kind.split_once('/').unwrap_or(("", kind));
        let asked = json!({
            "name": application, "appNamespace": NAMESPACE, "action": action,
            "group": group, "version": version, "kind": object["kind"],
            "namespace": object["metadata"]["namespace"], "resourceName": object["metadata"]["name"],
        });
        let pages = Self::PAGES;
        let url = format!("{pages}/api/v1/applications/{application}/resource/actions/v2");
        let agent: ureq::Agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .build()
            .into();
        let answer = agent
            .post(url)
            .header("content-type", "application/json")
            .send(asked.to_string())?;
        let status = answer.status();
        let said = answer.into_body().read_to_string()?;
        ensure!(
            status.is_success(),
            "Argo CD answers \"{action}\" with {status}: {said}"
        );
        Ok(())
    }

    /// The ends of its logs, for the text of a failing test.
    pub fn story(&self) -> String {
        let ends = self.servers.iter().map(|server| {
            let log = server.log();
            format!("--- {}\n{}", log.display(), server.log_tail())
        });
        ends.collect::<Vec<_>>().join("\n")
    }

    fn start_redis(&mut self, node: &Node) -> Result<()> {
        let folder = self.folder.path().display().to_string();
        let redis = [
            "redis-server",
            "--bind",
            "127.0.0.1",
            "--port",
            "6379",
            "--save",
            "",
            "--dir",
            &folder,
        ];
        let redis = node.program("redis", &redis.map(str::to_owned));
        redis.start()?;
        redis.wait_until("its socket", UP_WITHIN, || {
            std::net::TcpStream::connect("127.0.0.1:6379").is_ok()
        })?;
        self.servers.push(redis);
        Ok(())
    }

    /// Settings, the program and the flags that all servers take.
    fn command(&self, binaries: &Binaries, node: &Node) -> Result<[String; 11]> {
        let kubeconfig = node.plane().kubeconfig_for(USER, Some("system:masters"))?;
        let folder = self.folder.path().display();
        // It renders with what it finds on its path.
        let kustomize = folder_of(binaries.path("kustomize")?)?;
        Ok([
            "ARGOCD_FAKE_IN_CLUSTER=true".to_owned(),
            "ARGOCD_GPG_ENABLED=false".to_owned(),
            format!("ARGOCD_RECONCILIATION_TIMEOUT={LOOKS_EVERY}"),
            "ARGOCD_RECONCILIATION_JITTER=0s".to_owned(),
            format!("KUBECONFIG={}", kubeconfig.display()),
            format!("HOME={folder}"),
            format!("TMPDIR={folder}/tmp"),
            format!("PATH={kustomize}:/usr/local/bin:/usr/bin:/bin"),
            binaries.path("argocd")?.display().to_string(),
            "--redis=127.0.0.1:6379".to_owned(),
            "--logformat=text".to_owned(),
        ])
    }
}

/// Its namespace, kinds and settings, and what `argocd/argocd-cm.yaml` adds to them.
fn settle(node: &Node) -> Result<()> {
    let kubectl = node.kubectl();
    let manifests = module_files("argocd", "github.com/argoproj/argo-cd/v3")?.join("manifests");
    kubectl.run(&["create", "namespace", NAMESPACE])?;
    for folder in ["crds", "base/config"] {
        let folder = manifests.join(folder).display().to_string();
        let apply = ["apply", "--server-side", "-n", NAMESPACE, "-k", &folder];
        kubectl.run(&apply)?;
    }
    let kinds = [
        "crd/applications.argoproj.io",
        "crd/appprojects.argoproj.io",
    ];
    let wait = ["wait", "--for=condition=Established", "--timeout=60s"];
    let wait = [&wait[..], &kinds].concat();
    // It gives up on a definition of which nothing is said yet.
    crate::wait_for("the kinds of Argo CD", 60, || kubectl.run(&wait).ok())?;
    let file = repository().join("argocd/argocd-cm.yaml");
    let file = file.display().to_string();
    let patch = ["patch", "configmap", "argocd-cm", "--patch-file", &file];
    kubectl.run(&[&["-n", NAMESPACE], &patch[..]].concat())?;
    Ok(())
}

fn folder_of(program: &Path) -> Result<String> {
    let folder = program.parent().context("a program lies in a folder")?;
    Ok(folder.display().to_string())
}
