//! What other programs say of what the chart renders: the older Helm, kubeconform and kube-score.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use weir_e2e::cluster::{self, Binaries, Helm, Layer};
use weir_e2e::repository;

use crate::chart::{TOGGLES, arguments};

/// What kube-score asks for and the chart does not do, and why.
const NOT_DONE: &[&str] = &[
    // A processor limit stops a gateway in the middle of a token; memory of gateways follows the number of streams, which is what autoscaling is for.
    "container-resources",
    // Scratch space is small and bounded by what is mounted read-only.
    "container-ephemeral-storage-request-and-limit",
    // Tags are those of a release, or digests.
    "container-image-pull-policy",
    // The user of an image is the image's own affair where it is not ours: PostgreSQL's is 999.
    "container-security-context-user-group-id",
    // Spread is asked for by topologySpreadConstraints.
    "deployment-has-host-podantiaffinity",
    // Pods of hooks and tests talk to the API server alone, and answer nobody.
    "pod-networkpolicy",
    // One replica is what a cluster is tried with.
    "deployment-replicas",
];

fn full(test: &str) -> Option<Binaries> {
    cluster::layer(Layer::ChartFull, test).unwrap()
}

/// The rendered text of every toggle, in files of a folder.
fn rendered(helm: &Helm, folder: &Path) -> Vec<PathBuf> {
    let everything = vec!["--values", "charts/weir/ci/everything.yaml"];
    let all = TOGGLES
        .iter()
        .map(|(_, settings)| arguments(settings))
        .chain([everything]);
    all.enumerate()
        .map(|(number, more)| {
            let fixed = ["template", "weir", "charts/weir", "--namespace", "weir"];
            let text = helm.run(&[&fixed[..], &more].concat()).unwrap();
            let path = folder.join(format!("{number}.yaml"));
            std::fs::write(&path, text).unwrap();
            path
        })
        .collect()
}

#[test]
fn both_versions_of_helm_render_the_same() {
    let Some(binaries) = full("both versions of Helm") else {
        return;
    };
    let new = Helm::new(binaries.path("helm").unwrap()).unwrap();
    let old = Helm::new(binaries.path("helm3").unwrap()).unwrap();
    let password = ["--set", "postgresql.secretName=mine"];
    let everything = [
        &["--values", "charts/weir/ci/everything.yaml"][..],
        &password,
    ]
    .concat();
    for more in TOGGLES
        .iter()
        .map(|(_, settings)| arguments(settings))
        .chain([everything])
    {
        let more = [&more[..], &password].concat();
        assert_eq!(
            new.render(&more).unwrap(),
            old.render(&more).unwrap(),
            "{more:?}"
        );
    }
    for helm in [new, old] {
        helm.run(&["lint", "--strict", "charts/weir"]).unwrap();
    }
}

#[test]
fn kube_score_finds_nothing_that_was_not_decided() {
    let Some(binaries) = full("kube-score") else {
        return;
    };
    let helm = Helm::new(binaries.path("helm").unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for path in rendered(&helm, folder.path()) {
        let mut command = binaries.command("kube-score").unwrap();
        command.args(["score", "--output-format=ci", "--kubernetes-version=v1.36"]);
        for test in NOT_DONE {
            command.args(["--ignore-test", test]);
        }
        let output = command.arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let found: Vec<&str> = said
            .lines()
            .filter(|line| line.starts_with("[CRITICAL]") || line.starts_with("[WARNING]"))
            .collect();
        assert!(
            output.status.success() && found.is_empty(),
            "{found:#?}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

/// Kubernetes' own description of its kinds, of the pinned version, as schemas that know no further field: a file for each kind.
fn schemas(folder: &Path) {
    let list = Command::new("go")
        .args([
            "list",
            "-m",
            "-mod=readonly",
            "-f",
            "{{.Dir}}",
            "k8s.io/kubernetes",
        ])
        .current_dir(repository().join("xtask/cluster/kubernetes"))
        .output()
        .unwrap();
    let source = String::from_utf8(list.stdout).unwrap();
    let swagger = Path::new(source.trim()).join("api/openapi-spec/swagger.json");
    let text = std::fs::read_to_string(swagger).unwrap();
    let mut all: Value = serde_json::from_str(&text).unwrap();
    let mut definitions = all["definitions"].take();
    for (name, definition) in definitions.as_object_mut().unwrap() {
        if name.ends_with(".IntOrString") || name.ends_with(".Quantity") {
            *definition = json!({"type": ["string", "number"]});
        }
        if definition["properties"].is_object() {
            definition["additionalProperties"] = json!(false);
        }
        for meant in definition["x-kubernetes-group-version-kind"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let text = |field: &str| meant[field].as_str().unwrap().to_lowercase();
            let group = text("group");
            let group = group.split('.').next().filter(|group| !group.is_empty());
            let group = group.map_or_else(String::new, |group| format!("-{group}"));
            let file = format!("{}{group}-{}.json", text("kind"), text("version"));
            let schema = json!({"$ref": format!("definitions.json#/definitions/{name}")});
            std::fs::write(folder.join(file), schema.to_string()).unwrap();
        }
    }
    let definitions = json!({"definitions": definitions}).to_string();
    std::fs::write(folder.join("definitions.json"), definitions).unwrap();
}

#[test]
fn kubeconform_knows_every_field() {
    let Some(binaries) = full("kubeconform") else {
        return;
    };
    let helm = Helm::new(binaries.path("helm").unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    schemas(folder.path());
    let conform = |files: &[PathBuf]| {
        let schemas = folder.path().join("{{.ResourceKind}}{{.KindSuffix}}.json");
        let output = binaries
            .command("kubeconform")
            .unwrap()
            .args(["-strict", "-summary", "-schema-location"])
            .arg(schemas)
            // Kinds of other projects: `neighbours.rs` applies these to a server that has their definitions.
            .args([
                "-skip",
                "HTTPRoute,InferencePool,PodMonitor,ServiceMonitor,PrometheusRule",
            ])
            .args(files)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = conform(&rendered(&helm, folder.path()));
    assert!(said.contains("Invalid: 0, Errors: 0"), "{said}");
    // It would have seen a field that does not exist.
    let wrong = folder.path().join("wrong.yaml");
    let text = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: x}, spec: {selector: {}, template: {spec: {containers: []}}, replica: 1}}";
    std::fs::write(&wrong, text).unwrap();
    let said = conform(&[wrong]);
    assert!(
        said.contains("Invalid: 1") && said.contains("replica"),
        "{said}"
    );
}
