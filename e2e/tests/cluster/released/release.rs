//! A release of the chart on a node, with what people bring: models, a tenant, a volume for PostgreSQL.

use std::collections::BTreeSet;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_e2e::cluster::{self, Binaries, Helm, Images, Layer, Node};
use weir_e2e::{Client, RandomModel, Site as Files, Tenant};

use super::streams;
use crate::ground::{self, PARTS};
use crate::install::{self, NAMESPACE};
use crate::stage::condition;

/// User of the image of PostgreSQL.
const POSTGRES: u32 = 999;

/// A release, installed or not.
pub(super) struct Release {
    pub(super) node: Node,
    pub(super) helm: Helm,
    pub(super) files: Files,
    _database: tempfile::TempDir,
}

/// A chart, and the tag of its images.
pub(super) struct Chart {
    path: String,
    tag: &'static str,
}

impl Chart {
    /// The release before: this one's chart with images of another tag, or what `WEIR_RELEASE_BEFORE` holds, a folder with `charts/weir`
    /// and the three programs.
    pub(super) fn before() -> Self {
        let path = older().map_or_else(
            || "charts/weir".to_owned(),
            |folder| folder.join("charts/weir").display().to_string(),
        );
        Self {
            path,
            tag: "before",
        }
    }

    pub(super) fn now() -> Self {
        Self {
            path: "charts/weir".to_owned(),
            tag: "test",
        }
    }

    /// The images that were made here, in place of those that a registry would have.
    fn images(&self) -> String {
        let ours = PARTS.map(|part| (part, self.tag));
        let others = ["kubectl", "postgresql"].map(|part| (part, "test"));
        let set = ours.iter().chain(&others).map(|(part, tag)| {
            format!("{part}.image.repository=localhost/weir/{part},{part}.image.tag={tag}")
        });
        set.collect::<Vec<_>>().join(",")
    }
}

fn older() -> Option<PathBuf> {
    std::env::var_os("WEIR_RELEASE_BEFORE").map(PathBuf::from)
}

/// What a cluster with a storage class would make for the claim of PostgreSQL.
fn volume(folder: &Path) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "database"}, "spec": {
            "capacity": {"storage": "8Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain", "hostPath": {"path": folder},
            "claimRef": {"namespace": NAMESPACE, "name": "data-weir-postgresql-0"},
        },
    })
}

/// Images of the release before, of its hooks, and of PostgreSQL.
pub(super) fn every_image(images: &mut Images, binaries: &Binaries) {
    let programs = older().unwrap_or_else(|| cluster::programs().unwrap());
    for part in PARTS {
        images.weir_as(part, "before", &programs).unwrap();
    }
    images.kubectl(binaries.path("kubectl").unwrap()).unwrap();
    images.postgresql().unwrap();
}

impl Release {
    /// A node with the images of the three programs and more, and nothing installed.
    pub(super) fn prepare(test: &str, more: impl FnOnce(&mut Images, &Binaries)) -> Option<Self> {
        let binaries = cluster::layer(Layer::Node, test).unwrap()?;
        let charts = cluster::layer(Layer::Chart, test).unwrap()?;
        let mut images = ground::images();
        more(&mut images, &binaries);
        let node = Node::start(&binaries, &images).unwrap();
        let helm = Helm::new(charts.path("helm").unwrap()).unwrap();
        let helm = helm.on(&node.plane().kubeconfig());
        let shape = RandomModel {
            context: 16_384,
            ..RandomModel::default()
        };
        let files = Files::random(shape, &[Tenant::unlimited("acme")]).unwrap();
        install::namespace(&node);
        let models = files.model_dir("random", 1);
        node.claim(NAMESPACE, "models", models.parent().unwrap())
            .unwrap();
        let database = tempfile::tempdir().unwrap();
        chown(database.path(), Some(POSTGRES), Some(POSTGRES)).unwrap();
        let volume = volume(database.path());
        node.kubectl().apply("people", &volume).unwrap();
        Some(Self {
            node,
            helm,
            files,
            _database: database,
        })
    }

    pub(super) fn install(&self, chart: &Chart, set: &str) {
        self.run_helm(&["install"], chart, set);
    }

    pub(super) fn upgrade(&self, chart: &Chart, set: &str) {
        self.run_helm(&["upgrade", "--reset-then-reuse-values"], chart, set);
    }

    fn run_helm(&self, command: &[&str], chart: &Chart, set: &str) {
        let set = [&chart.images(), set].join(",");
        let release = ["weir", &chart.path, "--namespace", NAMESPACE];
        let rest = ["--wait", "--timeout", "5m", "--set", &set];
        let said = self.helm.run(&[command, &release[..], &rest[..]].concat());
        assert!(said.is_ok(), "{said:?}\n{}", self.node.story(NAMESPACE));
    }

    pub(super) fn uninstall(&self) {
        let release = ["uninstall", "weir", "--namespace", NAMESPACE];
        let within = ["--timeout", "5m"];
        let said = self.helm.run(&[&release[..], &within].concat());
        assert!(said.is_ok(), "{said:?}\n{}", self.node.story(NAMESPACE));
    }

    /// What people have of these kinds, where the cluster finds it.
    pub(super) fn apply(&self, kinds: &[&str]) {
        for entry in std::fs::read_dir(self.files.manifests()).unwrap() {
            let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
            let mut object: Value = serde_yaml::from_str(&text).unwrap();
            let kind = object["kind"].as_str().unwrap();
            if !kinds.contains(&kind) {
                continue;
            }
            if kind == "ModelVersion" {
                let uri = "pvc://models/random-v1";
                object["spec"]["manifest"]["artifact"]["uri"] = json!(uri);
            }
            install::apply(&self.node, object);
        }
    }

    pub(super) fn client(&self) -> Client {
        ground::client(&self.node)
    }

    pub(super) fn object(&self, name: &str) -> Value {
        ground::object(&self.node, name)
    }

    /// kubectl in the namespace.
    pub(super) fn run(&self, arguments: &[&str]) -> String {
        let all = [arguments, &["-n", NAMESPACE]].concat();
        self.node.kubectl().run(&all).unwrap()
    }

    pub(super) fn wait(&self, what: &str, seconds: u64, check: impl FnMut() -> bool) {
        ground::wait(&self.node, what, seconds, check);
    }

    /// The version is ready, and a run of it comes to its end; how long that took.
    pub(super) fn first_token(&self, since: Instant) -> Duration {
        self.wait("the version to be ready", 180, || {
            let version = self.object("mv/random-v1");
            condition(&version, "Ready").is_some_and(|(status, _)| status == "True")
        });
        let client = self.client();
        self.wait("a first answer through the Service", 60, || {
            streams::read(&client, "first", 3).is_ok_and(|read| read.is_whole(3))
        });
        since.elapsed()
    }

    /// The pods of a component that are not about to go.
    pub(super) fn pods(&self, component: &str) -> Vec<Value> {
        let of = format!("app.kubernetes.io/component={component}");
        let pods = ["pods", "-n", NAMESPACE, "-l", &of];
        let mut list = self.node.kubectl().get(&pods).unwrap();
        let pods: Vec<Value> = serde_json::from_value(list["items"].take()).unwrap();
        let stays = |pod: &Value| pod["metadata"].get("deletionTimestamp").is_none();
        pods.into_iter().filter(stays).collect()
    }

    /// Their names.
    pub(super) fn names(&self, component: &str) -> BTreeSet<String> {
        let pods = self.pods(component);
        let names = pods.iter().map(|pod| pod["metadata"]["name"].as_str());
        names.flatten().map(str::to_owned).collect()
    }

    /// What is there that only an installation has; the log of rollouts is the user's.
    pub(super) fn left(&self) -> Vec<String> {
        let kinds = "all,networkpolicies,poddisruptionbudgets,leases,roles,rolebindings,jobs";
        let here = self.run(&["get", kinds, "-o", "name"]);
        let here = here
            .lines()
            .filter(|one| !one.starts_with("controllerrevision"));
        let kinds = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings";
        let wide = ["get", kinds, "-o", "name"];
        let wide = self.node.kubectl().run(&wide).unwrap();
        let wide = wide.lines().filter(|one| one.contains("weir"));
        here.chain(wide).map(str::to_owned).collect()
    }
}
