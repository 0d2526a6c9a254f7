//! The worker as a process: what it loads, what it refuses, and what it tells its parent.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use weir_manifest::{
    Algorithm, SIGNATURE_FILE, SignRequest, SigningKey, TrustPolicySpec, TrustedKeySpec,
    VersionIdentity, sign_directory,
};
use weir_worker::{LoadPlan, PlanPlacement, PlanSignature};

use crate::gateway::{Gateway, hello, sampling, submit};

/// A signed model of two layers with random weights, and a plan to load it.
pub(crate) struct Artifact {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) plan: LoadPlan,
    pub(crate) key: SigningKey,
}

pub(crate) fn artifact() -> Artifact {
    artifact_of("tiny", 3)
}

pub(crate) fn artifact_of(name: &str, version: u32) -> Artifact {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    std::fs::create_dir(&model).unwrap();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/model/tests/golden/qwen3");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(golden.join(name), model.join(name)).unwrap();
    }
    std::fs::write(model.join("tokenizer.json"), tokenizer().to_string()).unwrap();
    let key = SigningKey::generate(Algorithm::Ed25519).unwrap();
    let signed = sign_directory(&SignRequest {
        dir: &model,
        identity: &VersionIdentity {
            model: name.to_owned(),
            version,
            context_tokens: Some(64),
            request_schema: 1,
            adapter_of: None,
        },
        key: &key,
        certificates: None,
        signature_file: &SIGNATURE_FILE.parse().unwrap(),
        progress: None,
    })
    .unwrap();
    let trusted = TrustedKeySpec {
        id: "dev".to_owned(),
        public_key: key.public_key().to_pem(),
        models: vec![format!("{name}*")],
        not_before: None,
        not_after: None,
        revoked: false,
    };
    let plan = LoadPlan {
        dir: model,
        fetch: None,
        digest: signed.manifest_digest,
        claim: signed.claim,
        signature: PlanSignature::File(SIGNATURE_FILE.to_owned()),
        trust: TrustPolicySpec {
            keys: vec![trusted],
            roots: vec![],
        },
        placement: PlanPlacement::SealedCopy,
    };
    Artifact { dir, plan, key }
}

/// Forty tokens: letters and some punctuation.
fn tokenizer() -> Value {
    let spelled = ('a'..='z').chain("0123456789.,!?".chars());
    let vocab: serde_json::Map<_, _> = spelled
        .enumerate()
        .map(|(id, letter)| (letter.to_string(), id.into()))
        .collect();
    json!({
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    })
}

/// A worker process and what it says.
pub(crate) struct Process {
    pub(crate) child: Child,
    lines: BufReader<ChildStdout>,
}

impl Artifact {
    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("worker.sock")
    }

    fn start(&self, plan: &Value) -> Process {
        self.start_with(&["--device", "auto"], plan)
    }

    pub(crate) fn start_with(&self, more: &[&str], plan: &Value) -> Process {
        let file = self.dir.path().join("plan.json");
        std::fs::write(&file, plan.to_string()).unwrap();
        self.start_holding(&["--load-plan", file.to_str().unwrap()], more)
    }

    /// A worker that is told what it holds by these arguments.
    pub(crate) fn start_holding(&self, holds: &[&str], more: &[&str]) -> Process {
        let kv = more.iter().find(|option| **option == "--kv-bytes");
        let mut child = Command::new(env!("CARGO_BIN_EXE_weir-worker"))
            .args(holds)
            .arg("--listen")
            .arg(format!("unix:{}", self.socket().display()))
            .args(kv.map_or(&["--kv-bytes", "1048576"][..], |_| &[]))
            .args([
                "--max-batch-tokens",
                "64",
                "--max-running",
                "4",
                "--threads",
                "1",
            ])
            .args(["--drain-s", "5"])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Process { child, lines }
    }

    pub(crate) fn plan(&self) -> Value {
        serde_json::to_value(&self.plan).unwrap()
    }
}

impl Process {
    /// The first line of this kind; the pipe ends with the process, so this ends as well.
    pub(crate) fn line(&mut self, event: &str) -> Value {
        self.line_where(event, |_| true)
    }

    /// The first line of this kind that fits.
    pub(crate) fn line_where(&mut self, event: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let mut text = String::new();
        while self.lines.read_line(&mut text).unwrap() > 0 {
            let line: Value = serde_json::from_str(&text).unwrap();
            if line["event"] == event && fits(&line) {
                return line;
            }
            text.clear();
        }
        panic!("the worker ended without saying {event:?}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_model_is_loaded_served_and_drained() {
    let artifact = artifact();
    let mut worker = artifact.start(&artifact.plan());
    let ready = worker.line("ready");
    assert_eq!(ready["digest"], artifact.plan.digest.to_string());

    let mut gateway = Gateway::connect(&artifact.socket(), hello(1))
        .await
        .unwrap();
    let loaded = &gateway.welcome.models[0];
    assert_eq!(
        (
            loaded.model.as_str(),
            loaded.version,
            loaded.context_tokens,
            loaded.vocab
        ),
        ("tiny", 3, 64, 40)
    );
    let mut texts = Vec::new();
    for run in [1, 2] {
        let mut frame = submit(run, &[3, 4, 5, 6], 20);
        frame.version_digest = artifact.plan.digest.to_string();
        frame.sampling = Some(weir_protocol::worker::Sampling {
            temperature: 0.0,
            ignore_eos: true,
            ..sampling()
        });
        gateway.send(frame).await;
        let rows = gateway.rows_to_the_end().await;
        assert_eq!(rows.len(), 20);
        texts.push(rows.into_iter().map(|row| row.text).collect::<String>());
        gateway.progress(run, 20, 1000).await;
    }
    assert_eq!(texts[0], texts[1], "greedy output repeats");
    assert_eq!(texts[0].len(), 20);

    let pid = Pid::from_raw(i32::try_from(worker.child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(worker.child.wait().unwrap().code(), Some(0));
    assert!(!artifact.socket().exists(), "the socket's file is removed");
}

#[test]
fn what_cannot_be_loaded_is_refused_with_its_reason_and_status_78() {
    type Change = fn(&Artifact, &mut Value);
    let cases: [(&str, Change, &str); 6] = [
        (
            "tampered weights",
            |artifact, _| flip_last_byte(&artifact.plan.dir.join("model.safetensors")),
            "FileTampered",
        ),
        (
            "extra file",
            |artifact, _| std::fs::write(artifact.plan.dir.join("more.bin"), "x").unwrap(),
            "FileUnlisted",
        ),
        (
            "revoked key",
            |_, plan| plan["trust"]["keys"][0]["revoked"] = true.into(),
            "KeyRevoked",
        ),
        (
            "key for other models",
            |_, plan| plan["trust"]["keys"][0]["models"] = json!(["big"]),
            "KeyNotPermitted",
        ),
        (
            "other digest",
            |_, plan| plan["digest"] = format!("sha256:{}", "0".repeat(64)).into(),
            "ManifestMismatch",
        ),
        (
            "unknown field",
            |_, plan| plan["sudo"] = true.into(),
            "PlanInvalid",
        ),
    ];
    for (name, change, reason) in cases {
        let artifact = artifact();
        let mut plan = artifact.plan();
        change(&artifact, &mut plan);
        let mut worker = artifact.start(&plan);
        let failed = worker.line("failed");
        assert_eq!(failed["reason"], reason, "{name}: {failed}");
        assert!(!failed["message"].as_str().unwrap().is_empty(), "{name}");
        assert_eq!(worker.child.wait().unwrap().code(), Some(78), "{name}");
    }
}

#[test]
fn a_gpu_that_is_not_there_is_refused_at_once_with_what_is_missing_and_what_to_do() {
    let artifact = artifact();
    // Nothing is read before: the plan names a folder that is not there.
    let mut plan = artifact.plan();
    plan["dir"] = "/nowhere".into();
    let mut worker = artifact.start_with(&["--device", "cuda"], &plan);
    let failed = worker.line("failed");
    let message = failed["message"].as_str().unwrap();
    if failed["reason"] != "DeviceUnavailable" {
        // This machine has a GPU, so it is the folder that is not there.
        assert!(message.contains("/nowhere"), "{message}");
        return;
    }
    assert!(
        message.contains("--device cuda: no GPU can be used: "),
        "{message}"
    );
    assert!(
        message.contains("--device cpu runs the model without one"),
        "{message}"
    );
    let driver = [
        "libcuda.so is not there; it comes with the driver",
        "the driver ",
    ];
    assert!(
        driver.iter().any(|cause| message.contains(cause)),
        "{message}"
    );
    assert_eq!(worker.child.wait().unwrap().code(), Some(78));
}

pub(crate) fn flip_last_byte(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(path, bytes).unwrap();
}
