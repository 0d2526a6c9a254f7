//! Policies before and after the model, on real runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use weir_gateway::{Settings, Snapshot};
use weir_store::{Engine, open};

use crate::client::Event;
use crate::service::serve;
use crate::site::{DIGEST, Site, ask, config, snapshot, tenant, wait_for};
use crate::worker::FakeWorker;

const POLICIES: &str = "
policies:
- name: secrets
  version: 7
  rules:
  - {name: token, action: Redact, patterns: [cloudKeys, tokens, privateKeys]}
  - {name: card, action: Redact, patterns: [cardNumbers]}
- name: house
  tenants: [acme]
  rules:
  - {name: deny, action: Block, words: [forbidden fruit]}
";

fn with(folder: &std::path::Path, yaml: &str) -> Snapshot {
    Snapshot {
        settings: Settings::from_yaml(yaml).unwrap(),
        ..snapshot(folder, vec![tenant("acme"), tenant("globex")], &["w0"])
    }
}

async fn site(yaml: &str) -> (Site, FakeWorker) {
    let folder = tempfile::tempdir().unwrap();
    let worker = FakeWorker::start(folder.path(), "w0", DIGEST, false);
    let snapshot = with(folder.path(), yaml);
    let site = Site::start(folder, snapshot, config()).await;
    site.wait_served().await;
    (site, worker)
}

fn text(events: &[Event]) -> String {
    let texts = events
        .iter()
        .filter_map(|event| event.data["text"].as_str());
    texts.collect()
}

fn tokens(events: &[Event]) -> u64 {
    let tokens = events
        .iter()
        .filter_map(|event| event.data["tokens"].as_u64());
    tokens.sum()
}

#[tokio::test]
async fn a_secret_is_redacted_however_it_is_cut_and_every_token_is_in_one_delta() {
    let (site, worker) = site(POLICIES).await;
    let acme = site.client("acme");
    let mut stream = acme.stream("/inference", &ask(50)).await;
    wait_for("the run", || worker.held() == 1).await;
    worker.say(&["The key is", " AK", "IAIOSF", "ODNN7"], false);
    // Accepted, started, and the one row that is no part of what may be a key.
    let mut seen = stream.take(3).await;
    assert_eq!(text(&seen), "The key is");
    worker.say(
        &["EXAMPLE", ". Pay", " with 4111 1111", " 1111 1111", "!"],
        true,
    );
    seen.extend(stream.rest().await);
    assert_eq!(
        text(&seen),
        "The key is [redacted:token]. Pay with [redacted:card]!"
    );
    let end = &seen.last().unwrap().data;
    assert_eq!(
        (tokens(&seen), &end["usage"]["outputTokens"]),
        (9, &json!(9))
    );
    let run = seen[0].data["runId"].as_str().unwrap();
    assert_eq!(acme.all_events(run, 0).await, seen);
    let row = acme.get(&format!("/runs/{run}")).await;
    let verdicts = row.body["verdicts"].as_array().unwrap();
    assert_eq!(verdicts.len(), 2, "{verdicts:?}");
    let want = json!({"policy": "secrets", "version": 7, "rule": "token", "phase": "after", "action": "redact", "count": 1});
    assert_eq!(verdicts[0], want);
    assert!(!row.text.contains("AKIA") && !row.text.contains("4111"));
    site.assert_settled("acme").await;
}

#[tokio::test]
async fn a_blocked_output_ends_before_the_match_and_its_worker_is_told() {
    let (site, worker) = site(POLICIES).await;
    let acme = site.client("acme");
    let body =
        json!({"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 50});
    let calling = tokio::spawn(async move { acme.post("/v1/chat/completions", &body).await });
    wait_for("the run", || worker.held() == 1).await;
    worker.say(
        &["Eat the ", "forbid", "den", " fruit", " now", " and"],
        false,
    );
    let reply = calling.await.unwrap();
    let choice = &reply.body["choices"][0];
    assert_eq!(choice["message"]["content"], "Eat the ", "{}", reply.text);
    assert_eq!(choice["finish_reason"], "content_filter");
    wait_for("the cancellation", || worker.cancels() == 1).await;
    let usage = site.assert_settled("acme").await;
    assert_eq!(usage["byModel"][0]["runs"]["completed"], 1, "{usage}");
}

#[tokio::test]
async fn a_prompt_is_refused_or_redacted_before_anything_is_run() {
    let (site, worker) = site(POLICIES).await;
    let acme = site.client("acme");
    let say = |text: &str| json!({"model": "tiny", "input": text, "maxOutputTokens": 2});
    let refused = acme
        .post("/inference", &say("a Forbidden FRUIT please"))
        .await;
    assert_eq!(
        (refused.status, refused.code()),
        (400, "safety_blocked"),
        "{}",
        refused.text
    );
    assert_eq!(refused.body["error"]["details"]["rule"], "deny");
    assert!(!refused.text.to_lowercase().contains("please"));
    assert_eq!(worker.submits().len(), 0);
    // The house's policy is not globex's.
    let other = site
        .client("globex")
        .post("/inference", &say("a forbidden fruit"))
        .await;
    assert_eq!(other.status, 202);
    let kept = acme
        .post("/inference", &say("use AKIAIOSFODNN7EXAMPLE"))
        .await;
    assert_eq!(kept.status, 202);
    wait_for("both runs", || worker.submits().len() == 2).await;
    let prompt: String = worker.submits()[1]
        .prompt
        .iter()
        .map(|t| char::from(*t as u8))
        .collect();
    assert_eq!(prompt, "use [redacted:token]");
    let row = acme.get(&format!("/runs/{}", kept.run())).await.body;
    assert_eq!(row["verdicts"][0]["phase"], "before", "{row}");
    let tokens = acme
        .post(
            "/v1/completions",
            &json!({"model": "tiny", "prompt": [1, 2], "max_tokens": 1}),
        )
        .await;
    assert_eq!(tokens.code(), "safety_blocked", "{}", tokens.text);
}

#[tokio::test]
async fn a_cancelled_run_shows_nothing_of_what_was_held_back() {
    let (site, worker) = site(POLICIES).await;
    let acme = site.client("acme");
    let mut stream = acme.stream("/inference", &ask(50)).await;
    wait_for("the run", || worker.held() == 1).await;
    worker.say(&["key ", "AKIAIOSF"], false);
    let mut seen = stream.take(3).await;
    let run = seen[0].data["runId"].as_str().unwrap().to_owned();
    acme.delete(&format!("/runs/{run}")).await;
    seen.extend(stream.rest().await);
    assert_eq!(text(&seen), "key ");
    assert_eq!(seen.last().unwrap().kind, "cancelled");
    assert_eq!(tokens(&seen), 2, "what was held back is billed");
    site.assert_settled("acme").await;
}

#[tokio::test]
async fn a_lost_session_and_a_new_one_show_what_an_unbroken_one_shows() {
    let (site, worker) = site(POLICIES).await;
    let acme = site.client("acme");
    let mut stream = acme.stream("/inference", &ask(50)).await;
    wait_for("the run", || worker.held() == 1).await;
    worker.say(
        &["see -----BEGIN ", "PRIVATE KEY-----", "MIIE", "\n-----EN"],
        false,
    );
    let mut seen = stream.take(5).await;
    worker.break_session();
    wait_for("the next session", || worker.attaches() == 1).await;
    worker.say(&["D PRIVATE", " KEY----- done"], true);
    seen.extend(stream.rest().await);
    assert_eq!(text(&seen), "see [redacted:token] done");
    assert_eq!(tokens(&seen), 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_successor_of_a_dead_gateway_goes_on_in_the_middle_of_a_secret() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("store"), Engine::default()).unwrap();
    let worker = Arc::new(FakeWorker::start(folder.path(), "w0", DIGEST, false));
    let pieces = [
        "a -----BEGIN ",
        "PRIVATE KEY-----",
        "MIIE",
        "QQ\n-----E",
        "ND PRIVATE",
        " KEY-----",
        " AKIAIOSF",
        "ODNN7EXAMPLE",
        " b",
    ];
    // At every place: the first gateway sees so many pieces, its successor the rest.
    for first in 1..pieces.len() {
        let (path, theirs, parts) = (
            folder.path().to_owned(),
            Arc::clone(&worker),
            Arc::clone(&store),
        );
        let run = tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            let run = runtime.block_on(async {
                let site = Site::on(
                    tempfile::tempdir().unwrap(),
                    parts,
                    with(&path, POLICIES),
                    config(),
                )
                .await;
                site.wait_served().await;
                let run = site.client("acme").post("/inference", &ask(50)).await.run();
                wait_for("the run", || theirs.held() == 1).await;
                theirs.say(&pieces[..first], false);
                wait_for("the rows", || theirs.unsent() == 0).await;
                tokio::time::sleep(Duration::from_millis(30)).await;
                run
            });
            runtime.shutdown_background();
            run
        })
        .await
        .unwrap();
        let (path, theirs, parts) = (
            folder.path().to_owned(),
            Arc::clone(&worker),
            Arc::clone(&store),
        );
        let site = Site::on(
            tempfile::tempdir().unwrap(),
            parts,
            with(&path, POLICIES),
            config(),
        )
        .await;
        site.wait_served().await;
        theirs.say(&pieces[first..], true);
        let events = site.client("acme").all_events(&run, 0).await;
        assert_eq!(
            text(&events),
            "a [redacted:token] [redacted:token] b",
            "after {first}: {:?}",
            events.last()
        );
        assert_eq!(tokens(&events), pieces.len() as u64, "after {first}");
        site.gateway.stop().await;
        worker.forget();
    }
}

#[tokio::test]
async fn a_checker_is_asked_in_time_or_does_what_its_policy_says() {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let address = serve(None, move |call| {
        counted.fetch_add(1, Ordering::SeqCst);
        let asked: Value = serde_json::from_str(&call.body).unwrap();
        let text = asked["messages"][0]["content"].as_str().unwrap();
        if text.contains("slow") {
            std::thread::sleep(Duration::from_millis(600));
        }
        match text {
            "bad" => (
                200,
                json!({"action": "block", "rule": "hate.1"}).to_string(),
            ),
            "broken" => (500, String::new()),
            _ => (200, json!({"action": "allow"}).to_string()),
        }
    })
    .await;
    let yaml = |failure: &str| {
        format!(
            "policies: [{{name: judge, version: 2, checker: {{url: 'http://{address}/', deadlineMs: 300, onFailure: {failure}, phases: [Before]}}}}]"
        )
    };
    let say = |text: &str| json!({"model": "tiny", "input": text, "maxOutputTokens": 2});
    let (open, _w) = site(&yaml("Allow")).await;
    let acme = open.client("acme");
    assert_eq!(acme.post("/inference", &say("good")).await.status, 202);
    let bad = acme.post("/inference", &say("bad")).await;
    assert_eq!(
        (bad.code(), &bad.body["error"]["details"]["rule"]),
        ("safety_blocked", &json!("hate.1"))
    );
    for text in ["slow", "broken"] {
        let reply = acme.post("/inference", &say(text)).await;
        assert_eq!(reply.status, 202, "{}", reply.text);
        let row = acme.get(&format!("/runs/{}", reply.run())).await.body;
        assert_eq!(row["verdicts"][0]["action"], "unchecked", "{row}");
    }
    let (closed, _w) = site(&yaml("Block")).await;
    let acme = closed.client("acme");
    for _ in 0..5 {
        assert_eq!(
            acme.post("/inference", &say("broken")).await.code(),
            "safety_blocked"
        );
    }
    // It failed often enough to be left alone: the next call does not reach it.
    let before = calls.load(Ordering::SeqCst);
    assert_eq!(
        acme.post("/inference", &say("good")).await.code(),
        "safety_blocked"
    );
    assert_eq!(calls.load(Ordering::SeqCst), before);
}
