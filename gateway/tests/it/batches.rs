//! Files and batches: quotas, one result for each line, and a successor that goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use weir_store::{Engine, open};

use crate::client::Client;
use crate::restart::life;
use crate::site::{DIGEST, Site, config, snapshot, tenant, wait_for};
use crate::worker::FakeWorker;

fn line(custom_id: &str, output: u32) -> String {
    json!({
        "custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions",
        "body": {"model": "tiny", "messages": [{"role": "user", "content": custom_id}], "max_tokens": output},
    })
    .to_string()
}

fn lines(count: u32) -> String {
    let all: Vec<String> = (0..count).map(|n| line(&format!("line-{n}"), 3)).collect();
    all.join("\n")
}

async fn begin(client: &Client, text: &str, more: &Value) -> String {
    let file = client.upload(text).await;
    assert_eq!(file.status, 200, "{}", file.text);
    let mut body = json!({"input_file_id": file.body["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    let batch = client.post("/v1/batches", &body).await;
    assert_eq!(batch.status, 200, "{}", batch.text);
    batch.body["id"].as_str().unwrap().to_owned()
}

async fn wait_batch(client: &Client, id: &str, any: &[&str]) -> Value {
    let mut batch = Value::Null;
    for _ in 0..2000 {
        batch = client.get(&format!("/v1/batches/{id}")).await.body;
        let counts = &batch["request_counts"];
        assert!(
            counts["completed"].as_u64().unwrap() + counts["failed"].as_u64().unwrap()
                <= counts["total"].as_u64().unwrap().max(1),
            "{batch}"
        );
        if any.contains(&batch["status"].as_str().unwrap()) {
            return batch;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it did not become any of {any:?}: {batch}");
}

/// Lines of a file of a batch, by `custom_id`; a name twice is a failure.
async fn results(client: &Client, file: &Value) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let Some(id) = file.as_str() else { return all };
    let content = client.get(&format!("/v1/files/{id}/content")).await;
    assert_eq!(content.status, 200, "{}", content.text);
    assert!(content.text.ends_with('\n'));
    for line in content.text.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let name = record["custom_id"].as_str().unwrap_or("(none)").to_owned();
        let twice = all.insert(name.clone(), record);
        assert!(twice.is_none(), "{name} has two results");
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_kept_listed_read_and_deleted_within_the_tenants_space() {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = snapshot(folder.path(), vec![tenant("acme"), tenant("globex")], &[]);
    let small = weir_gateway::Config {
        file_bytes: 700_000,
        tenant_file_bytes: 1_000_000,
        ..config()
    };
    let site = Site::start(folder, snapshot, small).await;
    let acme = site.client("acme");
    let text = "x".repeat(600_000);
    let first = acme.upload(&text).await;
    assert_eq!(first.status, 200, "{}", first.text);
    let id = first.body["id"].as_str().unwrap();
    assert_eq!(first.body["bytes"], 600_000);
    assert_eq!(first.body["purpose"], "batch");
    let path = format!("/v1/files/{id}");
    assert_eq!(acme.get(&path).await.body, first.body);
    assert_eq!(acme.get(&format!("{path}/content")).await.text, text);
    let foreign = site.client("globex").get(&path).await;
    assert_eq!((foreign.status, foreign.code()), (404, "file_not_found"));
    let large = site.client("globex").upload(&"y".repeat(700_001)).await;
    assert_eq!((large.status, large.code()), (413, "body_too_large"));
    let full = acme.upload(&text).await;
    assert_eq!((full.status, full.code()), (413, "storage_exceeded"));
    assert_eq!(
        acme.get("/v1/files").await.body["data"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(acme.delete(&path).await.body["deleted"], true);
    assert_eq!(acme.get(&path).await.status, 404);
    let mut fits = acme.upload(&text).await;
    for _ in 0..200 {
        // What a refused upload had written goes a moment after its answer.
        if fits.status == 200 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        fits = acme.upload(&text).await;
    }
    assert_eq!(fits.status, 200, "the space is free again: {}", fits.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_are_paged_newest_first_or_oldest_first() {
    let (site, _worker) = Site::new(true).await;
    let acme = site.client("acme");
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(
            acme.upload(&format!("{n}")).await.body["id"]
                .as_str()
                .unwrap()
                .to_owned(),
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    for (order, want) in [
        ("asc", ids.clone()),
        ("desc", ids.iter().rev().cloned().collect()),
    ] {
        let (mut seen, mut after) = (Vec::new(), String::new());
        loop {
            let page = acme
                .get(&format!("/v1/files?limit=2&order={order}{after}"))
                .await
                .body;
            let data = page["data"].as_array().unwrap();
            seen.extend(
                data.iter()
                    .map(|file| file["id"].as_str().unwrap().to_owned()),
            );
            if page["has_more"] == false {
                break;
            }
            assert_eq!(page["last_id"], data[1]["id"]);
            after = format!("&after={}", page["last_id"].as_str().unwrap());
        }
        assert_eq!(seen, want, "{order}");
    }
    let none = acme.get("/v1/files?purpose=batch_output").await.body;
    assert_eq!(none["data"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idempotency_key_makes_one_file_and_one_batch() {
    let (site, _worker) = Site::new(true).await;
    let acme = site.client("acme");
    let key = [("idempotency-key", "once")];
    let first = acme.upload_with("a", &key).await;
    let again = acme.upload_with("a", &key).await;
    assert_eq!((again.status, &again.body), (200, &first.body));
    let other = acme.upload_with("b", &key).await;
    assert_eq!((other.status, other.code()), (409, "request_key_conflict"));
    assert_eq!(
        acme.get("/v1/files").await.body["data"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let body = json!({"input_file_id": first.body["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"});
    let post = async |body: &Value| {
        acme.call(http::Method::POST, "/v1/batches", Some(body), &key)
            .await
    };
    let batch = post(&body).await;
    assert_eq!(post(&body).await.body["id"], batch.body["id"]);
    let mut changed = body.clone();
    changed["metadata"] = json!({"a": "b"});
    assert_eq!(post(&changed).await.code(), "request_key_conflict");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_line_has_one_result_and_bad_lines_say_where_they_are() {
    let (site, worker) = Site::new(true).await;
    let acme = site.client("acme");
    let text = [
        line("good", 3),
        String::new(),
        "{not json".to_owned(),
        line("much", 5000),
        line("wrong", 3).replace("chat/completions", "responses"),
        line("last", 2),
    ]
    .join("\r\n");
    let id = begin(&acme, &text, &json!({"metadata": {"job": "7"}})).await;
    let batch = wait_batch(&acme, &id, &["completed"]).await;
    assert_eq!(
        batch["request_counts"],
        json!({"total": 5, "completed": 2, "failed": 3})
    );
    assert_eq!(batch["metadata"], json!({"job": "7"}));
    assert_eq!(batch["usage"]["output_tokens"], 5);
    let output = results(&acme, &batch["output_file_id"]).await;
    assert_eq!(output.keys().collect::<Vec<_>>(), ["good", "last"]);
    let good = &output["good"];
    assert_eq!(good["response"]["status_code"], 200);
    assert_eq!(
        good["response"]["body"]["choices"][0]["message"]["content"],
        " 1 2 3"
    );
    assert_eq!(good["error"], Value::Null);
    let run = good["response"]["request_id"].as_str().unwrap();
    assert_eq!(
        acme.get(&format!("/runs/{run}")).await.body["status"],
        "completed"
    );
    let errors = results(&acme, &batch["error_file_id"]).await;
    assert_eq!(
        errors.keys().collect::<Vec<_>>(),
        ["(none)", "much", "wrong"]
    );
    assert_eq!(errors["(none)"]["error"]["line"], 3);
    assert_eq!(errors["wrong"]["error"]["line"], 5);
    assert_eq!(errors["much"]["response"]["status_code"], 413);
    assert_eq!(
        errors["much"]["response"]["body"]["error"]["code"],
        "output_too_long"
    );
    assert!(
        worker.submits().iter().all(|submit| submit.priority == 2),
        "behind interactive work"
    );
    let file = acme
        .get(&format!(
            "/v1/files/{}",
            batch["output_file_id"].as_str().unwrap()
        ))
        .await;
    assert_eq!(file.body["purpose"], "batch_output");
    site.assert_settled("acme").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_whose_lines_cannot_be_told_apart_fails_before_it_begins() {
    let (site, worker) = Site::new(true).await;
    let acme = site.client("acme");
    let text = [line("a", 1), line("b", 1), line("a", 1)].join("\n");
    let id = begin(&acme, &text, &json!({})).await;
    let batch = wait_batch(&acme, &id, &["failed"]).await;
    assert_eq!(batch["errors"]["data"][0]["code"], "duplicate_custom_id");
    assert_eq!(batch["errors"]["data"][0]["line"], 3);
    assert_eq!(worker.submits().len(), 0);
    let empty = begin(&acme, " \n\n", &json!({})).await;
    let batch = wait_batch(&acme, &empty, &["failed"]).await;
    assert_eq!(batch["errors"]["data"][0]["code"], "empty_file");
    for (field, value, code) in [
        ("endpoint", json!("/v1/embeddings"), "unsupported_parameter"),
        ("completion_window", json!("never"), "invalid_request"),
        ("input_file_id", json!("file-x"), "file_not_found"),
    ] {
        let mut body = json!({"input_file_id": "file-x", "endpoint": "/v1/chat/completions", "completion_window": "24h"});
        body[field] = value;
        assert_eq!(
            acme.post("/v1/batches", &body).await.code(),
            code,
            "{field}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_batch_keeps_what_is_done_and_an_expired_one_too() {
    let (site, worker) = Site::new(false).await;
    let acme = site.client("acme");
    for (more, want, code) in [
        (json!({}), "cancelled", "batch_cancelled"),
        (
            json!({"completion_window": "2s"}),
            "expired",
            "batch_expired",
        ),
    ] {
        let id = begin(&acme, &lines(12), &more).await;
        // Eight are in work; they get their end, and eight more are begun at most.
        wait_for("lines in work", || worker.held() >= 4).await;
        worker.generate(3);
        let path = format!("/v1/batches/{id}");
        for _ in 0..1000 {
            if acme.get(&path).await.body["request_counts"]["completed"].as_u64() >= Some(4) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if want == "cancelled" {
            let reply = acme.post(&format!("{path}/cancel"), &json!({})).await;
            assert_eq!(reply.body["status"], "cancelling", "{}", reply.text);
        }
        let batch = wait_batch(&acme, &id, &[want]).await;
        let done = batch["request_counts"]["completed"].as_u64().unwrap();
        assert!((4..12).contains(&done), "{batch}");
        let output = results(&acme, &batch["output_file_id"]).await;
        let errors = results(&acme, &batch["error_file_id"]).await;
        assert_eq!(output.len() as u64, done);
        assert_eq!(output.len() + errors.len(), 12);
        assert!(
            errors.values().all(|error| error["error"]["code"] == code),
            "{errors:?}"
        );
        let names: BTreeSet<&String> = output.keys().chain(errors.keys()).collect();
        assert_eq!(names.len(), 12, "one result for each line");
        let again = acme.post(&format!("{path}/cancel"), &json!({})).await;
        assert_eq!(again.status, if want == "cancelled" { 200 } else { 400 });
    }
    site.assert_settled("acme").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_takes_no_more_than_half_of_what_its_tenant_may_run_at_once() {
    let mut limited = tenant("acme");
    limited.limits.concurrent_runs = Some(4);
    let (site, worker) = Site::with(false, vec![limited]).await;
    let acme = site.client("acme");
    let id = begin(&acme, &lines(6), &json!({})).await;
    wait_for("lines in work", || worker.held() == 2).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(worker.held(), 2);
    let now = acme.post("/inference", &crate::site::ask(3)).await;
    assert_eq!(now.status, 202, "interactive work goes on: {}", now.text);
    for _ in 0..2000 {
        worker.generate(3);
        if acme.get(&format!("/v1/batches/{id}")).await.body["status"] == "completed" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let batch = wait_batch(&acme, &id, &["completed"]).await;
    assert_eq!(batch["request_counts"]["completed"], 6);
}

/// The first gateway dies in the middle, again and again; the last one ends the batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_goes_on_with_a_batch_and_runs_no_line_twice() {
    const LINES: u32 = 30;
    let mut folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("store"), Engine::default()).unwrap();
    let worker = Arc::new(FakeWorker::start(folder.path(), "w0", DIGEST, true));
    let (given, batch) = life(folder, Arc::clone(&store), |site| async move {
        site.wait_served().await;
        let batch = begin(&site.client("acme"), &lines(LINES), &json!({})).await;
        (site, batch)
    })
    .await;
    folder = given;
    for done in [0, 3, 9, 17, 26] {
        let id = batch.clone();
        let (given, ()) = life(folder, Arc::clone(&store), move |site| async move {
            let acme = site.client("acme");
            for _ in 0..4000 {
                let now = acme.get(&format!("/v1/batches/{id}")).await.body;
                if now["request_counts"]["completed"].as_u64() >= Some(done) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            (site, ())
        })
        .await;
        folder = given;
    }
    let theirs = Arc::clone(&worker);
    let (_folder, ()) = life(folder, store, move |site| async move {
        let acme = site.client("acme");
        let batch = wait_batch(&acme, &batch, &["completed"]).await;
        let errors = results(&acme, &batch["error_file_id"]).await;
        assert_eq!(
            batch["request_counts"],
            json!({"total": LINES, "completed": LINES, "failed": 0}),
            "{errors:?}"
        );
        let output = results(&acme, &batch["output_file_id"]).await;
        assert_eq!(output.len(), LINES as usize);
        let runs: BTreeSet<&str> = output
            .values()
            .map(|record| record["response"]["request_id"].as_str().unwrap())
            .collect();
        assert_eq!(runs.len(), LINES as usize);
        let usage = site.assert_settled("acme").await;
        assert_eq!(
            usage["byModel"][0]["runs"]["completed"], LINES,
            "billed once: {usage}"
        );
        let submitted: BTreeSet<Vec<u8>> = theirs
            .submits()
            .iter()
            .map(|submit| submit.run.to_vec())
            .collect();
        assert_eq!(submitted.len(), LINES as usize);
        (site, ())
    })
    .await;
}

/// Two gateways of one store: one works on the batch, the other takes over when it dies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_gateways_of_one_store_write_each_result_once() {
    const LINES: u32 = 24;
    let folder = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("store"), Engine::default()).unwrap();
    let worker = FakeWorker::start(folder.path(), "w0", DIGEST, true);
    let one = snapshot(folder.path(), vec![tenant("acme")], &["w0"]);
    let two = snapshot(other.path(), vec![tenant("acme")], &["w1"]);
    let second_worker = FakeWorker::start(other.path(), "w1", DIGEST, true);
    let first = Site::on(folder, Arc::clone(&store), one, config()).await;
    let second = Site::on(other, store, two, config()).await;
    first.wait_served().await;
    second.wait_served().await;
    let acme = first.client("acme");
    let mut ids = Vec::new();
    for _ in 0..4 {
        ids.push(begin(&acme, &lines(LINES), &json!({})).await);
    }
    for id in &ids {
        let batch = wait_batch(&second.client("acme"), id, &["completed"]).await;
        assert_eq!(batch["request_counts"]["completed"], LINES);
        assert_eq!(
            results(&acme, &batch["output_file_id"]).await.len(),
            LINES as usize
        );
    }
    let all = worker.submits().len() + second_worker.submits().len();
    assert_eq!(all, 4 * LINES as usize);
    let usage = first.assert_settled("acme").await;
    assert_eq!(usage["byModel"][0]["runs"]["completed"], 4 * LINES);
}

/// A queue in which nobody waits for long.
fn impatient(folder: &std::path::Path) -> weir_gateway::Snapshot {
    let mut snapshot = snapshot(folder, vec![tenant("acme")], &["w0"]);
    for queue in &mut snapshot.pools[0].queues {
        queue.max_wait_ms = 150;
    }
    snapshot
}

async fn expired_runs(client: &Client, at_least: u64) {
    for _ in 0..2000 {
        let usage = client.get("/usage").await.body;
        if usage["byModel"][0]["runs"]["expired"].as_u64() >= Some(at_least) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("no run waited too long");
}

/// Lines wait longer than the queue allows: their runs end, others are begun for them, also by a successor, and each line has one result.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_whose_run_waited_too_long_is_begun_again_and_has_one_result() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("store"), Engine::default()).unwrap();
    let worker = Arc::new(FakeWorker::start(folder.path(), "w0", DIGEST, false));
    worker.max_running(1);
    let theirs = Arc::clone(&worker);
    let (folder, batch) = life(folder, Arc::clone(&store), move |site| async move {
        site.wait_served().await;
        let acme = site.client("acme");
        for _ in 0..2 {
            acme.post("/inference", &crate::site::ask(50)).await;
        }
        wait_for("every seat to be taken", || theirs.held() == 2).await;
        site.gateway.apply(impatient(site.folder.path()));
        let batch = begin(&acme, &lines(2), &json!({})).await;
        expired_runs(&acme, 3).await;
        (site, batch)
    })
    .await;
    let theirs = Arc::clone(&worker);
    let (_folder, ()) = life(folder, store, move |site| async move {
        site.gateway.apply(impatient(site.folder.path()));
        let acme = site.client("acme");
        expired_runs(&acme, 5).await;
        for _ in 0..2000 {
            theirs.generate(50);
            if acme.get(&format!("/v1/batches/{batch}")).await.body["status"] == "completed" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let done = wait_batch(&acme, &batch, &["completed"]).await;
        let counts = json!({"total": 2, "completed": 2, "failed": 0});
        assert_eq!(done["request_counts"], counts, "{done}");
        assert_eq!(results(&acme, &done["output_file_id"]).await.len(), 2);
        site.assert_settled("acme").await;
        (site, ())
    })
    .await;
}

/// The window ends while nobody works on the batch: the run that a line has by then is found, whichever it is, and ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_ends_the_run_that_a_line_has_and_not_the_one_it_had_first() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("store"), Engine::default()).unwrap();
    let worker = Arc::new(FakeWorker::start(folder.path(), "w0", DIGEST, false));
    worker.max_running(1);
    let theirs = Arc::clone(&worker);
    let begun = std::time::Instant::now();
    let (folder, batch) = life(folder, Arc::clone(&store), move |site| async move {
        site.wait_served().await;
        let acme = site.client("acme");
        for _ in 0..2 {
            acme.post("/inference", &crate::site::ask(50)).await;
        }
        wait_for("every seat to be taken", || theirs.held() == 2).await;
        site.gateway.apply(impatient(site.folder.path()));
        let batch = begin(&acme, &lines(1), &json!({"completion_window": "2s"})).await;
        expired_runs(&acme, 1).await;
        let before = theirs.submits().len();
        theirs.generate(50);
        wait_for("the line's run on the worker", || {
            theirs.submits().len() > before
        })
        .await;
        (site, batch)
    })
    .await;
    tokio::time::sleep(Duration::from_millis(2_100).saturating_sub(begun.elapsed())).await;
    let (_folder, ()) = life(folder, store, move |site| async move {
        let acme = site.client("acme");
        let done = wait_batch(&acme, &batch, &["expired"]).await;
        let errors = results(&acme, &done["error_file_id"]).await;
        assert_eq!(
            errors["line-0"]["error"]["code"], "batch_expired",
            "{errors:?}"
        );
        // Nothing of it goes on.
        let usage = site.assert_settled("acme").await;
        assert_eq!(usage["byModel"][0]["runs"]["cancelled"], 1, "{usage}");
        (site, ())
    })
    .await;
}
