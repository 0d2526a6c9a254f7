//! What the chart renders, with every toggle. No cluster is needed; what an API server says of it is in `release`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use weir_e2e::cluster::{self, Helm, Layer, objects};
use weir_e2e::{repository, weir_command};

/// Helm; `None` where it is not built.
pub(crate) fn helm(test: &str) -> Option<Helm> {
    let binaries = cluster::layer(Layer::Chart, test).unwrap()?;
    Some(Helm::new(binaries.path("helm").unwrap()).unwrap())
}

const ROUTE: &str =
    "gatewayAPI.httpRoute.enabled=true,gatewayAPI.httpRoute.parentRefs[0].name=edge";
const PICKER: &str = "gatewayAPI.inferencePool.endpointPickerRef.name=picker,gatewayAPI.inferencePool.endpointPickerRef.port.number=9002";

/// Every toggle turned from what it is without a word, with what it needs.
pub(crate) const TOGGLES: &[(&str, &[&str])] = &[
    ("", &[]),
    ("crds.install", &["crds.install=false"]),
    ("admission.install", &["admission.install=false"]),
    (
        "gateway.autoscaling.enabled",
        &["gateway.autoscaling.enabled=true,store.secretName=s"],
    ),
    (
        "gateway.disruptionBudget.enabled",
        &["gateway.disruptionBudget.enabled=false"],
    ),
    ("postgresql.enabled", &["postgresql.enabled=true"]),
    ("networkPolicy.enabled", &["networkPolicy.enabled=false"]),
    ("monitoring.scrape", &["monitoring.scrape=PodMonitor"]),
    ("monitoring.scrape", &["monitoring.scrape=ServiceMonitor"]),
    ("monitoring.rules", &["monitoring.rules=true"]),
    ("monitoring.dashboard", &["monitoring.dashboard=true"]),
    ("gatewayAPI.httpRoute.enabled", &[ROUTE]),
    (
        "gatewayAPI.inferencePool.enabled",
        &["gatewayAPI.inferencePool.enabled=true", PICKER],
    ),
    (
        "both",
        &[ROUTE, "gatewayAPI.inferencePool.enabled=true", PICKER],
    ),
    (
        "artifacts.nodeCache",
        &["artifacts.nodeCache=/var/cache/weir"],
    ),
    ("gateway.leaveSeconds", &["gateway.leaveSeconds=0"]),
    ("uninstall.sweep", &["uninstall.sweep=false"]),
    ("gateway.tls", &["gateway.tls.secretName=tls-of-weir"]),
    ("mutualTLS.enabled", &["mutualTLS.enabled=true"]),
    ("podSecurityContext", &["podSecurityContext=null"]),
];

/// The arguments of a toggle.
pub(crate) fn arguments(settings: &[&'static str]) -> Vec<&'static str> {
    settings.iter().flat_map(|set| ["--set", set]).collect()
}

pub(crate) fn name(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = text(&object["metadata"]["name"]);
    format!("{}/{name}", text(&object["kind"]))
}

pub(crate) fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    objects.into_iter().map(|one| (name(&one), one)).collect()
}

/// The pod of a workload, or of a pod.
fn pod(object: &Value) -> Option<&Value> {
    if object["kind"] == "Pod" {
        return Some(&object["spec"]);
    }
    let spec = &object["spec"]["template"]["spec"];
    (!spec.is_null()).then_some(spec)
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers"]
        .into_iter()
        .flat_map(|list| pod[list].as_array().into_iter().flatten())
}

#[test]
fn the_chart_has_no_fault_that_helm_finds() {
    let Some(helm) = helm("the chart is linted") else {
        return;
    };
    for values in ["charts/weir/values.yaml", "charts/weir/ci/everything.yaml"] {
        let lint = ["lint", "--strict", "charts/weir", "--values", values];
        helm.run(&lint).unwrap();
    }
}

#[test]
fn whatever_is_toggled_what_comes_out_is_complete_and_restricted() {
    let Some(helm) = helm("every toggle") else {
        return;
    };
    let everything = [
        vec!["--values", "charts/weir/ci/everything.yaml"],
        vec![
            "--values",
            "charts/weir/ci/everything.yaml",
            "--set",
            "monitoring.scrape=PodMonitor",
        ],
    ];
    let toggled = TOGGLES.iter().map(|(_, settings)| arguments(settings));
    for arguments in toggled.chain(everything) {
        let objects = helm.render(&arguments).unwrap();
        let names: BTreeSet<String> = objects.iter().map(name).collect();
        assert_eq!(
            names.len(),
            objects.len(),
            "{arguments:?}: twice the same name"
        );
        for object in &objects {
            complete(&arguments, object);
            if let Some(pod) = pod(object) {
                restricted(&format!("{arguments:?}: {}", name(object)), pod);
            }
        }
    }
}

fn complete(arguments: &[&str], object: &Value) {
    let of = format!("{arguments:?}: {}", name(object));
    let kind = object["kind"].as_str().unwrap();
    let is_of_cluster = kind.starts_with("Cluster")
        || kind.starts_with("Validating")
        || kind == "CustomResourceDefinition";
    let space = &object["metadata"]["namespace"];
    assert_eq!(*space == "weir", !is_of_cluster, "{of} is in {space}");
    let labels = &object["metadata"]["labels"];
    assert_eq!(labels["app.kubernetes.io/instance"], "weir", "{of}");
    assert_eq!(labels["app.kubernetes.io/managed-by"], "Helm", "{of}");
    let selected = &object["spec"]["selector"]["matchLabels"];
    if let (Some(selected), false) = (selected.as_object(), object["spec"]["template"].is_null()) {
        let pods = &object["spec"]["template"]["metadata"]["labels"];
        for (key, value) in selected {
            assert_eq!(pods[key], *value, "{of} does not select its own pods");
        }
    }
}

/// The restricted profile of Pod Security Standards, and a root file system that nobody writes to.
fn restricted(of: &str, pod: &Value) {
    let security = &pod["securityContext"];
    assert_eq!(security["runAsNonRoot"], true, "{of}");
    assert_ne!(security["runAsUser"], 0, "{of}");
    assert_eq!(security["seccompProfile"]["type"], "RuntimeDefault", "{of}");
    let volumes: BTreeSet<&str> = pod["volumes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|volume| volume["name"].as_str())
        .chain(["data"])
        .collect();
    assert!(containers(pod).count() > 0, "{of} has no container");
    for container in containers(pod) {
        let own = &container["securityContext"];
        assert_eq!(own["allowPrivilegeEscalation"], false, "{of}");
        assert_eq!(own["readOnlyRootFilesystem"], true, "{of}");
        assert_eq!(own["capabilities"]["drop"], json!(["ALL"]), "{of}");
        let image = container["image"].as_str().unwrap();
        assert!(
            !image.ends_with(':') && image.contains([':', '@']),
            "{of}: {image}"
        );
        for mount in container["volumeMounts"].as_array().into_iter().flatten() {
            let volume = mount["name"].as_str().unwrap();
            assert!(volumes.contains(volume), "{of}: no volume {volume}");
        }
    }
}

#[test]
fn no_toggle_is_left_out_of_these_tests() {
    let text = std::fs::read_to_string(repository().join("charts/weir/values.yaml")).unwrap();
    let values: Value = serde_yaml::from_str(&text).unwrap();
    let mut missing = Vec::new();
    toggles("", &values, &mut |key| {
        if !TOGGLES.iter().any(|(known, _)| *known == key) {
            missing.push(key.to_owned());
        }
    });
    assert!(missing.is_empty(), "no test turns {missing:?}");
}

fn toggles(place: &str, value: &Value, tell: &mut impl FnMut(&str)) {
    if value.is_boolean() {
        tell(place);
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        let dot = if place.is_empty() { "" } else { "." };
        toggles(&format!("{place}{dot}{key}"), value, tell);
    }
}

#[test]
fn the_chart_and_the_plain_manifests_say_the_same() {
    let Some(helm) = helm("the chart and deploy/") else {
        return;
    };
    let rendered = by_name(helm.render(&[]).unwrap());
    let mut plain = BTreeSet::new();
    for file in ["rbac", "admission", "operator", "gateway"] {
        let path = repository().join(format!("deploy/{file}.yaml"));
        for mut theirs in objects(&std::fs::read_to_string(path).unwrap()).unwrap() {
            let name = name(&theirs);
            let mut ours = rendered
                .get(&name)
                .unwrap_or_else(|| panic!("no {name}"))
                .clone();
            // The chart's labels say more; where an object is, `kubectl apply -n` says of the others.
            let (more, fewer) = (
                ours["metadata"]["labels"].take(),
                theirs["metadata"]["labels"].take(),
            );
            for (key, value) in fewer.as_object().into_iter().flatten() {
                assert_eq!(more[key], *value, "{name}");
            }
            ours["metadata"]
                .as_object_mut()
                .unwrap()
                .remove("namespace");
            for object in [&mut ours, &mut theirs] {
                object["metadata"].as_object_mut().unwrap().remove("labels");
            }
            assert_eq!(ours, theirs, "{name}");
            plain.insert(name);
        }
    }
    // No right is given beside those.
    let rights = rendered.keys().filter(|name| {
        ["Role", "ServiceAccount"]
            .iter()
            .any(|kind| name.contains(kind))
            && !plain.contains(*name)
    });
    for name in rights {
        assert!(
            name.contains("/weir-uninstall") || name.ends_with("/weir-test"),
            "{name}"
        );
    }
}

#[test]
fn the_programs_take_every_argument_that_the_chart_gives_them() {
    let Some(helm) = helm("arguments of the programs") else {
        return;
    };
    let everything = ["--values", "charts/weir/ci/everything.yaml"];
    let rendered = by_name(helm.render(&everything).unwrap());
    for component in ["operator", "gateway"] {
        let deployment = &rendered[&format!("Deployment/weir-{component}")];
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let arguments = container["args"].as_array().unwrap();
        let arguments = arguments.iter().map(|one| one.as_str().unwrap());
        // Read from left to right: what is not known ends it before help is given.
        let output = weir_command()
            .arg(component)
            .args(arguments)
            .arg("--help")
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let options = String::from_utf8_lossy(&output.stdout);
        for variable in container["env"].as_array().unwrap() {
            let variable = variable["name"].as_str().unwrap();
            assert!(
                variable == "WEIR_LOG" || options.contains(variable),
                "{component} does not read {variable}"
            );
        }
    }
}

#[test]
fn values_that_mean_nothing_are_refused_with_a_reason() {
    let Some(helm) = helm("bad values") else {
        return;
    };
    let refused: &[(&str, &str)] = &[
        ("gateway.replica=2", "replica"),
        ("gateway.replicas=two", "replicas"),
        ("gateway.replicas=-1", "replicas"),
        ("operator.logFormat=xml", "logFormat"),
        ("operator.image.tag=a b", "tag"),
        ("operator.image.digest=md5:0", "digest"),
        ("artifacts.claims[0]=Models", "claims"),
        ("artifacts.claims[0]=tmp", "claims"),
        ("podSecurityContext.runAsUser=0", "runAsUser"),
        ("podSecurityContext.privileged=true", "privileged"),
        ("monitoring.scrape=both", "scrape"),
        ("gateway.service.port=0", "port"),
        (
            "gateway.disruptionBudget.maxUnavailable=0",
            "maxUnavailable",
        ),
        ("gatewayAPI.httpRoute.enabled=true", "parentRefs"),
        ("gatewayAPI.inferencePool.enabled=true", "endpointPickerRef"),
        ("unknown=1", "unknown"),
        ("gateway.replicas=2", "several gateways need a store"),
        (
            "gateway.autoscaling.enabled=true",
            "several gateways need a store",
        ),
        (
            "postgresql.enabled=true,store.secretName=s",
            "choose one of them",
        ),
    ];
    for (set, reason) in refused {
        let said = helm
            .say(&["template", "weir", "charts/weir", "--set", set])
            .unwrap();
        assert!(!said.ok, "{set} is taken");
        assert!(said.err.contains(reason), "{set}: {}", said.err);
    }
}

#[test]
fn what_prometheus_and_grafana_get_is_what_the_project_tests() {
    let Some(helm) = helm("alerts and dashboard") else {
        return;
    };
    let set = ["--set", "monitoring.rules=true,monitoring.dashboard=true"];
    let rendered = by_name(helm.render(&set).unwrap());
    let read = |file: &str| {
        std::fs::read_to_string(repository().join("observability").join(file)).unwrap()
    };
    let rules: Value = serde_yaml::from_str(&read("alerts.yaml")).unwrap();
    assert_eq!(rendered["PrometheusRule/weir"]["spec"], rules);
    let shown = &rendered["ConfigMap/weir-dashboard"]["data"]["weir.json"];
    let shown: Value = serde_json::from_str(shown.as_str().unwrap()).unwrap();
    let dashboard: Value = serde_json::from_str(&read("dashboard.json")).unwrap();
    assert_eq!(shown, dashboard);
}
