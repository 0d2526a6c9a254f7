//! etcd and kube-apiserver on loopback.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Binaries;
use super::audit::Audit;
use super::certificates::{Authority, Issued};
use super::kubectl::Kubectl;
use super::process::{Process, watch};

/// How long a program may take to come up on a machine that builds beside it.
const UP_WITHIN: Duration = Duration::from_mins(2);
/// Addresses of Services: a range for tests of networks, which nobody routes (RFC 2544).
const SERVICES: &str = "198.19.0.0/24";
/// The first address of [`SERVICES`], which Kubernetes gives to the API server.
const SERVICE_OF_API: &str = "198.19.0.1";

/// A control plane with its state in a temporary folder; killed and removed when dropped, also when the test is killed.
pub struct ControlPlane {
    // Dropped in this order: no server may outlive its folder.
    apiserver: Process,
    etcd: Process,
    etcd_url: String,
    url: String,
    kubectl: Kubectl,
    authority: Authority,
    folder: TempDir,
}

impl ControlPlane {
    /// Starts one and waits until it is ready.
    ///
    /// # Errors
    /// A program does not come up: the text holds the end of its log.
    pub fn start(binaries: &Binaries) -> Result<Self> {
        Self::start_at(binaries, "127.0.0.1", &[])
    }

    /// The same on another address, each program behind `prefix`, a command that starts another one.
    pub(crate) fn start_at(binaries: &Binaries, address: &str, prefix: &[String]) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("weir-cluster-").tempdir()?;
        let root = folder.path();
        watch(root)?;
        let authority = Authority::new(&root.join("pki"))?;
        let ports = free_ports(3)?;
        let etcd_url = format!("http://127.0.0.1:{}", ports[0]);
        let peer_url = format!("http://127.0.0.1:{}", ports[1]);
        let url = format!("https://{address}:{}", ports[2]);
        let admin = authority.issue("admin", "weir-test-admin", Some("system:masters"), &[])?;
        let kubeconfig = root.join("admin.kubeconfig");
        authority.kubeconfig(&kubeconfig, &url, &admin)?;
        let kubectl = Kubectl::new(
            binaries.path("kubectl")?,
            &kubeconfig,
            &root.join("discovery"),
        );
        let etcd = etcd_command(binaries, root, &etcd_url, &peer_url)?;
        let files = ApiFiles::write(root, &authority, address)?;
        let apiserver = files.command(binaries, root, &etcd_url, address, ports[2])?;
        let plane = Self {
            apiserver: Process::new("kube-apiserver", root, [prefix, &apiserver].concat()),
            etcd: Process::new("etcd", root, [prefix, &etcd].concat()),
            etcd_url,
            url,
            kubectl,
            authority,
            folder,
        };
        plane.etcd.start()?;
        plane.start_apiserver()?;
        Ok(plane)
    }

    /// Starts the API server and waits until it is ready; it comes back where it was, on the same port with the same certificates.
    ///
    /// # Errors
    /// It does not come up.
    pub fn start_apiserver(&self) -> Result<()> {
        self.apiserver.start()?;
        self.apiserver.wait_until("/readyz", UP_WITHIN, || {
            self.kubectl
                .say(&["get", "--raw", "/readyz", "--request-timeout=5s"], None)
                .is_ok_and(|said| said.ok && said.out == "ok")
        })
    }

    /// The API server's process: to be stopped, killed, frozen and thawed.
    pub fn apiserver(&self) -> &Process {
        &self.apiserver
    }

    /// The process of etcd.
    pub fn etcd(&self) -> &Process {
        &self.etcd
    }

    /// kubectl as an administrator.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("admin.kubeconfig")
    }

    /// A kubeconfig for a user of that name in that group: another administrator, or somebody whose rights a test grants.
    ///
    /// # Errors
    /// Files cannot be written.
    pub fn kubeconfig_for(&self, user: &str, group: Option<&str>) -> Result<PathBuf> {
        let file = user.replace(':', "-");
        let issued = self.authority.issue(&file, user, group, &[])?;
        let path = self.folder.path().join(format!("{file}.kubeconfig"));
        self.authority.kubeconfig(&path, &self.url, &issued)?;
        Ok(path)
    }

    /// Where the API server listens.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where its state is.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Who issues the cluster's certificates.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// What the API server was asked.
    pub fn audit(&self) -> Audit {
        Audit::at(self.folder.path().join("audit.log"))
    }

    /// Applies `crds/` and waits until the kinds are served.
    ///
    /// # Errors
    /// A definition is refused.
    pub fn apply_crds(&self) -> Result<()> {
        self.kubectl.apply_crds()
    }

    /// Compacts etcd up to now: a watch or a list that names an older version is answered "gone", as after a long time away. The API
    /// server's own caches forget only when it is started again.
    ///
    /// # Errors
    /// etcd does not answer.
    pub fn compact(&self) -> Result<()> {
        let now = self.etcd_call("/v3/kv/range", &json!({"key": "AA=="}))?;
        let revision = now["header"]["revision"]
            .as_str()
            .context("etcd does not say its revision")?;
        self.etcd_call(
            "/v3/kv/compaction",
            &json!({"revision": revision, "physical": true}),
        )?;
        Ok(())
    }

    fn etcd_call(&self, path: &str, body: &Value) -> Result<Value> {
        let text = ureq::post(format!("{}{path}", self.etcd_url))
            .send(body.to_string())
            .with_context(|| format!("etcd {path}"))?
            .into_body()
            .read_to_string()?;
        serde_json::from_str(&text).context("what etcd answered")
    }
}

/// Ports that nobody listens on now.
fn free_ports(count: usize) -> Result<Vec<u16>> {
    let listeners: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<std::io::Result<_>>()?;
    listeners
        .iter()
        .map(|listener| Ok(listener.local_addr()?.port()))
        .collect()
}

/// etcd without syncs: what a test needs is gone after the test anyway.
fn etcd_command(binaries: &Binaries, root: &Path, client: &str, peer: &str) -> Result<Vec<String>> {
    Ok(vec![
        binaries.path("etcd")?.display().to_string(),
        "--name=weir".to_owned(),
        format!("--data-dir={}", root.join("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=weir={peer}"),
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
    ])
}

/// The files an API server reads.
struct ApiFiles {
    authority: PathBuf,
    serving: Issued,
    kubelet: Issued,
    accounts: Issued,
    audit_policy: PathBuf,
}

impl ApiFiles {
    fn write(root: &Path, authority: &Authority, address: &str) -> Result<Self> {
        let audit_policy = root.join("audit-policy.yaml");
        let policy = json!({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted"], "rules": [{"level": "Metadata"}],
        });
        std::fs::write(&audit_policy, serde_yaml::to_string(&policy)?)?;
        let names = [
            "localhost",
            "kubernetes.default.svc",
            "127.0.0.1",
            SERVICE_OF_API,
            address,
        ];
        Ok(Self {
            authority: authority.certificate(),
            serving: authority.issue("apiserver", "kube-apiserver", None, &names)?,
            kubelet: authority.issue(
                "apiserver-kubelet",
                "kube-apiserver",
                Some("system:masters"),
                &[],
            )?,
            accounts: authority.service_account_keys()?,
            audit_policy,
        })
    }

    fn command(
        &self,
        binaries: &Binaries,
        root: &Path,
        etcd: &str,
        address: &str,
        port: u16,
    ) -> Result<Vec<String>> {
        let mut command = vec![binaries.path("kube-apiserver")?.display().to_string()];
        let mut flag = |name: &str, value: &dyn std::fmt::Display| {
            command.push(format!("--{name}={value}"));
        };
        flag("etcd-servers", &etcd);
        flag("bind-address", &address);
        flag("advertise-address", &address);
        flag("secure-port", &port);
        flag("cert-dir", &root.join("apiserver").display());
        flag("tls-cert-file", &self.serving.certificate.display());
        flag("tls-private-key-file", &self.serving.key.display());
        flag("client-ca-file", &self.authority.display());
        flag(
            "service-account-key-file",
            &self.accounts.certificate.display(),
        );
        flag(
            "service-account-signing-key-file",
            &self.accounts.key.display(),
        );
        flag("service-account-issuer", &"https://kubernetes.default.svc");
        flag("service-cluster-ip-range", &SERVICES);
        flag("authorization-mode", &"Node,RBAC");
        flag("enable-admission-plugins", &"NodeRestriction");
        flag("allow-privileged", &true);
        flag(
            "kubelet-client-certificate",
            &self.kubelet.certificate.display(),
        );
        flag("kubelet-client-key", &self.kubelet.key.display());
        flag("kubelet-preferred-address-types", &"InternalIP");
        flag("audit-policy-file", &self.audit_policy.display());
        flag("audit-log-path", &root.join("audit.log").display());
        // Written before the answer is sent, so that a test finds what it did.
        flag("audit-log-mode", &"blocking-strict");
        flag("shutdown-delay-duration", &"0s");
        flag("v", &1);
        Ok(command)
    }
}
