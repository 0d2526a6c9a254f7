//! A network between a gateway and its worker that is cut, stands still for a moment, or for good.

use std::time::{Duration, Instant};

use serde_json::json;
use weir_e2e::proxy::{Proxy, Target};
use weir_e2e::{Client, Event, EventStream, wait_for};

use crate::stand::{Stand, assert_whole, body, slow, text};

/// A gateway, its worker, and what is between them.
struct Apart {
    _stand: Stand,
    gateway: weir_e2e::processes::GatewayProcess,
    between: Proxy,
}

impl Apart {
    fn new() -> Self {
        let stand = Stand::new(slow());
        let between = Proxy::start(Target::Unix(stand.worker.socket.clone())).unwrap();
        let mut gateway = stand.gateway("a", "log", between.address.to_string(), &json!({}));
        gateway.start(None).unwrap();
        gateway.serves().unwrap();
        Self {
            _stand: stand,
            gateway,
            between,
        }
    }

    fn client(&self) -> Client {
        self.gateway.client("acme")
    }
}

fn some(stream: &mut EventStream, events: &mut Vec<Event>, count: usize) {
    for _ in 0..count {
        events.push(stream.next_event().unwrap().expect("a long run"));
    }
}

fn assert_settled(client: &Client) {
    let usage = client.get("/usage").unwrap().body;
    assert_eq!(
        (&usage["consistent"], &usage["liveRuns"]),
        (&json!(true), &json!(0)),
        "{usage}"
    );
}

#[test]
fn a_cut_or_a_standstill_of_the_network_to_a_worker_costs_a_stream_nothing_but_time() {
    let apart = Apart::new();
    let client = apart.client();
    let unbroken = client.stream(&body("unbroken", 200)).unwrap();
    let unbroken = unbroken.to_end().unwrap();
    assert_whole(&unbroken, "completed");
    // On a busy machine the worker's session may come back later than it has to.
    let mut attempts = (0..4).map(|attempt| broken(&apart, &format!("broken-{attempt}")));
    let events = attempts
        .find(|events| events.last().unwrap().kind == "completed")
        .expect("one of four goes on in time");
    assert_whole(&events, "completed");
    assert_eq!(text(&events), text(&unbroken), "as without a fault");
    let run = events[0].json()["runId"].as_str().unwrap().to_owned();
    assert_eq!(client.all_events(&run, 0).unwrap(), events);
    assert_settled(&client);
}

/// A stream whose worker is cut off three times and then stands still for a moment.
fn broken(apart: &Apart, key: &str) -> Vec<Event> {
    let mut events = vec![];
    let mut stream = apart.client().stream(&body(key, 200)).unwrap();
    some(&mut stream, &mut events, 10);
    for _ in 0..3 {
        apart.between.cut();
        apart.between.open();
        while let Some(event) = stream.next_event().unwrap() {
            events.push(event);
            if events.len() % 12 == 0 {
                break;
            }
        }
    }
    // Shorter than a worker may be silent.
    apart.between.hold();
    std::thread::sleep(Duration::from_secs(2));
    apart.between.open();
    while let Some(event) = stream.next_event().unwrap() {
        events.push(event);
    }
    events
}

#[test]
fn a_worker_that_cannot_be_reached_loses_its_runs_in_bounded_time_and_says_nothing_of_them_later() {
    let apart = Apart::new();
    let client = apart.client();
    let mut events = vec![];
    let mut stream = client.stream(&body("lost", 1_500)).unwrap();
    some(&mut stream, &mut events, 10);
    apart.between.hold();
    let held = Instant::now();
    events.extend(stream.to_end().unwrap());
    let took = held.elapsed();
    assert_whole(&events, "interrupted");
    // 10 s of silence and 2 s for a return; a busy machine takes longer.
    assert!(
        (Duration::from_secs(8)..Duration::from_secs(30)).contains(&took),
        "the end came after {took:?}"
    );
    apart.between.open();
    wait_for("the worker to take runs again", 60, || {
        let reply = client.post("/inference", &body("after", 3)).ok()?;
        let events = client.all_events(&reply.run_id(), 0).ok()?;
        (events.last()?.kind == "completed").then_some(())
    })
    .unwrap();
    let run = events[0].json()["runId"].as_str().unwrap().to_owned();
    assert_eq!(
        client.all_events(&run, 0).unwrap(),
        events,
        "what the worker computed meanwhile is not taken"
    );
    assert_settled(&client);
}
