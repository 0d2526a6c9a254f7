//! What Argo CD makes of a status, by the scripts in `argocd/`, in the interpreter that it runs them with.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use weir_e2e::cluster::{self, Binaries, Layer};
use weir_e2e::repository;

/// What a script returns for an object, or what it fails with.
fn run(binaries: &Binaries, script: &str, object: &Value) -> Result<Value, String> {
    let mut command = Command::new(binaries.path("argo-lua").unwrap());
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = piped.stderr(Stdio::piped()).spawn().unwrap();
    let asked = json!({"script": script, "obj": object}).to_string();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(asked.as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(serde_json::from_slice(&output.stdout).unwrap())
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
    let Some(binaries) = cluster::layer(Layer::Argo, "health in Argo CD").unwrap() else {
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
            let health = run(&binaries, script, object).unwrap();
            assert_eq!(health["status"], *want, "{kind} {object}");
        }
    }
}

#[test]
fn actions_of_argo_cd_are_requests_that_the_operator_reads() {
    let Some(binaries) = cluster::layer(Layer::Argo, "actions in Argo CD").unwrap() else {
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
        let script = action["action.lua"].as_str().unwrap();
        let after =
            run(&binaries, script, &object).unwrap_or_else(|error| panic!("{name}: {error}"));
        let said = after["metadata"]["annotations"]["weir.dev/request"].as_str();
        let request: Value = serde_json::from_str(said.unwrap()).unwrap();
        assert_eq!(request["action"], name.replace("-full", "Full"));
        assert_eq!(request["attempt"], "v2-1");
        assert_eq!(
            request["step"] == 2,
            name.starts_with("promote"),
            "{request}"
        );
        let script = actions["discovery.lua"].as_str().unwrap();
        let offered = run(&binaries, script, &object).unwrap();
        let is_disabled = offered[name]["disabled"] == true;
        assert_eq!(is_disabled, ["pause", "undo"].contains(&name), "{name}");
    }
}

#[test]
fn scripts_have_of_the_systems_library_what_argo_cd_gives_them() {
    let Some(binaries) = cluster::layer(Layer::Argo, "the sandbox of Argo CD").unwrap() else {
        return;
    };
    let given =
        "local os = require(\"os\") return {time = os.time() > 0, files = os.remove ~= nil}";
    let given = run(&binaries, given, &json!({})).unwrap();
    assert_eq!(given, json!({"time": true, "files": false}));
    for missing in [
        "os.time()",
        "string.format('%d', 1)",
        "io.open('/etc/passwd')",
    ] {
        let refused = run(&binaries, &format!("return {{x = {missing}}}"), &json!({}));
        assert!(refused.unwrap_err().contains("non-table"), "{missing}");
    }
    let endless = run(&binaries, "while true do end", &json!({}));
    assert!(endless.unwrap_err().contains("deadline"));
}
