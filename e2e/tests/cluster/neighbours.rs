//! Objects of other projects' kinds that the chart makes: whether those kinds' own definitions know every field of them.

use serde_json::Value;
use weir_e2e::cluster::{ControlPlane, Kubectl, module_files};

use crate::chart::{TOGGLES, arguments, helm};
use crate::plane::{namespace, own};

const SPACE: &str = "weir";

/// The pinned modules that hold definitions, and where in them.
const DEFINITIONS: &[(&str, &str, &[&str])] = &[
    (
        "sigs.k8s.io/gateway-api",
        "config/crd/standard/gateway.networking.k8s.io_",
        &["httproutes"],
    ),
    (
        "sigs.k8s.io/gateway-api-inference-extension",
        "config/crd/bases/inference.networking.k8s.io_",
        &["inferencepools"],
    ),
    (
        "github.com/prometheus-operator/prometheus-operator",
        "example/prometheus-operator-crd/monitoring.coreos.com_",
        &["podmonitors", "servicemonitors", "prometheusrules"],
    ),
];

fn define(kubectl: &Kubectl) {
    for (name, start, kinds) in DEFINITIONS {
        let folder = module_files("definitions", name).unwrap();
        for kind in *kinds {
            let file = folder.join(format!("{start}{kind}.yaml"));
            let file = file.display().to_string();
            kubectl
                .run(&["apply", "--server-side", "-f", &file])
                .unwrap();
            let established = ["--for=condition=Established", "--timeout=60s"];
            kubectl
                .run(&[&["wait"], &established[..], &["-f", &file]].concat())
                .unwrap();
        }
    }
}

fn is_a_neighbours(object: &Value) -> bool {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let groups = [
        "gateway.networking.k8s.io/",
        "inference.networking.k8s.io/",
        "monitoring.coreos.com/",
    ];
    groups.iter().any(|group| version.starts_with(group))
}

/// Applies an object as people do who want to be told of a field that does not exist.
fn apply(plane: &ControlPlane, object: &Value) -> Result<(), String> {
    let strict = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--validate=strict",
        "-n",
        SPACE,
        "-f",
        "-",
    ];
    let said = plane.kubectl().say(&strict, Some(&object.to_string()));
    let said = said.unwrap();
    said.ok.then_some(()).ok_or(said.err)
}

#[test]
fn the_kinds_of_other_projects_take_what_the_chart_makes() {
    let test = "definitions of other projects";
    let (Some(helm), Some(plane)) = (helm(test), own(test)) else {
        return;
    };
    define(plane.kubectl());
    namespace(plane.kubectl(), SPACE);
    let everything = vec!["--values", "charts/weir/ci/everything.yaml"];
    let mut kinds = std::collections::BTreeSet::new();
    let mut last = None;
    for more in TOGGLES
        .iter()
        .map(|(_, settings)| arguments(settings))
        .chain([everything])
    {
        for object in helm.render(&more).unwrap() {
            if is_a_neighbours(&object) {
                apply(&plane, &object).unwrap_or_else(|error| {
                    unreachable!("with {more:?} the API server refuses {object}: {error}")
                });
                kinds.insert(object["kind"].as_str().unwrap_or_default().to_owned());
                last = Some(object);
            }
        }
    }
    let all = [
        "HTTPRoute",
        "InferencePool",
        "PodMonitor",
        "PrometheusRule",
        "ServiceMonitor",
    ];
    assert_eq!(
        kinds.iter().collect::<Vec<_>>(),
        all.iter().collect::<Vec<_>>()
    );
    // It would have told of a field that does not exist.
    let mut wrong = last.unwrap();
    wrong["spec"]["selectors"] = "x".into();
    let error = apply(&plane, &wrong).unwrap_err();
    assert!(error.contains("selectors"), "{error}");
}
