//! Several versions in one worker: they come and go with their plans, and none disturbs another.

use std::path::PathBuf;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use weir_protocol::worker::rejected::Code;
use weir_protocol::worker::worker_frame::Frame;
use weir_protocol::worker::{Hello, Row, Sampling, Submit, finish::Reason};

use crate::gateway::{Gateway, Got, hello, sampling, submit};
use crate::process::{Artifact, Process, artifact_of, flip_last_byte};

/// A worker of several versions, and where their plans are.
struct Several {
    process: Process,
    socket: PathBuf,
    folder: PathBuf,
    _home: Artifact,
}

impl Several {
    fn start(most: u32, more: &[&str]) -> Self {
        let home = artifact_of("home", 1);
        let folder = home.dir.path().join("versions");
        std::fs::create_dir(&folder).unwrap();
        let most = most.to_string();
        let holds = [
            "--versions",
            folder.to_str().unwrap(),
            "--max-versions",
            &most,
        ];
        let mut process = home.start_holding(&holds, more);
        process.line("ready");
        Self {
            process,
            socket: home.socket(),
            folder,
            _home: home,
        }
    }

    /// Puts a plan into the folder, whole at once; what the worker says of it.
    fn put(&mut self, name: &str, plan: &Value) -> Value {
        let part = self.folder.join(format!("{name}.part"));
        std::fs::write(&part, plan.to_string()).unwrap();
        std::fs::rename(&part, self.folder.join(format!("{name}.json"))).unwrap();
        self.said(name)
    }

    fn said(&mut self, name: &str) -> Value {
        let plan = format!("{name}.json");
        self.process
            .line_where("version", |line| line["plan"] == plan)
    }

    fn take_away(&self, name: &str) {
        std::fs::remove_file(self.folder.join(format!("{name}.json"))).unwrap();
    }

    async fn session(&self, of: &Artifact, epoch: u64) -> Gateway {
        Gateway::connect(&self.socket, hello_for(of, epoch))
            .await
            .unwrap()
    }

    /// Address space of the process, which falls when an engine's memory is given back.
    fn bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.child.id()));
        let status = status.unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmSize"))
            .unwrap();
        let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        kib << 10
    }
}

fn hello_for(of: &Artifact, epoch: u64) -> Hello {
    Hello {
        version_digest: of.plan.digest.to_string(),
        ..hello(epoch)
    }
}

fn long(of: &Artifact, run: u8, tokens: u32) -> Submit {
    let mut frame = submit(run, &[3, 4, 5, 6], tokens);
    frame.version_digest = of.plan.digest.to_string();
    frame.sampling = Some(Sampling {
        temperature: 0.0,
        ignore_eos: true,
        ..sampling()
    });
    frame
}

async fn rows(gateway: &mut Gateway, submit: Submit) -> Vec<Row> {
    gateway.send(submit).await;
    gateway.rows_to_the_end().await
}

fn is_whole(rows: &[Row], tokens: usize) -> bool {
    let end = rows.last().and_then(|row| row.finish.as_ref());
    rows.len() == tokens && end.is_some_and(|end| end.reason() == Reason::Length)
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_are_loaded_and_unloaded_while_others_serve() {
    let (one, two, bad) = (
        artifact_of("one", 1),
        artifact_of("two", 7),
        artifact_of("bad", 1),
    );
    let mut worker = Several::start(3, &[]);
    assert_eq!(worker.put("one", &one.plan())["state"], "loaded");
    let mut first = worker.session(&one, 1).await;
    assert_eq!(first.welcome.models[0].model, "one");
    first.send(long(&one, 1, 50)).await;

    // Another model, and one that is not what was signed, come while the first answers.
    let said = worker.put("two", &two.plan());
    assert_eq!(
        (&said["state"], &said["digest"]),
        (&json!("loaded"), &json!(two.plan.digest.to_string()))
    );
    flip_last_byte(&bad.plan.dir.join("model.safetensors"));
    let said = worker.put("bad", &bad.plan());
    assert_eq!(
        (&said["state"], &said["reason"]),
        (&json!("refused"), &json!("FileTampered"))
    );
    let mut second = worker.session(&two, 1).await;
    assert_eq!(
        (
            second.welcome.models[0].model.as_str(),
            second.welcome.models.len()
        ),
        ("two", 1)
    );
    let alone = rows(&mut second, long(&two, 1, 40)).await;
    assert!(is_whole(&alone, 40), "{alone:?}");
    let whole = first.rows_to_the_end().await;
    assert!(is_whole(&whole, 50), "{whole:?}");

    // A session is its version's: it neither runs nor finds anything of another one.
    second.send(long(&one, 2, 5)).await;
    match second.next().await {
        Got::Frame(Frame::Rejected(rejected)) => assert_eq!(rejected.code(), Code::UnknownVersion),
        other => panic!("{other:?}"),
    }
    let nameless = Gateway::connect(&worker.socket, hello(1))
        .await
        .err()
        .unwrap();
    assert!(
        nameless.message().contains("holds 2 versions"),
        "{nameless}"
    );
    let unknown = Gateway::connect(&worker.socket, hello_for(&bad, 1))
        .await
        .err()
        .unwrap();
    assert_eq!(unknown.code(), tonic::Code::NotFound);

    // The first leaves: nothing new, and the other one goes on.
    second.send(long(&two, 3, 50)).await;
    worker.take_away("one");
    assert_eq!(worker.said("one")["state"], "leaving");
    assert_eq!(worker.said("one")["state"], "removed");
    let whole = second.rows_to_the_end().await;
    assert!(is_whole(&whole, 50), "{whole:?}");
    let gone = Gateway::connect(&worker.socket, hello_for(&one, 2))
        .await
        .err()
        .unwrap();
    assert_eq!(gone.code(), tonic::Code::NotFound);

    let pid = Pid::from_raw(i32::try_from(worker.process.child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(worker.process.child.wait().unwrap().code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_leaves_ends_the_runs_it_has_and_takes_no_new_ones() {
    let one = artifact_of("one", 1);
    let mut worker = Several::start(2, &["--draft-tokens", "0"]);
    worker.put("one", &one.plan());
    let mut gateway = worker.session(&one, 1).await;
    let mut paused = long(&one, 1, 40);
    paused.credit = 1;
    gateway.send(paused).await;
    gateway.row().await;
    worker.take_away("one");
    assert_eq!(worker.said("one")["state"], "leaving");
    gateway.status_where(|status| status.draining).await;
    gateway.send(long(&one, 2, 4)).await;
    match gateway.next().await {
        Got::Frame(Frame::Rejected(rejected)) => assert_eq!(rejected.code(), Code::Draining),
        other => panic!("{other:?}"),
    }
    // Its plan comes back meanwhile: it waits for the end of what is there.
    let said = worker.put("one", &one.plan());
    assert_eq!(
        (&said["state"], &said["reason"]),
        (&json!("failed"), &json!("StillHeld"))
    );
    gateway.progress(1, 1, 1000).await;
    let rest = gateway.rows_to_the_end().await;
    assert!(is_whole(&rest, 39), "{rest:?}");
    assert_eq!(worker.said("one")["state"], "removed");
    assert_eq!(worker.said("one")["state"], "loaded");
    let mut again = worker.session(&one, 2).await;
    assert!(is_whole(&rows(&mut again, long(&one, 3, 9)).await, 9));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_worker_refuses_one_more_until_one_leaves_and_gives_memory_back() {
    const MEMORY: u64 = 1 << 30;
    let (one, two, three) = (
        artifact_of("one", 1),
        artifact_of("two", 1),
        artifact_of("three", 1),
    );
    let memory = MEMORY.to_string();
    let mut worker = Several::start(2, &["--kv-bytes", &memory]);
    worker.put("one", &one.plan());
    let before = worker.bytes();
    worker.put("two", &two.plan());
    let with_two = worker.bytes();
    assert!(
        with_two - before >= MEMORY / 2 - MEMORY / 16,
        "{before} {with_two}"
    );
    let kv = |gateway: &Gateway| gateway.welcome.limits.as_ref().unwrap().kv_bytes;
    let (first, second) = (worker.session(&one, 1).await, worker.session(&two, 1).await);
    assert!(kv(&first) + kv(&second) <= MEMORY && kv(&first) > MEMORY / 4);

    let said = worker.put("three", &three.plan());
    assert_eq!(
        (&said["state"], &said["reason"]),
        (&json!("failed"), &json!("PoolFull"))
    );
    assert!(
        said["message"]
            .as_str()
            .unwrap()
            .contains("holds 2 versions"),
        "{said}"
    );
    assert!(worker.bytes() < with_two + MEMORY / 4, "nothing was loaded");
    worker.take_away("one");
    let said = worker.said("three");
    assert_eq!(said["state"], "loaded", "{said}");
    let mut third = worker.session(&three, 1).await;
    assert!(is_whole(&rows(&mut third, long(&three, 1, 20)).await, 20));
    worker.take_away("three");
    assert_eq!(worker.said("three")["state"], "leaving");
    assert_eq!(worker.said("three")["state"], "removed");
    assert!(
        worker.bytes() < with_two - MEMORY / 4,
        "{} {with_two}",
        worker.bytes()
    );
}
