//! Adapters that come and go in a worker that serves: a process with a signed model, and signed adapters of it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use safetensors::SafeTensors;
use serde_json::{Value, json};
use weir_manifest::{BaseVersion, SIGNATURE_FILE, SignRequest, VersionIdentity, sign_directory};
use weir_protocol::worker::rejected::Code;
use weir_protocol::worker::worker_frame::Frame;
use weir_protocol::worker::{Row, Sampling, Submit, finish::Reason};
use weir_worker::{Announcer, LoadPlan, PlanSignature};

use crate::gateway::{Gateway, Got, hello, sampling, submit};
use crate::harness::{DIGEST, Options, TestWorker};
use crate::process::{Artifact, Process, artifact, flip_last_byte};

fn golden(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/model/tests/golden");
    folder.join("adapters/rslora").join(name)
}

fn words(tensor: &str) -> Vec<u32> {
    let bytes = std::fs::read(golden("golden.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let (words, _) = tensors.tensor(tensor).unwrap().data().as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// A signed adapter of the artifact's model: `peft`'s own, with another strength where one is given.
struct Signed {
    dir: PathBuf,
    plan: LoadPlan,
}

impl Signed {
    fn of(artifact: &Artifact, name: &str, alpha: Option<f64>) -> Self {
        let dir = artifact.dir.path().join(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::copy(
            golden("adapter_model.safetensors"),
            dir.join("adapter_model.safetensors"),
        )
        .unwrap();
        let text = std::fs::read(golden("adapter_config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&text).unwrap();
        if let Some(alpha) = alpha {
            config["lora_alpha"] = alpha.into();
        }
        std::fs::write(dir.join("adapter_config.json"), config.to_string()).unwrap();
        Self::sign(artifact, dir, name)
    }

    fn sign(artifact: &Artifact, dir: PathBuf, name: &str) -> Self {
        let signed = sign_directory(&SignRequest {
            dir: &dir,
            identity: &VersionIdentity {
                model: format!("tiny-{name}"),
                version: 1,
                context_tokens: None,
                request_schema: 1,
                adapter_of: Some(BaseVersion::read(&artifact.plan.dir).unwrap()),
            },
            key: &artifact.key,
            certificates: None,
            signature_file: &SIGNATURE_FILE.parse().unwrap(),
            progress: None,
        })
        .unwrap();
        let plan = LoadPlan {
            dir: dir.clone(),
            digest: signed.manifest_digest,
            claim: signed.claim,
            signature: PlanSignature::File(SIGNATURE_FILE.to_owned()),
            ..artifact.plan.clone()
        };
        Self { dir, plan }
    }

    fn digest(&self) -> String {
        self.plan.digest.to_string()
    }

    fn plan(&self) -> Value {
        serde_json::to_value(&self.plan).unwrap()
    }
}

/// A worker with a folder of adapters.
struct Served {
    process: Process,
    folder: PathBuf,
    gateway: Gateway,
}

impl Served {
    async fn start(artifact: &Artifact) -> Self {
        let folder = artifact.dir.path().join("adapters");
        let named = folder.to_str().unwrap();
        // In f32, so that outputs are the reference's.
        let options = ["--adapters", named, "--kv-dtype", "f32"];
        let mut process = artifact.start_with(&options, &artifact.plan());
        process.line("ready");
        let gateway = Gateway::connect(&artifact.socket(), hello(1))
            .await
            .unwrap();
        Self {
            process,
            folder,
            gateway,
        }
    }

    /// Puts a plan into the folder, whole at once; what the worker says of it.
    fn put(&mut self, name: &str, plan: &Value) -> Value {
        std::fs::create_dir_all(&self.folder).unwrap();
        let part = self.folder.join(format!("{name}.part"));
        std::fs::write(&part, plan.to_string()).unwrap();
        std::fs::rename(&part, self.folder.join(format!("{name}.json"))).unwrap();
        let said = self.process.line("adapter");
        assert_eq!(said["plan"], format!("{name}.json"), "{said}");
        said
    }

    fn take_away(&mut self, name: &str) {
        std::fs::remove_file(self.folder.join(format!("{name}.json"))).unwrap();
        assert_eq!(self.process.line("adapter")["state"], "removed");
    }

    async fn rows(&mut self, submit: Submit) -> Vec<Row> {
        let (run, digest) = (submit.run[0], submit.version_digest.clone());
        self.gateway.send(submit).await;
        let rows = self.gateway.rows_to_the_end().await;
        self.gateway.progress(run, rows.len() as u64, 1000).await;
        assert_eq!(rows[0].run[0], run, "{digest}");
        rows
    }

    async fn tokens(&mut self, submit: Submit) -> Vec<u32> {
        tokens(&self.rows(submit).await)
    }

    async fn refusal(&mut self, submit: Submit) -> Code {
        self.gateway.send(submit).await;
        match self.gateway.next().await {
            Got::Frame(Frame::Rejected(rejected)) => rejected.code(),
            other => panic!("not refused: {other:?}"),
        }
    }
}

fn tokens(rows: &[Row]) -> Vec<u32> {
    rows.iter().map(|row| row.token_id).collect()
}

/// The reference's prompt, greedily, by a version.
fn greedy(run: u8, digest: &str) -> Submit {
    Submit {
        version_digest: digest.to_owned(),
        sampling: Some(Sampling {
            temperature: 0.0,
            ignore_eos: true,
            ..sampling()
        }),
        ..submit(run, &words("prompt"), 12)
    }
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "one story, told in full")]
async fn adapters_come_and_go_while_the_model_serves() {
    let artifact = artifact();
    let base = artifact.plan.digest.to_string();
    let (strong, weak) = (
        Signed::of(&artifact, "strong", None),
        Signed::of(&artifact, "weak", Some(9.0)),
    );
    let mut served = Served::start(&artifact).await;
    let plain = served.tokens(greedy(1, &base)).await;
    assert_eq!(
        served.refusal(greedy(2, &strong.digest())).await,
        Code::UnknownVersion
    );

    let said = served.put("strong", &strong.plan());
    assert_eq!(
        (&said["state"], &said["digest"]),
        (&json!("loaded"), &json!(strong.digest()))
    );
    assert_eq!(served.put("weak", &weak.plan())["state"], "loaded");
    let has_both = |models: &[weir_protocol::worker::LoadedModel]| {
        let adapters = models.iter().filter(|model| model.adapter_of == base);
        adapters
            .map(|model| model.model.clone())
            .collect::<Vec<_>>()
    };
    let status = served
        .gateway
        .status_where(|status| status.loaded.len() == 3)
        .await;
    assert_eq!(status.loaded_digests[0], base);
    let mut names = has_both(&status.loaded);
    names.sort();
    assert_eq!(names, ["tiny-strong", "tiny-weak"]);

    // All three at once: each is what it is alone.
    assert_eq!(
        served.tokens(greedy(3, &strong.digest())).await,
        words("greedy")
    );
    let other = served.tokens(greedy(4, &weak.digest())).await;
    assert_ne!(other, words("greedy"));
    assert_ne!(plain, words("greedy"));
    let digests = [&base, &strong.digest(), &weak.digest()];
    for (run, digest) in (5..).zip(digests) {
        served.gateway.send(greedy(run, digest)).await;
    }
    let mut rows = Vec::new();
    while rows.iter().filter(|row: &&Row| row.run_finished).count() < 3 {
        rows.push(served.gateway.row().await);
    }
    for (run, want) in (5_u8..).zip([&plain, &words("greedy"), &other]) {
        let own: Vec<Row> = rows
            .iter()
            .filter(|row| row.run[0] == run)
            .cloned()
            .collect();
        assert_eq!(tokens(&own), **want, "run {run}");
        served.gateway.progress(run, 12, 1000).await;
    }

    // A run that is under way when its adapter goes is finished; a new one finds none.
    let slow = Submit {
        credit: 2,
        ..greedy(8, &strong.digest())
    };
    served.gateway.send(slow).await;
    let mut slow = vec![served.gateway.row().await, served.gateway.row().await];
    served.take_away("strong");
    assert_eq!(
        served.refusal(greedy(9, &strong.digest())).await,
        Code::UnknownVersion
    );
    served
        .gateway
        .status_where(|status| status.loaded.len() == 2)
        .await;
    served.gateway.progress(8, 2, 1000).await;
    slow.extend(served.gateway.rows_to_the_end().await);
    assert_eq!(tokens(&slow), words("greedy"));
    served.gateway.progress(8, 12, 1000).await;
    assert_eq!(served.tokens(greedy(10, &base)).await, plain);
    assert_eq!(served.tokens(greedy(11, &weak.digest())).await, other);
}

/// vllm#44701: prefixes of one scope are shared only where the same was applied to the model.
#[tokio::test(flavor = "multi_thread")]
async fn prefixes_of_different_adapters_are_not_shared() {
    let artifact = artifact();
    let base = artifact.plan.digest.to_string();
    let (strong, weak) = (
        Signed::of(&artifact, "strong", None),
        Signed::of(&artifact, "weak", Some(9.0)),
    );
    let mut served = Served::start(&artifact).await;
    served.put("strong", &strong.plan());
    served.put("weak", &weak.plan());
    let mut run = 0;
    let mut outputs = Vec::new();
    for (digest, cached) in [
        (&base, 0),
        (&base, 32),
        (&strong.digest(), 0),
        (&weak.digest(), 0),
        (&strong.digest(), 32),
        (&weak.digest(), 32),
        (&base, 32),
    ] {
        run += 1;
        let submit = Submit {
            trust_scope: vec![5; 32].into(),
            ..greedy(run, digest)
        };
        let rows = served.rows(submit).await;
        let started = rows[0].started.unwrap();
        assert_eq!(started.cached_tokens, cached, "run {run}");
        outputs.push((digest.clone(), tokens(&rows)));
    }
    for (digest, output) in &outputs {
        let same = outputs.iter().filter(|(other, _)| other == digest);
        for (_, other) in same {
            assert_eq!(output, other, "{digest}");
        }
    }
    assert_eq!(outputs[2].1, words("greedy"));
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "one table, one row a case")]
async fn what_is_no_signed_adapter_of_the_model_is_refused_and_the_model_goes_on() {
    type Change = fn(&Artifact, &Signed, &mut Value);
    let cases: [(&str, Change, &str, &str); 7] = [
        (
            "tampered weights",
            |_, adapter, _| flip_last_byte(&adapter.dir.join("adapter_model.safetensors")),
            "FileTampered",
            "adapter_model.safetensors",
        ),
        (
            "a key that nobody trusts",
            |_, _, plan| plan["trust"]["keys"][0]["revoked"] = true.into(),
            "KeyRevoked",
            "revoked",
        ),
        (
            "unsigned",
            |_, adapter, _| std::fs::remove_file(adapter.dir.join(SIGNATURE_FILE)).unwrap(),
            "SignatureMissing",
            SIGNATURE_FILE,
        ),
        (
            "of another base",
            |_, _, plan| {
                plan["claim"]["adapterOf"] = format!("sha256:{}", "7".repeat(64)).into();
            },
            "BaseMismatch",
            "is of an adapter of sha256:7777",
        ),
        (
            "the model's own plan",
            |artifact, _, plan| *plan = artifact.plan(),
            "BaseMismatch",
            "is of an adapter of nothing",
        ),
        (
            "not a plan",
            |_, _, plan| *plan = json!({"dir": 1}),
            "PlanInvalid",
            "malformed",
        ),
        (
            "signed and broken",
            |artifact, adapter, plan| {
                let weights = adapter.dir.join("adapter_model.safetensors");
                let bytes = std::fs::read(&weights).unwrap();
                std::fs::write(&weights, &bytes[..bytes.len() - 2]).unwrap();
                *plan = Signed::sign(artifact, adapter.dir.clone(), "broken").plan();
            },
            "AdapterInvalid",
            "\"adapter_model.safetensors\" is not a whole safetensors file",
        ),
    ];
    let artifact = artifact();
    let base = artifact.plan.digest.to_string();
    let mut served = Served::start(&artifact).await;
    let plain = served.tokens(greedy(100, &base)).await;
    for (run, (name, change, reason, cause)) in (0_u8..).zip(cases) {
        let adapter = Signed::of(&artifact, &format!("a{run}"), None);
        let mut changed = adapter.plan();
        change(&artifact, &adapter, &mut changed);
        let said = served.put("one", &changed);
        assert_eq!(said["state"], "refused", "{name}: {said}");
        assert_eq!(said["reason"], reason, "{name}: {said}");
        assert!(
            said["message"].as_str().unwrap().contains(cause),
            "{name}: {said}"
        );
        let refused = served.refusal(greedy(run, &adapter.digest())).await;
        assert_eq!(refused, Code::UnknownVersion, "{name}");
        assert_eq!(
            served.tokens(greedy(run + 50, &base)).await,
            plain,
            "{name}"
        );
    }
    // The plan is mended: nothing else is needed.
    let good = Signed::of(&artifact, "good", None);
    assert_eq!(served.put("one", &good.plan())["state"], "loaded");
    assert_eq!(
        served.tokens(greedy(200, &good.digest())).await,
        words("greedy")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_adapter_overflows_fails_alone() {
    let artifact = artifact();
    let base = artifact.plan.digest.to_string();
    let wild = Signed::of(&artifact, "wild", Some(1e38));
    let mut served = Served::start(&artifact).await;
    let plain = served.tokens(greedy(1, &base)).await;
    served.put("wild", &wild.plan());
    let rows = served.rows(greedy(2, &wild.digest())).await;
    let finish = rows[0].finish.as_ref().unwrap();
    assert_eq!((rows.len(), finish.reason()), (1, Reason::Failed));
    assert!(
        finish.message.starts_with("adapter_error: "),
        "{}",
        finish.message
    );
    assert_eq!(served.tokens(greedy(3, &base)).await, plain);
}

/// What a worker says, for tests in its own process.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_device_that_applies_no_adapters_says_so_and_serves_its_model() {
    let artifact = artifact();
    let mut plan = Signed::of(&artifact, "one", None).plan();
    plan["claim"]["adapterOf"] = DIGEST.into();
    std::fs::write(artifact.dir.path().join("one.json"), plan.to_string()).unwrap();
    let said = Said::default();
    let worker = TestWorker::start_with(Options {
        adapters: Some(artifact.dir.path().to_owned()),
        announcer: Announcer::to(Box::new(said.clone())),
        ..Options::default()
    })
    .await;
    let deadline = std::time::Instant::now() + crate::gateway::PATIENCE;
    let text = loop {
        let text = String::from_utf8(said.0.lock().unwrap().clone()).unwrap();
        if text.contains("AdaptersUnsupported") {
            break text;
        }
        assert!(std::time::Instant::now() < deadline, "{text}");
        tokio::task::yield_now().await;
    };
    assert!(
        text.contains("fake cannot apply adapters; give the worker --device cpu"),
        "{text}"
    );
    let mut gateway = Gateway::connect(&worker.socket(), hello(1)).await.unwrap();
    assert_eq!(gateway.welcome.models.len(), 1);
    gateway.send(submit(1, &[1, 2, 3], 4)).await;
    assert_eq!(gateway.rows_to_the_end().await.len(), 4);
}
