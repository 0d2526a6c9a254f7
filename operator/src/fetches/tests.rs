use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

fn files(state: &str, done: u64, message: Option<&str>) -> Files {
    Files {
        state: state.to_owned(),
        done_bytes: done,
        total_bytes: 1_000_003,
        reason: (state == "failed").then(|| "ArtifactDenied".to_owned()),
        message: message.map(str::to_owned),
    }
}

fn progress(have: usize, others: &[Files]) -> Progress {
    let named = |(index, files): (usize, &Files)| (format!("w{index}"), files.clone());
    Progress {
        workers: have + others.len(),
        have,
        others: others.iter().enumerate().map(named).collect(),
    }
}

/// Status, reason and message of the condition, and whether files come.
fn told(given: &Progress) -> (String, bool) {
    let told = given.condition();
    let text = format!("{} {} {}", told.status, told.reason, told.message);
    (text, given.is_under_way())
}

#[test]
fn the_condition_says_how_far_the_slowest_worker_is_in_coarse_steps() {
    let under_way = [
        files("fetching", 900_000, None),
        files("fetching", 299_999, None),
    ];
    let busy = [files("fetching", 1, Some("status code 503"))];
    let failed = [
        files("fetching", 1, None),
        files("failed", 1, Some("s3://m may not be read")),
    ];
    let cases = [
        (
            progress(0, &[Files::default()]),
            "False Fetching 0 of 1 workers have every file; one has not begun",
            false,
        ),
        (
            progress(0, &under_way),
            "False Fetching 0 of 2 workers have every file; the slowest has 250000 of 1000003 bytes (25 %)",
            true,
        ),
        (
            progress(1, &busy),
            "False Fetching 1 of 2 workers have every file; the slowest has 0 of 1000003 bytes (0 %); trying again: status code 503",
            false,
        ),
        (
            progress(0, &failed),
            "False ArtifactDenied w1 tries again: s3://m may not be read",
            true,
        ),
        (
            progress(3, &[]),
            "True InCache 3 of 3 workers have every file",
            false,
        ),
    ];
    for (given, text, is_under_way) in cases {
        assert_eq!(told(&given), (text.to_owned(), is_under_way));
    }
}

#[test]
fn bytes_within_a_part_are_no_news() {
    let at = |done| files("fetching", done, None).told();
    assert_eq!(at(100_001), at(149_000));
    assert_ne!(at(149_000), at(151_000));
}

fn pod(name: &str, ip: &str, ready: &str, cache: &str) -> Pod {
    let id = VersionId::new(2, "sha256:aa");
    let (labels, annotations) = (
        names::labels("tiny", &id, "small"),
        names::annotations("tiny", &id),
    );
    serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"containers": [], "volumes": [{"name": cache, "emptyDir": {}}]},
        "status": {"phase": "Running", "podIP": ip, "conditions": [{"type": "Ready", "status": ready}]},
    }))
    .unwrap()
}

/// A worker's admin port that answers everything with this page.
async fn worker(ip: &str, page: Value) {
    let listener = tokio::net::TcpListener::bind((ip, ADMIN_PORT))
        .await
        .unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut asked = [0; 1024];
            let read = stream.read(&mut asked).await.unwrap_or(0);
            assert!(asked[..read].starts_with(b"GET /files "));
            let body = page.to_string();
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
}

#[tokio::test]
async fn workers_that_fetch_are_asked_until_they_are_ready_and_news_asks_for_a_look() {
    let (reader, mut writer) = kube::runtime::reflector::store();
    let ip = "127.77.3.1";
    worker(
        ip,
        json!({"state": "fetching", "doneBytes": 60, "totalBytes": 100, "receivedBytes": 9, "reason": null, "message": null}),
    )
    .await;
    let add = |writer: &mut kube::runtime::reflector::store::Writer<Pod>, pod| {
        writer.apply_watcher_event(&kube::runtime::watcher::Event::Apply(pod));
    };
    add(&mut writer, pod("a", ip, "False", CACHE));
    add(
        &mut writer,
        pod("mounted", "127.77.3.2", "False", "artifact"),
    );
    let agenda = Agenda::default();
    let fetches = Fetches::new(reader, agenda.clone());
    let id = VersionId::new(2, "sha256:aa");
    assert_eq!(fetches.of("other", &id), None);
    fetches.ask().await;
    let seen = fetches.of("tiny", &id).unwrap();
    assert_eq!((seen.workers, seen.have), (1, 0));
    assert_eq!(seen.others["a"].done_bytes, 60);
    let waiting = |agenda: &Agenda| agenda.with(|queue| queue.len());
    assert_eq!(waiting(&agenda), 1, "the model is looked at");
    add(&mut writer, pod("a", ip, "True", CACHE));
    assert_eq!(fetches.of("tiny", &id).unwrap().have, 1);
}
