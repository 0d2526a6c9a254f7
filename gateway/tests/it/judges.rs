//! Services that judge outputs: what they have not let through is with nobody.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use weir_gateway::{Settings, Snapshot};
use weir_store::{Engine, open};

use crate::client::Event;
use crate::service::serve;
use crate::site::{DIGEST, Site, ask, config, snapshot, tenant, wait_for};
use crate::worker::FakeWorker;

fn with(folder: &std::path::Path, address: std::net::SocketAddr, failure: &str) -> Snapshot {
    let yaml = format!(
        "policies: [{{name: judge, version: 3, checker: {{url: 'http://{address}/', deadlineMs: 2000, onFailure: {failure}, phases: [After], everyTokens: 4}}}}]"
    );
    Snapshot {
        settings: Settings::from_yaml(&yaml).unwrap(),
        ..snapshot(folder, vec![tenant("acme")], &["w0"])
    }
}

async fn site(address: std::net::SocketAddr, failure: &str) -> (Site, FakeWorker) {
    let folder = tempfile::tempdir().unwrap();
    let worker = FakeWorker::start(folder.path(), "w0", DIGEST, false);
    let snapshot = with(folder.path(), address, failure);
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

/// Blocks what has the word, and remembers what it was asked.
async fn judge() -> (std::net::SocketAddr, Arc<Mutex<Vec<Value>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let address = serve(None, move |call| {
        let question: Value = serde_json::from_str(&call.body).unwrap();
        let is_bad = call.body.contains("forbidden");
        noted.lock().push(question);
        let action = if is_bad { "block" } else { "allow" };
        (200, json!({"action": action, "rule": "fruit"}).to_string())
    })
    .await;
    (address, asked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_output_waits_for_its_judge_and_ends_where_it_is_blocked() {
    let (address, asked) = judge().await;
    let (site, worker) = site(address, "Allow").await;
    let acme = site.client("acme");
    let mut stream = acme.stream("/inference", &ask(50)).await;
    wait_for("the run", || worker.held() == 1).await;
    worker.say(&["one", " two", " three"], false);
    // Accepted and started: three tokens are too few to ask about, and nobody has let them through.
    let mut seen = stream.take(2).await;
    assert_eq!(tokens(&seen), 0);
    worker.say(&[" four"], false);
    seen.extend(stream.take(4).await);
    assert_eq!(text(&seen), "one two three four");
    worker.say(&[" five", " for", "bidden", " six"], false);
    seen.extend(stream.rest().await);
    assert_eq!(text(&seen), "one two three four");
    let end = &seen.last().unwrap().data;
    assert_eq!(end["finishReason"], "content_filter", "{end}");
    assert_eq!(
        (tokens(&seen), &end["usage"]["outputTokens"]),
        (8, &json!(8))
    );
    wait_for("the cancellation", || worker.cancels() == 1).await;
    let run = seen[0].data["runId"].as_str().unwrap();
    let row = acme.get(&format!("/runs/{run}")).await;
    let want = json!([{"policy": "judge", "version": 3, "rule": "fruit", "phase": "after", "action": "block", "count": 1}]);
    assert_eq!(row.body["verdicts"], want, "{}", row.text);
    assert_eq!(acme.all_events(run, 0).await, seen);
    let asked = asked.lock().clone();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert_eq!(asked[1]["phase"], "after");
    // What was shown before goes with it: nothing hides in a cut.
    let content = asked[1]["messages"][0]["content"].as_str().unwrap();
    assert_eq!(content, "one two three four five forbidden six");
    site.assert_settled("acme").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_judge_that_fails_lets_everything_through_or_nothing() {
    for (failure, want, action) in [("Allow", "a b", "unchecked"), ("Block", "", "block")] {
        let address = serve(None, |_| (500, String::new())).await;
        let (site, worker) = site(address, failure).await;
        let acme = site.client("acme");
        let run = acme.post("/inference", &ask(50)).await.run();
        wait_for("the run", || worker.held() == 1).await;
        worker.say(&["a", " b"], true);
        let events = acme.all_events(&run, 0).await;
        assert_eq!(
            (text(&events).as_str(), tokens(&events)),
            (want, 2),
            "{failure}"
        );
        let row = acme.get(&format!("/runs/{run}")).await.body;
        assert_eq!(row["verdicts"][0]["action"], action, "{row}");
        assert_eq!(row["status"], "completed");
        wait_for("the worker to forget it", || worker.held() == 0).await;
        site.assert_settled("acme").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_a_judge_is_shown_once_by_a_successor() {
    let (address, asked) = judge().await;
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder.path().join("store"), Engine::default()).unwrap();
    let worker = Arc::new(FakeWorker::start(folder.path(), "w0", DIGEST, false));
    let (path, theirs, first) = (
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
            let snapshot = with(&path, address, "Block");
            let site = Site::on(tempfile::tempdir().unwrap(), first, snapshot, config()).await;
            site.wait_served().await;
            let acme = site.client("acme");
            let run = acme.post("/inference", &ask(50)).await.run();
            wait_for("the run", || theirs.held() == 1).await;
            theirs.say(&["a", " b", " c", " d", " e"], false);
            let mut stream = acme.events(&run, 0).await;
            assert_eq!(text(&stream.take(6).await), "a b c d");
            run
        });
        runtime.shutdown_timeout(std::time::Duration::from_secs(5));
        run
    })
    .await
    .unwrap();
    let snapshot = with(folder.path(), address, "Block");
    let site = Site::on(tempfile::tempdir().unwrap(), store, snapshot, config()).await;
    wait_for("the run to be attached", || worker.attaches() == 1).await;
    worker.say(&[" f"], true);
    let events = site.client("acme").all_events(&run, 0).await;
    assert_eq!(text(&events), "a b c d e f");
    let asked = asked.lock().clone();
    let last = asked.last().unwrap()["messages"][0]["content"].clone();
    assert_eq!(last, "a b c d e f", "the successor knows what was shown");
}

#[test]
fn policies_may_look_at_outputs_only_within_their_bounds() {
    let of = |more: &str| {
        let yaml = format!(
            "policies: [{{name: judge, checker: {{url: 'http://127.0.0.1:1/', deadlineMs: 10, onFailure: Block, {more}}}}}]"
        );
        Settings::from_yaml(&yaml)
            .map(|_| ())
            .map_err(|error| format!("{error:?}"))
    };
    assert!(of("phases: [Before, After]").is_ok());
    for every in ["everyTokens: 0", "everyTokens: 65"] {
        assert!(of(every).unwrap_err().contains("everyTokens"), "{every}");
    }
}
