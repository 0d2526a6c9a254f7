//! The authority that the operator keeps: what it issues makes a gateway and a worker find each other, what is damaged is mended, and a
//! restart changes nothing.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use weir_e2e::cluster::{ControlPlane, Kubectl};
use weir_e2e::processes::{GatewayProcess, Plan, WorkerProcess, snapshot_tenant, write_snapshot};
use weir_e2e::prometheus::free_address;
use weir_e2e::{RandomModel, Site, Tenant, repository, wait_for, weir_command};

use crate::plane::{namespace, own, set_status};
use crate::stage::Running;

const NAMESPACE: &str = "identities";
/// It looks once a minute, and a busy machine takes its time.
const PATIENCE: u64 = 180;

/// An operator that issues certificates, as the account that the manifests give it.
struct Issuing {
    kubectl: Kubectl,
    kubeconfig: PathBuf,
    log: PathBuf,
}

impl Issuing {
    fn start(&self) -> Running {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log);
        let mut command = weir_command();
        let account = ["operator", "--namespace", NAMESPACE, "--identity", "one"];
        command
            .args(account)
            .args([
                "--admin",
                "127.0.0.1:0",
                "--mutual-tls",
                "--certificate-hours",
                "1",
            ])
            .env("KUBECONFIG", &self.kubeconfig)
            .env("WEIR_LOG", "info,weir_operator::gateways=debug")
            .stdin(Stdio::null())
            .stderr(log.unwrap());
        Running(command.spawn().unwrap())
    }

    fn secret(&self, name: &str) -> Value {
        let arguments = ["secret", name, "-n", NAMESPACE];
        self.kubectl.get(&arguments).unwrap()
    }

    /// Waits until the operator has said it, and says how often it did.
    fn says(&self, words: &str, times: usize) {
        wait_for(&format!("{times} of {words:?}"), PATIENCE, || {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            (log.matches(words).count() >= times).then_some(())
        })
        .unwrap();
    }

    /// Waits until a role has its certificate, and puts it where a kubelet would.
    fn mount(&self, name: &str, folder: &Path) {
        let entries = ["tls.crt", "tls.key", "ca.crt"];
        let secret = wait_for(&format!("{name} to be filled"), PATIENCE, || {
            let secret = self.secret(name);
            let is_whole = entries
                .iter()
                .all(|entry| secret["data"][entry].is_string());
            is_whole.then_some(secret)
        })
        .unwrap();
        std::fs::create_dir_all(folder).unwrap();
        for entry in entries {
            std::fs::write(folder.join(entry), decoded(&secret["data"][entry])).unwrap();
        }
    }
}

fn decoded(entry: &Value) -> Vec<u8> {
    use base64::Engine as _;
    let text = entry.as_str().unwrap();
    base64::engine::general_purpose::STANDARD
        .decode(text)
        .unwrap()
}

/// A gateway that has a session with a worker, both with these folders.
fn find_each_other(site: &Site, worker: &Path, gateway: &Path) {
    let plan = Plan::of(site).unwrap();
    let mut served = WorkerProcess::secured(site, &plan, "w0", worker).unwrap();
    served.start().unwrap();
    let tenants = [snapshot_tenant("acme", 1_000_000, &json!({})).unwrap()];
    let workers = [("w0", served.address())];
    let snapshot = write_snapshot((site, &plan), "g", &tenants, &workers).unwrap();
    let mut serving = GatewayProcess::new(site, "g", "log", &snapshot).unwrap();
    let folder = gateway.display().to_string();
    serving
        .arguments
        .extend(["--workload-identity".to_owned(), folder]);
    serving.start(None).unwrap();
    serving.serves().unwrap();
}

/// A gateway in the cluster: the operator asks it where both prove who they are, and nobody else is answered there.
fn is_asked_by_the_operator(issuing: &Issuing, site: &Site, plane: &ControlPlane, identity: &Path) {
    let account = format!("system:serviceaccount:{NAMESPACE}:weir-gateway");
    let kubeconfig = plane.kubeconfig_for(&account, None).unwrap();
    let [listen, admin, control] = std::array::from_fn(|_| free_address().unwrap());
    let mut command = weir_command();
    command
        .args(["gateway", "--cluster", "--namespace", NAMESPACE])
        .args(["--listen", &listen, "--admin", &admin])
        .args(["--control", &control])
        .arg("--data")
        .arg(site.path().join("in-cluster"))
        .arg("--workload-identity")
        .arg(identity)
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(site.path().join("in-cluster.log")).unwrap());
    let _gateway = Running(command.spawn().unwrap());
    let port = |address: &str| -> u16 { address.rsplit(':').next().unwrap().parse().unwrap() };
    let ports = json!([
        {"name": "admin", "containerPort": port(&admin)},
        {"name": "control", "containerPort": port(&control)},
    ]);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "g-0", "namespace": NAMESPACE, "labels": {"app.kubernetes.io/component": "gateway"}},
        "spec": {
            "automountServiceAccountToken": false,
            "containers": [{"name": "gateway", "image": "weir-gateway", "ports": ports}],
        },
    });
    let kubectl = &issuing.kubectl;
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": NAMESPACE},
    });
    kubectl.apply("play", &account).unwrap();
    kubectl.apply("play", &pod).unwrap();
    let running =
        json!({"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]});
    set_status(kubectl, "pod/g-0", NAMESPACE, &running);
    for file in ["secret-acme", "tenant-acme"] {
        let file = site.manifests().join(format!("{file}.yaml"));
        let file = file.display().to_string();
        let apply = ["apply", "--server-side", "-n", NAMESPACE, "-f", &file];
        kubectl.run(&apply).unwrap();
    }
    // How many runs a tenant has only a gateway knows.
    let told = wait_for("what a gateway says of a tenant", PATIENCE, || {
        let quota = kubectl.get(&["tenantquota", "acme", "-n", NAMESPACE]);
        quota.ok()?["status"]["liveRuns"].is_number().then_some(())
    });
    let logs = || {
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        read(&issuing.log) + &read(&site.path().join("in-cluster.log"))
    };
    assert!(told.is_ok(), "{told:?}\n{}", logs());
    let asked = |address: &str| {
        let request = ureq::get(format!("http://{address}/observed"));
        let built = request.config().http_status_as_error(false).build();
        built.call().map(|answer| answer.status().as_u16())
    };
    assert_eq!(asked(&admin).unwrap(), 404, "the admin port has it no more");
    assert!(
        asked(&control).is_err(),
        "who proves nothing is not answered"
    );
}

#[test]
fn what_the_operator_issues_lets_gateways_and_workers_find_each_other_and_is_kept_in_order() {
    let Some(plane) = own("certificates of an install") else {
        return;
    };
    let kubectl = plane.kubectl();
    plane.apply_crds().unwrap();
    namespace(kubectl, NAMESPACE);
    let rights = repository().join("deploy/rbac.yaml").display().to_string();
    let install = ["apply", "--server-side", "-n", NAMESPACE, "-f", &rights];
    kubectl.run(&install).unwrap();
    let site = Site::random(RandomModel::default(), &[Tenant::unlimited("acme")]).unwrap();
    let account = format!("system:serviceaccount:{NAMESPACE}:weir-operator");
    let issuing = Issuing {
        kubectl: kubectl.clone(),
        kubeconfig: plane.kubeconfig_for(&account, None).unwrap(),
        log: site.path().join("operator.log"),
    };
    let operator = issuing.start();
    let (worker, gateway) = (site.path().join("worker"), site.path().join("gateway"));
    issuing.mount("weir-worker-identity", &worker);
    issuing.mount("weir-gateway-identity", &gateway);
    find_each_other(&site, &worker, &gateway);
    is_asked_by_the_operator(&issuing, &site, &plane, &gateway);

    // Applied again, as upgrades do: what the operator filled in is not theirs to take away.
    let names = [
        "weir-authority",
        "weir-gateway-identity",
        "weir-worker-identity",
    ];
    let stored = || names.map(|name| issuing.secret(name)["data"].clone());
    let first = stored();
    kubectl.run(&install).unwrap();
    assert!(stored() == first, "applied again");
    drop(operator);
    let operator = issuing.start();
    issuing.says("leads", 2);
    assert!(
        stored() == first,
        "an operator that starts issues nothing anew"
    );

    // The authority's key never leaves its Secret, and a certificate that is taken away is issued anew.
    let key = String::from_utf8(decoded(&first[0]["ca.key"])).unwrap();
    for (name, data) in names.iter().zip(&first).skip(1) {
        assert_eq!(data.as_object().unwrap().len(), 3, "{name}");
        let parts = data.as_object().unwrap().values();
        let mut texts = parts.map(|part| String::from_utf8(decoded(part)).unwrap());
        assert!(!texts.any(|text| text.contains(&key)), "{name}");
    }
    let damage = json!({"data": {"tls.key": "bm90aGluZw=="}});
    let secret = format!("secret/{}", names[1]);
    kubectl.merge(&secret, NAMESPACE, &damage, &[]).unwrap();
    let is_mended = || (stored()[1]["tls.crt"] != first[1]["tls.crt"]).then_some(());
    wait_for("another certificate", PATIENCE, is_mended).unwrap();
    issuing.mount(names[1], &gateway);
    let mended = stored();
    let are_kept = mended[0] == first[0] && mended[2] == first[2];
    assert!(are_kept, "the others are as they were");
    find_each_other(&site, &worker, &gateway);

    // It makes no Secret: whoever takes one away is told what to do.
    let delete = ["delete", "secret", "weir-worker-identity", "-n", NAMESPACE];
    kubectl.run(&delete).unwrap();
    issuing.says("apply the manifests or the chart of this version again", 1);
    kubectl.run(&install).unwrap();
    issuing.mount("weir-worker-identity", &worker);
    find_each_other(&site, &worker, &gateway);
    drop(operator);
}
