//! Versions that are elsewhere, on a cluster: workers fetch them from a web server, gateways fetch what they need of them.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use serde_json::{Value, json};
use weir_e2e::cluster::{self, ControlPlane, Layer};

use crate::stage::{NAMESPACE, Stage, condition};

const TOKEN: &str = "the-right-token";

/// Serves a folder to whoever has the token; its address.
fn serve(dir: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let dir = dir.clone();
            std::thread::spawn(move || drop(answer(stream, &dir)));
        }
    });
    address
}

fn answer(mut stream: TcpStream, dir: &Path) -> std::io::Result<()> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? > 0 {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let name = head
        .split(' ')
        .nth(1)
        .and_then(|path| path.strip_prefix("/random/"));
    let has_token = head.contains(&format!("Bearer {TOKEN}"));
    let body = name.and_then(|name| fs::read(dir.join(name)).ok());
    let (status, body) = match (has_token, body) {
        (false, _) => ("403 Forbidden", Vec::new()),
        (true, None) => ("404 Not Found", Vec::new()),
        (true, Some(body)) => ("200 OK", body),
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.write_all(&body)
}

/// The Secret that says how the place is spoken to.
fn write_secret(stage: &Stage, address: &str, token: &str) {
    let object = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "models", "namespace": NAMESPACE},
        "stringData": {"tokens": format!("{address} {token}"), "WEIR_FETCH_PLAIN_HTTP": address},
    });
    stage.kubectl().apply("people", &object).unwrap();
}

/// The object of `random` version 1, with another place and its signature within.
fn elsewhere(stage: &Stage, uri: &str) -> Value {
    let path = stage.site.manifests().join("model-random-v1.yaml");
    let mut object: Value = serde_yaml::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let signature = fs::read(stage.site.model_dir("random", 1).join("model.sig")).unwrap();
    let bundle = base64::engine::general_purpose::STANDARD.encode(signature);
    object["metadata"]["namespace"] = json!(NAMESPACE);
    object["spec"]["signature"] = json!({"bundle": bundle});
    object["spec"]["manifest"]["artifact"] = json!({"uri": uri, "secret": "models"});
    object
}

fn message(object: &Value, kind: &str) -> String {
    let all = object["status"]["conditions"].as_array().unwrap();
    let found = all.iter().find(|condition| condition["type"] == kind);
    found.map_or_else(String::new, |found| found["message"].to_string())
}

fn says(stage: &Stage, kind: &str, status: &str, reason: &str) -> bool {
    condition(&stage.version(1), kind) == Some((status.to_owned(), reason.to_owned()))
}

#[test]
fn a_version_on_a_web_server_is_fetched_by_workers_and_gateways_and_its_status_says_how_far() {
    let Some(binaries) = cluster::layer(Layer::Api, "a version on a web server").unwrap() else {
        return;
    };
    let stage = Stage::new(ControlPlane::start(&binaries).unwrap()).unwrap();
    let dir = stage.site.model_dir("random", 1);
    let address = serve(dir.clone());
    let uri = format!("https://{address}/random");
    let files = fs::read_dir(&dir).unwrap().flatten();
    let bytes: u64 = files.map(|file| file.metadata().unwrap().len()).sum();
    // Slow enough that people see it coming.
    let pool = json!({"spec": {"fetch": {"bytesPerSecond": (bytes / 8).to_string()}}});
    stage
        .kubectl()
        .merge("gpupool/small", NAMESPACE, &pool, &[])
        .unwrap();
    write_secret(&stage, &address, "another-token");
    stage
        .kubectl()
        .apply("people", &elsewhere(&stage, &uri))
        .unwrap();
    stage.start_operator("a").unwrap();

    // Wrong credentials: told as what they are, without showing them, in both conditions.
    stage.wait("the place refuses", 60, || {
        says(&stage, "Fetched", "False", "ArtifactDenied")
            && says(&stage, "Ready", "False", "ArtifactDenied")
    });
    assert!(!stage.version(1).to_string().contains("another-token"));
    assert!(says(&stage, "Verified", "True", "SignatureValid"));

    // Corrected: bytes come, at most one status in ten seconds tells it, and in the end it serves.
    write_secret(&stage, &address, TOKEN);
    stage.kubelet_mounts_again().unwrap();
    stage.wait("bytes come", 60, || {
        let version = stage.version(1);
        says(&stage, "Fetched", "False", "Fetching") && message(&version, "Fetched").contains('%')
    });
    stage.wait_ready(1, 60);
    assert!(says(&stage, "Fetched", "True", "InCache"));
    let client = stage.clients().remove(0);
    stage.wait("its gateway serves it", 30, || {
        let asked = json!({"model": "random", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3});
        client.post("/v1/chat/completions", &asked).is_ok_and(|reply| reply.status == 200)
    });

    // What is in the node's cache is whole, and weights are no business of a gateway.
    let cached = |folder: &str| -> Vec<String> {
        let models = stage.site.path().join(folder).join("models");
        let versions = fs::read_dir(models).unwrap().flatten();
        let files = versions.flat_map(|version| fs::read_dir(version.path()).unwrap().flatten());
        files
            .map(|file| file.file_name().into_string().unwrap())
            .collect()
    };
    let has = |files: &[String], name: &str| files.iter().any(|file| file == name);
    let (worker, gateway) = (cached("kubelet/node-cache"), cached("gateway-0/models"));
    assert!(
        has(&worker, "model.safetensors") && has(&worker, "tokenizer.json"),
        "{worker:?}"
    );
    assert!(has(&gateway, "tokenizer.json"), "{gateway:?}");
    assert!(!has(&gateway, "model.safetensors"), "{gateway:?}");
}
