//! A store that is away: for every gateway, or for one of two.

use std::time::{Duration, Instant};

use serde_json::json;
use weir_e2e::postgres::Stop;
use weir_e2e::proxy::{Fate, Judge};
use weir_e2e::{Client, Event, Seeded, wait_for};

use crate::fleet::Fleet;
use crate::stand::{assert_whole, body, slow, text};

fn everything_arrives(_: u64) -> Judge {
    Box::new(|_| Fate::Arrives)
}

fn fleet(test: &str) -> Option<Fleet<'static>> {
    let mut seeds = Seeded::announced(test);
    let fleet = Fleet::with(seeds.number(), slow(), None, Some(everything_arrives))?;
    for gateway in &fleet.gateways {
        gateway.serves().unwrap();
    }
    Some(fleet)
}

/// All of a run's events, asked for until they are there to the end.
fn whole(client: &Client, run: &str) -> Vec<Event> {
    wait_for("the run to end", 60, || {
        let events = client.all_events(run, 0).ok()?;
        events.last()?.is_terminal().then_some(events)
    })
    .unwrap()
}

#[test]
fn while_the_store_is_away_runs_are_refused_by_name_and_streams_wait_and_then_go_on() {
    let Some(fleet) = fleet("outages") else {
        return;
    };
    let clients = [0, 1].map(|place| fleet.gateways[place].client("acme"));
    let unbroken = clients[1].stream(&body("unbroken", 200)).unwrap();
    let unbroken = unbroken.to_end().unwrap();
    let mut stream = clients[0].stream(&body("open", 200)).unwrap();
    let mut events = vec![];
    for _ in 0..12 {
        events.push(stream.next_event().unwrap().unwrap());
    }
    fleet.server.down(Stop::Fast).unwrap();
    for (client, gateway) in clients.iter().zip(&fleet.gateways) {
        let begun = Instant::now();
        let refused = client.post("/inference", &body("refused", 3)).unwrap();
        assert_eq!(
            (refused.status, refused.code()),
            (503, "store_unavailable"),
            "{refused:?}"
        );
        assert!(refused.header("retry-after").is_some(), "{refused:?}");
        assert!(begun.elapsed() < Duration::from_secs(15), "{begun:?}");
        let admin = Client::new(&gateway.admin, "");
        wait_for("readiness to turn false", 15, || {
            let reply = admin.get("/readyz").ok()?;
            (reply.status == 503).then_some(())
        })
        .unwrap();
    }
    fleet.server.up().unwrap();
    for (client, gateway) in clients.iter().zip(&fleet.gateways) {
        let admin = Client::new(&gateway.admin, "");
        wait_for("readiness to return", 30, || {
            let reply = admin.get("/readyz").ok()?;
            (reply.status == 200).then_some(())
        })
        .unwrap();
        let taken = wait_for("runs to be taken again", 30, || {
            let reply = client.post("/inference", &body("refused", 3)).ok()?;
            (reply.status < 300).then_some(reply)
        });
        taken.unwrap();
    }
    // The stream that was open goes on where it stood, or ends without an end, which means: resume.
    while let Ok(Some(event)) = stream.next_event() {
        events.push(event);
    }
    let run = events[0].json()["runId"].as_str().unwrap().to_owned();
    if !events.last().unwrap().is_terminal() {
        let rest = clients[0].events(&run, events.len() as u64).unwrap();
        events.extend(rest.to_end().unwrap());
    }
    assert_whole(&events, "completed");
    assert_eq!(text(&events), text(&unbroken), "as without an outage");
    assert_eq!(whole(&clients[1], &run), events, "the same at the other");
    let (found, finished, _) = fleet.judge(Duration::from_mins(1));
    assert!(found.is_empty(), "{found:#?}");
    finished.unwrap();
}

#[test]
fn a_gateway_that_alone_cannot_reach_the_store_loses_its_runs_to_the_other_and_cannot_harm_them() {
    let Some(fleet) = fleet("one away") else {
        return;
    };
    let clients = [0, 1].map(|place| fleet.gateways[place].client("acme"));
    let unbroken = clients[1].stream(&body("unbroken", 400)).unwrap();
    let unbroken = unbroken.to_end().unwrap();
    let mut stream = clients[0].stream(&body("moves", 400)).unwrap();
    let mut events = vec![];
    for _ in 0..12 {
        events.push(stream.next_event().unwrap().unwrap());
    }
    let run = events[0].json()["runId"].as_str().unwrap().to_owned();
    fleet.ways[0].hold();
    // It ends at the other gateway while its own stands still.
    let at_b = whole(&clients[1], &run);
    assert_whole(&at_b, "completed");
    assert_eq!(text(&at_b), text(&unbroken), "as without an outage");
    assert_eq!(at_b[..events.len()], events[..], "it goes on where it was");
    fleet.ways[0].open();
    let at_a = whole(&clients[0], &run);
    assert_eq!(at_a, at_b, "the one that was away has the same");
    // The stream that was open shows nothing else; it may end without an end, which means: resume.
    while let Ok(Some(event)) = stream.next_event() {
        events.push(event);
    }
    assert_eq!(events[..], at_b[..events.len()]);
    let usage = clients[0].get("/usage").unwrap().body;
    assert_eq!(
        (&usage["consistent"], &usage["liveRuns"]),
        (&json!(true), &json!(0)),
        "{usage}"
    );
    let (found, finished, _) = fleet.judge(Duration::from_mins(1));
    assert!(found.is_empty(), "{found:#?}");
    finished.unwrap();
}
