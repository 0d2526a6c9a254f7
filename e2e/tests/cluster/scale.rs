//! A thousand versions on played nodes: how long it takes, what it costs, and that nothing is written once everything is as it should be.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Result;
use base64::Engine as _;
use serde_json::{Value, json};
use weir_e2e::cluster::{self, Layer, Scale};
use weir_e2e::{repository, wait_for, weir_command};
use weir_manifest::{Algorithm, Digest, SigningKey, Statement, sign_with_key};

use crate::stage::{NAMESPACE, OPERATOR, Running};

const MODELS: u32 = 50;
const VERSIONS: u32 = 20;
const POOLS: u32 = 20;
const NODES: u32 = 20;

fn pool(number: u32) -> Value {
    json!({
        "apiVersion": "weir.dev/v1alpha1", "kind": "GpuPool", "metadata": {"name": format!("pool-{number}"), "namespace": NAMESPACE},
        "spec": {
            "accelerator": {"type": "cpu"}, "replicas": {"min": 1, "max": 4},
            "engine": {"maxBatchTokens": 512, "maxRunning": 8, "kvMemory": "64Mi", "blockTokens": 16},
        },
    })
}

/// A version of an image that nothing here reads: its signature stands in the object.
fn version(key: &SigningKey, model: u32, number: u32) -> Value {
    let (name, digest) = (format!("model-{model}"), |file: &str| {
        Digest::of(format!("{file} {model} {number}").as_bytes())
    });
    let files: BTreeMap<_, _> = ["config.json", "model.safetensors", "weir-manifest.json"]
        .map(|file| (file.parse().unwrap(), digest(file)))
        .into();
    let listed: Vec<Value> = files
        .iter()
        .map(|(path, digest): (&weir_manifest::FilePath, &Digest)| {
            json!({"path": path.as_str(), "sha256": digest.to_hex(), "size": 1 << 20})
        })
        .collect();
    let statement = Statement::new(&format!("{name}-v{number}"), files.clone(), None);
    let bundle = sign_with_key(&statement, key);
    let bundle = base64::engine::general_purpose::STANDARD.encode(bundle);
    json!({
        "apiVersion": "weir.dev/v1alpha1", "kind": "ModelVersion",
        "metadata": {"name": format!("{name}-v{number}"), "namespace": NAMESPACE},
        "spec": {
            "model": name, "version": number, "stage": "Production", "pool": format!("pool-{}", model % POOLS),
            "manifest": {
                "artifact": {"uri": format!("oci://registry.test/{name}:{number}")}, "files": listed,
                "architecture": "LlamaForCausalLM", "precision": "bf16", "contextTokens": 2048, "requestSchema": 1,
            },
            "signature": {"bundle": bundle},
        },
    })
}

/// Pools, trust and versions in one file, as people apply a folder.
fn write_objects(path: &Path) -> Result<()> {
    let key = SigningKey::generate(Algorithm::P256)?;
    let policy =
        json!({"keys": [{"id": "test", "publicKey": key.public_key().to_pem(), "models": ["*"]}]});
    let trust = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "weir-trust", "namespace": NAMESPACE},
        "data": {"policy.yaml": serde_yaml::to_string(&policy)?},
    });
    let mut items: Vec<Value> = (0..POOLS).map(pool).collect();
    items.push(trust);
    for number in 1..=VERSIONS {
        items.extend((0..MODELS).map(|model| version(&key, model, number)));
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    Ok(std::fs::write(path, list.to_string())?)
}

/// A figure of a process, in kilobytes.
fn kilobytes(process: u32, figure: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(figure));
    let value = line.and_then(|line| line.trim_matches([':', ' ', '\t']).split(' ').next());
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

/// Processor time of a process, in hundredths of a second.
fn hundredths(process: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let field = |place: usize| fields.get(place).and_then(|text| text.parse::<u64>().ok());
    field(11).unwrap_or(0) + field(12).unwrap_or(0)
}

fn start_operator(scale: &Scale, log: &Path) -> Running {
    let kubeconfig = scale.plane().kubeconfig_for(OPERATOR, None).unwrap();
    let child = weir_command()
        .env("KUBECONFIG", kubeconfig)
        .args(["operator", "--namespace", NAMESPACE, "--identity", "a"])
        .args(["--admin", "127.0.0.1:0"])
        .stderr(Stdio::from(std::fs::File::create(log).unwrap()))
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    Running(child)
}

/// Versions that say that they are ready: 50 serve, the others were superseded before they did.
fn ready(scale: &Scale) -> usize {
    let path =
        "jsonpath={range .items[*]}{.status.conditions[?(@.type==\"Ready\")].status}{\"\\n\"}{end}";
    let said = scale
        .kubectl()
        .run(&["get", "mv", "-n", NAMESPACE, "-o", path]);
    let said = said.unwrap_or_default();
    said.lines().filter(|line| *line == "True").count()
}

/// Calls of the operator since a mark, by what they are.
fn calls(scale: &Scale, mark: u64) -> BTreeMap<String, u64> {
    let mut by_kind = BTreeMap::new();
    let all = scale.plane().audit().since(mark).unwrap();
    for call in all.iter().filter(|call| call.user == OPERATOR) {
        let kind = format!("{} {}", call.verb, call.resource);
        *by_kind.entry(kind).or_default() += 1;
    }
    by_kind
}

#[test]
fn a_thousand_versions_come_to_rest_and_stay_there() {
    let Some(binaries) = cluster::layer(Layer::Scale, "a thousand versions").unwrap() else {
        return;
    };
    let scale = Scale::start(&binaries, NODES).unwrap();
    scale.plane().apply_crds().unwrap();
    let roles = repository().join("deploy/rbac.yaml").display().to_string();
    let apply = ["apply", "--server-side", "-n", NAMESPACE, "-f"];
    let apply = |path: &str| scale.kubectl().run(&[&apply[..], &[path]].concat());
    apply(&roles).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (objects, log) = (folder.path().join("all.json"), folder.path().join("log"));
    write_objects(&objects).unwrap();
    apply(&objects.display().to_string()).unwrap();
    let all = (MODELS * VERSIONS) as usize;
    let mark = scale.plane().audit().mark();
    let start = Instant::now();
    let operator = start_operator(&scale, &log);
    let process = operator.0.id();
    let rested = wait_for("every version", 1200, || {
        (ready(&scale) == all).then_some(())
    });
    let tail = || {
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    };
    assert!(
        rested.is_ok(),
        "{rested:?} {} of {all}\n{}",
        ready(&scale),
        tail()
    );
    let rest = start.elapsed();
    let used = hundredths(process);
    eprintln!(
        "{all} versions, {MODELS} models, {POOLS} pools: at rest {:.0} s after the operator's start, which used {:.1} s of a processor",
        rest.as_secs_f64(),
        used as f64 / 100.0
    );
    let made = calls(&scale, mark);
    eprintln!(
        "{} calls of the operator: {made:?}",
        made.values().sum::<u64>()
    );
    quiet(&scale, process);
}

/// Nothing is written while nothing happens; what that costs.
fn quiet(scale: &Scale, process: u32) {
    let seconds = std::env::var("WEIR_QUIET_S").ok();
    let seconds: u64 = seconds.and_then(|text| text.parse().ok()).unwrap_or(20);
    scale.plane().audit().wait_until_told(OPERATOR).unwrap();
    let (mark, before, start) = (
        scale.plane().audit().mark(),
        hundredths(process),
        Instant::now(),
    );
    std::thread::sleep(Duration::from_secs(seconds));
    let used = hundredths(process) - before;
    let percent = used as f64 / start.elapsed().as_secs_f64();
    let writes = scale.plane().audit().writes_since(mark, OPERATOR).unwrap();
    eprintln!(
        "{seconds} s of quiet: {} writes but for the Lease, {percent:.2} % of a processor, {} MiB resident ({} MiB of them its own, {} MiB at most)",
        writes.len(),
        kilobytes(process, "VmRSS") / 1024,
        kilobytes(process, "RssAnon") / 1024,
        kilobytes(process, "VmHWM") / 1024
    );
    assert!(writes.is_empty(), "{writes:#?}");
}
