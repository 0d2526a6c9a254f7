//! Bad manifests and bad requests: one clear error each, and what serves goes on serving.

use serde_json::{Value, json};
use weir_e2e::{RandomModel, Site, Tenant, Weir, wait_for};

fn site() -> Site {
    Site::random(RandomModel::default(), &[Tenant::unlimited("acme")]).unwrap()
}

fn assert_serves(weir: &Weir) {
    let reply = weir.client("acme-dev-key").post(
        "/inference",
        &json!({"model": "random", "input": "x", "maxOutputTokens": 1}),
    );
    assert_eq!(reply.unwrap().status, 202);
}

#[test]
fn a_bad_manifest_is_named_and_changes_nothing_that_serves() {
    let site = site();
    let mut weir = site.up().unwrap();
    let model = site.manifests().join("model-random-v1.yaml");
    let good = std::fs::read_to_string(&model).unwrap();
    let cases: [(&str, String, &str); 7] = [
        (
            "broken YAML",
            good.replace("spec:", "spec: ["),
            "is not valid YAML",
        ),
        (
            "unknown field",
            good.replace("qualityTier:", "qualityTeir:"),
            "qualityTeir",
        ),
        (
            "wrong type",
            good.replace("version: 1", "version: one"),
            "version",
        ),
        (
            "unknown pool",
            good.replace("pool: small", "pool: smal"),
            "small",
        ),
        (
            "unknown stage",
            good.replace("stage: Production", "stage: Produktion"),
            "stage",
        ),
        (
            "missing signature file",
            good.replace("model.sig", "nothing.sig"),
            "nothing.sig",
        ),
        (
            "immutable field",
            good.replace("contextTokens: 2048", "contextTokens: 4096"),
            "contextTokens",
        ),
    ];
    for (name, text, want) in cases {
        assert_ne!(text, good, "{name}: the case changes the file");
        std::fs::write(&model, text).unwrap();
        let line = weir
            .wait_line(name, 20, |line| line["event"] == "problem")
            .unwrap();
        assert!(
            line.to_string().contains(want),
            "{name}: no {want:?} in {line}"
        );
        assert!(
            line.to_string().contains("model-random-v1.yaml"),
            "{name}: names no file: {line}"
        );
        assert_serves(&weir);
        std::fs::write(&model, &good).unwrap();
        weir.wait_line("the problem to be over", 20, |line| {
            line["event"] == "problemsSolved"
        })
        .unwrap();
    }
    assert_serves(&weir);
}

#[test]
fn a_tampered_version_never_serves_and_says_which_file() {
    let site = site();
    let weir = site.up().unwrap();
    let tamper = |dir: &std::path::Path| {
        let weights = dir.join("model.safetensors");
        let mut bytes = std::fs::read(&weights)?;
        *bytes.last_mut().unwrap() ^= 1;
        Ok(std::fs::write(&weights, bytes)?)
    };
    let shape = RandomModel {
        seed: 2,
        ..RandomModel::default()
    };
    site.add_changed_model("random", 2, shape, "Production", tamper)
        .unwrap();
    let condition = wait_for("the verdict on version 2", 30, || {
        let objects: Value = weir_e2e::Client::new(&weir.admin, "")
            .get("/objects")
            .ok()?
            .body;
        let version = objects
            .as_array()?
            .iter()
            .find(|o| o["metadata"]["name"] == "random-v2")?
            .clone();
        let conditions = version["status"]["conditions"].as_array()?.clone();
        conditions
            .into_iter()
            .find(|c| c["type"] == "Verified" && c["status"] == "False")
    })
    .unwrap();
    assert_eq!(condition["reason"], "FileTampered", "{condition}");
    assert!(
        condition["message"]
            .as_str()
            .unwrap()
            .contains("model.safetensors"),
        "{condition}"
    );
    let reply = weir.client("acme-dev-key").post(
        "/inference",
        &json!({"model": "random", "input": "x", "maxOutputTokens": 1}),
    );
    assert_eq!(reply.unwrap().body["modelVersion"], 1);
}

#[test]
fn broken_requests_get_one_clear_error_each() {
    let tenant = Tenant {
        name: "acme",
        spec: json!({"limits": {"maxPromptTokens": 100, "maxOutputTokens": 64}}),
    };
    let site = Site::random(RandomModel::default(), &[tenant]).unwrap();
    let weir = site.up().unwrap();
    let client = weir.client("acme-dev-key");
    let base = json!({"model": "random", "input": "hello", "maxOutputTokens": 4});
    let with = |field: &str, value: Value| {
        let mut body = base.clone();
        body[field] = value;
        body
    };
    let cases: [(&str, Value, u16, &str, &str); 14] = [
        (
            "no model",
            json!({"input": "x"}),
            400,
            "invalid_request",
            "model",
        ),
        (
            "unknown model",
            with("model", json!("nobody")),
            403,
            "model_not_permitted",
            "model",
        ),
        (
            "no input",
            json!({"model": "random"}),
            400,
            "invalid_request",
            "input",
        ),
        (
            "input of a wrong type",
            with("input", json!(5)),
            400,
            "invalid_request",
            "input",
        ),
        (
            "unknown field",
            with("maxOutputToken", json!(4)),
            400,
            "invalid_request",
            "maxOutputToken",
        ),
        (
            "zero output",
            with("maxOutputTokens", json!(0)),
            400,
            "invalid_request",
            "maxOutputTokens",
        ),
        (
            "output over the cap",
            with("maxOutputTokens", json!(65)),
            413,
            "output_too_long",
            "maxOutputTokens",
        ),
        (
            "prompt over the cap",
            with("input", json!({"tokens": vec![20; 101]})),
            413,
            "prompt_too_long",
            "input",
        ),
        (
            "token outside the vocabulary",
            with("input", json!({"tokens": [999_999]})),
            400,
            "invalid_request",
            "input",
        ),
        (
            "temperature out of range",
            with("sampling", json!({"temperature": -1})),
            400,
            "invalid_request",
            "sampling.temperature",
        ),
        (
            "top-p out of range",
            with("sampling", json!({"topP": 0})),
            400,
            "invalid_request",
            "sampling.topP",
        ),
        (
            "a deadline in the past",
            with("deadline", json!("2020-01-01T00:00:00.000Z")),
            429,
            "deadline_unmeetable",
            "deadline",
        ),
        (
            "a priority above the tenant's",
            with("priority", json!("urgent")),
            400,
            "invalid_request",
            "priority",
        ),
        (
            "an unknown run to replace",
            with("replaces", json!("run_00000000000000000000000000")),
            400,
            "invalid_request",
            "replaces",
        ),
    ];
    for (name, body, status, code, param) in cases {
        let reply = client.post("/inference", &body).unwrap();
        assert_eq!(
            (reply.status, reply.code()),
            (status, code),
            "{name}: {reply:?}"
        );
        assert_eq!(reply.body["error"]["param"], param, "{name}: {reply:?}");
        assert!(!reply.body["error"]["message"].as_str().unwrap().is_empty());
    }
    let deep = json!({"model": "random", "input": "x", "metadata": {"a": "b"}})
        .to_string()
        .replace("\"b\"", &"[".repeat(100_000));
    let reply = raw_post(&weir, &deep);
    assert!(reply.starts_with("HTTP/1.1 400"), "{reply}");
    for (method, path, status) in [
        ("GET", "/nowhere", 404),
        ("PUT", "/inference", 405),
        ("GET", "/runs/not-a-run", 404),
    ] {
        let reply = client.call(method, path, None, &[]).unwrap();
        assert_eq!(reply.status, status, "{method} {path}: {reply:?}");
        assert!(
            reply.body["error"]["message"].is_string(),
            "{method} {path}: {reply:?}"
        );
    }
    assert_serves(&weir);
}

fn raw_post(weir: &Weir, body: &str) -> String {
    use std::io::{Read, Write};
    let mut stream =
        std::net::TcpStream::connect(weir.listen.trim_start_matches("http://")).unwrap();
    let head = format!(
        "POST /inference HTTP/1.1\r\nhost: x\r\nauthorization: Bearer acme-dev-key\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
