//! Rollouts as text.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

/// Version objects, those of `model` if it is named.
pub(super) fn versions<'a>(objects: &'a Value, model: Option<&str>) -> Vec<&'a Value> {
    let all = objects.as_array().into_iter().flatten();
    let versions = all.filter(|object| object["kind"] == "ModelVersion");
    versions
        .filter(|object| model.is_none_or(|model| object["spec"]["model"] == model))
        .collect()
}

/// A tree: models, their versions from the newest on, what each guardrail says.
pub(super) fn status(versions: &[&Value]) -> String {
    let mut by_model: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for version in versions {
        let model = version["spec"]["model"].as_str().unwrap_or_default();
        by_model.entry(model).or_default().push(version);
    }
    let mut text = String::new();
    for (model, mut versions) in by_model {
        versions.sort_by_key(|version| std::cmp::Reverse(version["spec"]["version"].as_u64()));
        let _ = writeln!(text, "{model}");
        for (index, version) in versions.iter().enumerate() {
            let is_last = index + 1 == versions.len();
            one(&mut text, version, is_last);
        }
    }
    text
}

fn one(text: &mut String, version: &Value, is_last: bool) {
    let (branch, trunk) = if is_last {
        ("└─", "   ")
    } else {
        ("├─", "│  ")
    };
    let status = &version["status"];
    let weight = status["weightPercent"].as_i64().unwrap_or(0);
    let mut line = format!(
        "{branch} v{}  {:<10}  {weight:>3} %  {}/{} workers",
        version["spec"]["version"],
        status["stage"].as_str().unwrap_or("Unknown"),
        status["readyReplicas"].as_i64().unwrap_or(0),
        status["replicas"].as_i64().unwrap_or(0),
    );
    if let (Some(step), Some(steps)) = (status["step"].as_i64(), status["steps"].as_i64()) {
        let _ = write!(line, "  step {step} of {steps}");
    }
    if let Some(attempt) = status["attempt"].as_str() {
        let _ = write!(line, "  attempt {attempt}");
    }
    let _ = writeln!(text, "{line}");
    // That a version is verified goes without saying; why one is not is what its rollout waits for.
    let refused = condition(status, "Verified").is_some_and(|found| found["status"] == "False");
    let verified = refused.then_some("Verified");
    let others = ["Progressing", "RolledBack", "RollbackReady"];
    for kind in verified.into_iter().chain(others) {
        if let Some(condition) = condition(status, kind) {
            let _ = writeln!(
                text,
                "{trunk}{kind}={} {}: {}",
                condition["status"].as_str().unwrap_or_default(),
                condition["reason"].as_str().unwrap_or_default(),
                condition["message"].as_str().unwrap_or_default(),
            );
        }
    }
    for guardrail in status["evidence"].as_array().into_iter().flatten() {
        let evidence = guardrail["logEvidenceMilli"].as_i64().unwrap_or(0);
        let _ = writeln!(
            text,
            "{trunk}{:<16} {:<8} bad {:>9} here, {:>9} stable, ln E {}{}.{:03}",
            guardrail["guardrail"].as_str().unwrap_or_default(),
            guardrail["verdict"].as_str().unwrap_or_default(),
            guardrail["canary"].as_str().unwrap_or_default(),
            guardrail["stable"].as_str().unwrap_or_default(),
            if evidence < 0 { "-" } else { "" },
            evidence.abs() / 1000,
            evidence.abs() % 1000,
        );
    }
}

fn condition<'a>(status: &'a Value, kind: &str) -> Option<&'a Value> {
    let all = status["conditions"].as_array()?;
    all.iter().find(|condition| condition["type"] == kind)
}

/// How attempts ended, the newest first, and what may not be tried again.
pub(super) fn history(model: &str, record: &Value) -> String {
    let number = |value: &Value| {
        let version = value["version"].as_u64();
        version.map_or_else(|| "none".to_owned(), |version| format!("v{version}"))
    };
    let mut text = format!(
        "{model}: serves {}, rolls back to {}, record {}.{}{}\n",
        number(&record["stable"]),
        number(&record["rollbackTo"]),
        record["stamp"]["epoch"],
        record["stamp"]["revision"],
        if record["paused"] == true {
            ", paused"
        } else {
            ""
        },
    );
    for ended in record["history"].as_array().into_iter().flatten().rev() {
        let _ = writeln!(
            text,
            "  {}  {:<8} {}",
            time(&ended["atMs"]),
            ended["attempt"].as_str().unwrap_or_default(),
            ended["outcome"].as_str().unwrap_or_default(),
        );
    }
    for rejected in record["rejected"].as_array().into_iter().flatten().rev() {
        let _ = writeln!(
            text,
            "  rejected {}: {} ({})",
            number(&rejected["id"]),
            rejected["reason"].as_str().unwrap_or_default(),
            rejected["attempt"].as_str().unwrap_or_default(),
        );
    }
    text
}

fn time(at_ms: &Value) -> String {
    let at = at_ms
        .as_i64()
        .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    at.map_or_else(String::new, |at| {
        at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_status_is_a_tree_from_the_newest_version_on() {
        let version = |number: u32, status: Value| json!({"kind": "ModelVersion", "spec": {"model": "m", "version": number}, "status": status});
        let objects = json!([
            version(3, json!({"stage": "Registered", "weightPercent": 0, "conditions": [
                {"type": "Progressing", "status": "True", "reason": "Verifying", "message": "files are being checked"},
                {"type": "Verified", "status": "False", "reason": "ArtifactUnavailable", "message": "no such directory"},
            ]})),
            version(1, json!({"stage": "Production", "weightPercent": 90, "replicas": 1, "readyReplicas": 1})),
            version(2, json!({
                "stage": "Canary", "weightPercent": 10, "replicas": 1, "readyReplicas": 1,
                "step": 1, "steps": 2, "attempt": "v2-1",
                "conditions": [{"type": "Progressing", "status": "True", "reason": "Baking", "message": "at 10 percent"}],
                "evidence": [{"guardrail": "errors", "verdict": "Unknown", "canary": "0/12", "stable": "1/98", "logEvidenceMilli": -1042}],
            })),
            {"kind": "GpuPool", "spec": {}},
        ]);
        let shown = status(&versions(&objects, Some("m")));
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(
            lines,
            [
                "m",
                "├─ v3  Registered    0 %  0/0 workers",
                "│  Verified=False ArtifactUnavailable: no such directory",
                "│  Progressing=True Verifying: files are being checked",
                "├─ v2  Canary       10 %  1/1 workers  step 1 of 2  attempt v2-1",
                "│  Progressing=True Baking: at 10 percent",
                "│  errors           Unknown  bad      0/12 here,      1/98 stable, ln E -1.042",
                "└─ v1  Production   90 %  1/1 workers",
            ]
        );
        assert!(versions(&objects, Some("other")).is_empty());
    }

    #[test]
    fn a_history_names_what_serves_and_how_attempts_ended() {
        let record = json!({
            "stamp": {"epoch": 1, "revision": 9}, "stable": {"version": 2}, "paused": false,
            "history": [{"attempt": "v2-1", "outcome": "Promoted", "atMs": 0}, {"attempt": "v3-1", "outcome": "GuardrailBreached", "atMs": 1000}],
            "rejected": [{"id": {"version": 3}, "reason": "GuardrailBreached", "attempt": "v3-1"}],
        });
        assert_eq!(
            history("m", &record),
            "m: serves v2, rolls back to none, record 1.9\n  1970-01-01T00:00:01Z  v3-1     GuardrailBreached\n  \
             1970-01-01T00:00:00Z  v2-1     Promoted\n  rejected v3: GuardrailBreached (v3-1)\n"
        );
    }
}
