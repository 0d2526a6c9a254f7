//! What people see of the ledger: alerts that outlive a killed gateway, content that is nowhere it should not be, and the command line.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use weir_e2e::{Client, RandomModel, Site, Tenant, wait_for, weir_command};

/// A receiver of alerts that refuses them until it is told otherwise.
#[derive(Clone, Default)]
struct Receiver {
    takes: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
    taken: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    fn start() -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let receiver = Self::default();
        let own = receiver.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = own.clone();
                std::thread::spawn(move || own.answer(stream));
            }
        });
        (receiver, url)
    }

    fn answer(&self, mut stream: std::net::TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        loop {
            let mut length = 0;
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 {
                    return;
                }
                let line = line.trim_end().to_ascii_lowercase();
                if let Some(text) = line.strip_prefix("content-length: ") {
                    length = text.parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let status = if self.takes.load(Ordering::SeqCst) {
                let alert = serde_json::from_slice(&body).unwrap();
                self.taken.lock().unwrap().push(alert);
                "204 Taken"
            } else {
                self.refused.fetch_add(1, Ordering::SeqCst);
                "503 Later"
            };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }

    fn thresholds(&self) -> BTreeSet<u64> {
        let taken = self.taken.lock().unwrap();
        taken
            .iter()
            .map(|alert| alert["thresholdPercent"].as_u64().unwrap())
            .collect()
    }
}

#[test]
fn an_alert_is_raised_once_and_delivered_though_the_gateway_is_killed_before_it_is_taken() {
    let (receiver, url) = Receiver::start();
    let tenant = Tenant {
        name: "acme",
        spec: json!({
            "windows": [{"period": "24h", "tokens": 100}],
            "alerts": {"webhook": {"url": url, "secretRef": {"name": "acme-hooks", "key": "signing"}}},
        }),
    };
    let site = Site::random(RandomModel::default(), &[tenant]).unwrap();
    site.write("hooks.yaml", &json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "acme-hooks"}, "stringData": {"signing": "whsec"},
    }))
    .unwrap();
    let spend = |client: &Client, output: u32| {
        let body = json!({"model": "random", "input": {"tokens": [5, 6, 7, 8, 9]}, "maxOutputTokens": output, "sampling": {"ignoreEos": true}});
        let run = client.post("/inference", &body).unwrap();
        client.all_events(&run.run_id(), 0).unwrap();
    };
    let mut weir = site.up().unwrap();
    spend(&weir.client("acme-dev-key"), 50);
    wait_for("an attempt that is refused", 20, || {
        (receiver.refused.load(Ordering::SeqCst) > 0).then_some(())
    })
    .unwrap();
    weir.kill().unwrap();
    drop(weir);

    receiver.takes.store(true, Ordering::SeqCst);
    let weir = site.up().unwrap();
    wait_for("the alert of before", 60, || {
        receiver.thresholds().contains(&50).then_some(())
    })
    .unwrap();
    spend(&weir.client("acme-dev-key"), 30);
    wait_for("the next alert", 20, || {
        receiver.thresholds().contains(&80).then_some(())
    })
    .unwrap();
    let audit = Client::new(&weir.admin, "").get("/audit").unwrap();
    let audit = audit.body.as_str().unwrap().to_owned();
    let lines: Vec<&str> = audit
        .lines()
        .filter(|line| line.contains("budgetThreshold"))
        .collect();
    assert_eq!(lines.len(), 2, "once each: {audit}");
    assert_eq!(receiver.thresholds(), BTreeSet::from([50, 80]));
    assert!(!audit.contains("whsec"), "{audit}");
}

/// `weir up` with everything it logs in a file.
struct Logged(Child);

impl Drop for Logged {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn up(site: &Site, log: &Path) -> (Logged, String, String) {
    let mut child = weir_command()
        .arg("up")
        .arg(site.manifests())
        .args([
            "--json",
            "--listen",
            "127.0.0.1:0",
            "--admin",
            "127.0.0.1:0",
            "--data",
        ])
        .arg(site.data())
        .env("WEIR_LOG", "trace")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(log).unwrap())
        .spawn()
        .unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let mut lines = stdout.lines().map_while(Result::ok);
    let ready = lines
        .by_ref()
        .filter_map(|line| serde_json::from_str::<Value>(&line).ok())
        .find(|line| line["event"] == "ready")
        .expect("it is ready");
    // What follows must be read, or it would wait for us.
    std::thread::spawn(move || lines.for_each(drop));
    let url = |name: &str| format!("http://{}", ready[name].as_str().unwrap());
    (Logged(child), url("listen"), url("admin"))
}

fn files_with(folder: &Path, text: &str) -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(bytes) = std::fs::read(&path)
                && bytes
                    .windows(text.len())
                    .any(|part| part == text.as_bytes())
            {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

fn weir(arguments: &[&str]) -> String {
    let output = weir_command().args(arguments).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "weir {arguments:?}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

#[test]
fn a_prompt_is_in_no_log_metric_or_refusal_and_after_a_purge_in_no_file() {
    const CANARY: &str = "canarywordfortyfour";
    let site = Site::random(
        RandomModel::default(),
        &[Tenant::unlimited("acme"), Tenant::unlimited("globex")],
    )
    .unwrap();
    let log = site.path().join("weir.log");
    let (running, listen, admin) = up(&site, &log);
    let client = Client::new(&listen, "acme-dev-key");
    let prompt = format!("please repeat {CANARY}");
    let body = json!({"model": "random", "input": prompt, "maxOutputTokens": 8, "metadata": {"note": CANARY}});
    let run = client.post("/inference", &body).unwrap().run_id();
    client.all_events(&run, 0).unwrap();
    let chat = json!({"model": "random", "messages": [{"role": "user", "content": prompt}], "max_tokens": 4, "stream": true});
    client.post("/v1/chat/completions", &chat).unwrap();
    let mut answers = Vec::new();
    for wrong in [
        json!({"model": "random", "input": prompt, "maxOutputTokens": 0}),
        json!({"model": "nobody", "input": prompt}),
        json!({"model": "random", "input": prompt.repeat(2000)}),
        json!({"model": "random", "input": [{"role": "user", "content": prompt, "more": 1}]}),
        json!({"model": "random", "input": prompt, "sampling": {"temperature": -1}}),
    ] {
        let refused = client.post("/inference", &wrong).unwrap();
        assert!(refused.status >= 400, "{refused:?}");
        answers.push(refused.body.to_string());
    }
    let stranger = Client::new(&listen, "globex-dev-key")
        .get(&format!("/runs/{run}"))
        .unwrap();
    answers.push(stranger.body.to_string());
    for path in [
        "/metrics",
        "/objects",
        "/audit",
        "/usage?tenant=acme&check=all",
        "/usage/ledger?tenant=acme",
    ] {
        answers.push(Client::new(&admin, "").get(path).unwrap().body.to_string());
    }
    for answer in &answers {
        assert!(!answer.contains(CANARY), "{answer}");
    }
    // A random model's text is not the prompt, but the labels are the client's.
    assert!(
        !files_with(&site.data(), CANARY).is_empty(),
        "the search finds what is there"
    );
    let said = weir(&["tenant", "purge", "acme", "--admin", &admin]);
    assert!(said.starts_with("2 runs lost their content"), "{said}");
    assert_eq!(files_with(&site.data(), CANARY), Vec::<String>::new());

    let table = weir(&["usage", "--url", &listen, "--key", "acme-dev-key"]);
    assert!(
        table.contains("random@1") && table.contains("\nconsistent:"),
        "{table}"
    );
    let verified = weir(&["usage", "--verify", "--tenant", "acme", "--admin", &admin]);
    assert!(
        verified.starts_with("2 records of ledger/acme are whole"),
        "{verified}"
    );
    let audit = weir(&["audit", "--verify", "--admin", &admin]);
    assert!(
        audit.contains("contentDeleted") && audit.contains("are whole"),
        "{audit}"
    );
    let data = site.data().display().to_string();
    let locked = weir_command()
        .args(["usage", "repair", "--tenant", "acme", "--data", &data])
        .output()
        .unwrap();
    assert!(!locked.status.success());
    let why = String::from_utf8_lossy(&locked.stderr).into_owned();
    assert!(why.contains("a gateway has the store open"), "{why}");
    drop(running);
    let repaired = wait_for("the lock", 20, || {
        let output = weir_command()
            .args(["usage", "repair", "--tenant", "acme", "--data", &data])
            .output()
            .unwrap();
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    })
    .unwrap();
    assert!(repaired.contains("agrees with its ledger"), "{repaired}");
    let logged = std::fs::read(&log).unwrap();
    assert!(
        logged.len() > 10_000,
        "the log is on: {} bytes",
        logged.len()
    );
    let leaks: Vec<String> = String::from_utf8_lossy(&logged)
        .lines()
        .filter(|line| line.contains(CANARY))
        .map(|line| line.chars().take(400).collect())
        .collect();
    assert!(leaks.is_empty(), "{leaks:#?}");
}
