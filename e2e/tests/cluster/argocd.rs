//! What Argo CD makes of a status, by the scripts in `argocd/`, in the interpreter that it runs them with.

use std::process::Command;

use serde_json::{Value, json};
use weir_e2e::cluster::{self, Binaries, Layer};
use weir_e2e::repository;

fn lua(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(key, value)| format!("[{key:?}]={}", lua(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
        }
        Value::Array(items) => format!(
            "{{{}}}",
            items.iter().map(lua).collect::<Vec<_>>().join(",")
        ),
        other => other.to_string(),
    }
}

fn say(binaries: &Binaries, script: &str, object: &Value, print: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("script.lua");
    let text = format!(
        "obj = {}\nlocal result = (function()\n{script}\nend)()\n{print}\n",
        lua(object)
    );
    std::fs::write(&file, text).unwrap();
    let output = Command::new(binaries.path("glua").unwrap())
        .arg(file)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn settings() -> Value {
    let text = std::fs::read_to_string(repository().join("argocd/argocd-cm.yaml")).unwrap();
    serde_yaml::from_str::<Value>(&text).unwrap()["data"].take()
}

fn version(generation: i64, attempt: Option<&str>, conditions: &[[&str; 3]]) -> Value {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|[kind, status, reason]| json!({"type": kind, "status": status, "reason": reason, "message": "m"}))
        .collect();
    let mut object = json!({"metadata": {"generation": 4}, "status": {"observedGeneration": generation, "conditions": conditions}});
    if let Some(attempt) = attempt {
        object["status"]["attempt"] = json!(attempt);
        object["status"]["step"] = json!(2);
    }
    object
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table, one row a case")]
fn argo_cd_reads_health_as_the_operator_means_it() {
    let Some(binaries) = cluster::layer(Layer::Chart, "health in Argo CD").unwrap() else {
        return;
    };
    let settings = settings();
    let cases = [
        (
            version(3, None, &[["Ready", "True", "Serving"]]),
            "Progressing",
        ),
        (version(4, None, &[["Ready", "True", "Serving"]]), "Healthy"),
        (
            version(
                4,
                Some("v2-1"),
                &[
                    ["Ready", "False", "Baking"],
                    ["Progressing", "True", "Baking"],
                    ["Reconciling", "True", "Baking"],
                ],
            ),
            "Progressing",
        ),
        (
            version(
                4,
                Some("v2-1"),
                &[
                    ["Ready", "False", "Paused"],
                    ["Progressing", "True", "Paused"],
                    ["Reconciling", "True", "Paused"],
                ],
            ),
            "Suspended",
        ),
        (
            version(
                4,
                Some("v2-1"),
                &[
                    ["Ready", "False", "Inconclusive"],
                    ["Progressing", "False", "Inconclusive"],
                    ["Stalled", "True", "Inconclusive"],
                ],
            ),
            "Suspended",
        ),
        (
            version(
                4,
                None,
                &[
                    ["Ready", "False", "Rejected"],
                    ["RolledBack", "True", "GuardrailBreached"],
                    ["Stalled", "True", "Rejected"],
                ],
            ),
            "Degraded",
        ),
        (
            version(
                4,
                None,
                &[
                    ["Verified", "False", "FileTampered"],
                    ["Ready", "False", "FileTampered"],
                    ["Reconciling", "True", "FileTampered"],
                ],
            ),
            "Degraded",
        ),
    ];
    for kind in ["ModelVersion", "GpuPool", "TenantQuota"] {
        let script = settings[format!("resource.customizations.health.weir.dev_{kind}")]
            .as_str()
            .unwrap();
        let common = if kind == "ModelVersion" {
            &cases[..]
        } else {
            &cases[..2]
        };
        for (object, want) in common {
            assert_eq!(
                say(&binaries, script, object, "print(result.status)"),
                *want,
                "{kind} {object}"
            );
        }
    }
}

#[test]
fn actions_of_argo_cd_are_requests_that_the_operator_reads() {
    let Some(binaries) = cluster::layer(Layer::Chart, "actions in Argo CD").unwrap() else {
        return;
    };
    let text = settings()["resource.customizations.actions.weir.dev_ModelVersion"].clone();
    let actions: Value = serde_yaml::from_str(text.as_str().unwrap()).unwrap();
    let object = version(4, Some("v2-1"), &[["Progressing", "True", "Paused"]]);
    let names: Vec<&str> = actions["definitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "promote",
            "promote-full",
            "abort",
            "pause",
            "resume",
            "retry",
            "undo"
        ]
    );
    for action in actions["definitions"].as_array().unwrap() {
        let name = action["name"].as_str().unwrap();
        let said = say(
            &binaries,
            action["action.lua"].as_str().unwrap(),
            &object,
            "print(result.metadata.annotations['weir.dev/request'])",
        );
        let request: Value = serde_json::from_str(&said).unwrap();
        assert_eq!(request["action"], name.replace("-full", "Full"));
        assert_eq!(request["attempt"], "v2-1");
        assert_eq!(request["step"] == 2, name.starts_with("promote"), "{said}");
        let discover = format!("print(result['{name}'].disabled)");
        let is_disabled = say(
            &binaries,
            actions["discovery.lua"].as_str().unwrap(),
            &object,
            &discover,
        );
        assert_eq!(
            is_disabled == "true",
            ["pause", "undo"].contains(&name),
            "{name}"
        );
    }
}
