//! Events whose retention is over: a cursor is told so and from where events are kept, and never skips what is gone.

use serde_json::json;
use weir_e2e::postgres::PostgresServer;
use weir_e2e::{RandomModel, wait_for};

use crate::stand::{Stand, assert_whole, body};

#[test]
fn a_cursor_into_events_that_are_gone_is_told_so_and_never_skips_them_on_a_disk() {
    gone("log");
}

#[test]
fn a_cursor_into_events_that_are_gone_is_told_so_and_never_skips_them_on_postgresql() {
    if weir_e2e::postgres::bin().is_none() {
        eprintln!("skipped: PostgreSQL is not installed (apt-get install postgresql)");
        return;
    }
    let server = PostgresServer::start().unwrap();
    gone(&server.database().unwrap());
}

fn gone(store: &str) {
    let stand = Stand::new(RandomModel::default());
    let mut gateway = stand.gateway("a", store, stand.address(), &json!({"retentionMs": 2_000}));
    gateway.start(None).unwrap();
    gateway.serves().unwrap();
    let client = gateway.client("acme");
    let stream = client.stream(&body("short", 12)).unwrap();
    let events = stream.to_end().unwrap();
    assert_whole(&events, "completed");
    let last = events.len() as u64;
    let run = events[0].json()["runId"].as_str().unwrap().to_owned();
    let read = |after: u64| client.get(&format!("/runs/{run}/events?after={after}"));
    // Whatever a cursor is given is what comes next, until all of it is refused.
    wait_for("the events to be gone", 90, || {
        let mut gone = 0;
        for after in [0, 1, last / 2, last - 1] {
            let reply = read(after).ok()?;
            match reply.status {
                200 => {
                    let text = reply.body.as_str().unwrap().to_owned();
                    // A stream whose events went after it was let begin ends at once; the next look is refused.
                    let first = text.lines().find_map(|line| line.strip_prefix("id: "));
                    let next = (after + 1).to_string();
                    assert!(first.is_none_or(|first| first == next), "{after}: {text}");
                }
                410 => {
                    let error = &reply.body["error"];
                    assert_eq!(reply.code(), "events_expired", "{reply:?}");
                    let kept = error["details"]["firstSequence"].as_u64();
                    assert!(kept.is_none_or(|first| first > after + 1), "{error}");
                    assert_eq!(error["details"]["lastSequence"], last, "{error}");
                    gone += 1;
                }
                _ => unreachable!("{reply:?}"),
            }
        }
        (gone == 4).then_some(())
    })
    .unwrap();
    let row = client.get(&format!("/runs/{run}")).unwrap().body;
    assert_eq!(
        (&row["status"], &row["lastSequence"]),
        (&json!("completed"), &json!(last)),
        "how it ended is still told: {row}"
    );
    let again = client.post("/inference", &body("short", 12)).unwrap();
    assert_eq!(
        (again.status, again.run_id()),
        (200, run.clone()),
        "its key is known"
    );
    let Err(refused) = client.stream(&body("short", 12)) else {
        unreachable!("a stream that would never say anything")
    };
    assert!(refused.to_string().contains("events_expired"), "{refused}");
    let usage = client.get("/usage").unwrap().body;
    assert_eq!(usage["consistent"], true, "{usage}");
    assert!(gateway.process.stop(60).unwrap().success());
    let dump = gateway.dump().unwrap();
    assert!(dump.runs[&run].expired, "the store says so too");
    assert!(!dump.events.contains_key(&run));
    let billed = dump.ledger.iter().any(|entry| entry.run == run);
    assert!(billed, "what was billed stays");
}
