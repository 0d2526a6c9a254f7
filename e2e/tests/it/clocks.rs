//! Clocks that jump and clocks that differ: nothing ends early, nothing is settled twice, no window is passed.

use std::time::Duration;

use serde_json::json;
use weir_e2e::load::Load;
use weir_e2e::preload::Preload;
use weir_e2e::{RandomModel, Seeded};

use crate::fleet::{Fault, Fleet};
use crate::stand::{Stand, assert_whole, body, judge, slow, under_load};

const HOUR_MS: i64 = 3_600_000;

#[test]
fn a_clock_that_jumps_by_an_hour_breaks_no_invariant_and_no_restart_after_it_does() {
    let mut random = Seeded::announced("clocks");
    let stand = Stand::new(RandomModel::default());
    let mut gateway = stand.gateway("a", "log", stand.address(), &json!({}));
    let preload = Preload::new(&stand.site.path().join("faults")).unwrap();
    gateway.environment = preload.environment().unwrap();
    let load = Load::new("random", 48, ["acme", "globex"]);
    let mut ahead = 0;
    for life in 0..6 {
        gateway.start(None).unwrap();
        let listen = gateway.listen.clone();
        let moments = [0; 3].map(|_| Duration::from_millis(40 + random.below(200)));
        under_load(&load, &listen, &mut random, || {
            for moment in moments {
                std::thread::sleep(moment);
                ahead = if ahead > 0 { -HOUR_MS } else { HOUR_MS };
                preload.set_clock(ahead).unwrap();
            }
            std::thread::sleep(moments[0]);
            if life % 2 == 0 {
                gateway.process.kill();
            }
        });
        if life % 2 == 1 {
            assert!(gateway.process.stop(60).unwrap().success());
        }
    }
    preload.set_clock(0).unwrap();
    gateway.start(None).unwrap();
    let much = judge(&load, &mut gateway);
    eprintln!("24 jumps: {much:?}");
    assert!(much.runs > 60 && much.tokens > 500, "{much:?}");
}

#[test]
fn a_deadline_is_an_interval_once_it_was_accepted() {
    let stand = Stand::new(slow());
    let mut gateway = stand.gateway("a", "log", stand.address(), &json!({}));
    let preload = Preload::new(&stand.site.path().join("faults")).unwrap();
    gateway.environment = preload.environment().unwrap();
    gateway.start(None).unwrap();
    gateway.serves().unwrap();
    let client = gateway.client("acme");
    // Ten minutes from now by the true clock.
    let now = std::process::Command::new("date")
        .args(["-u", "-d", "+10 minutes", "+%Y-%m-%dT%H:%M:%SZ"])
        .output()
        .unwrap();
    let deadline = String::from_utf8(now.stdout).unwrap();
    let mut long = body("long", 150);
    long["deadline"] = json!(deadline.trim());
    let mut stream = client.stream(&long).unwrap();
    let mut events = vec![];
    for ahead in [HOUR_MS, -HOUR_MS, HOUR_MS] {
        preload.set_clock(ahead).unwrap();
        for _ in 0..8 {
            events.push(stream.next_event().unwrap().unwrap());
        }
    }
    events.extend(stream.to_end().unwrap());
    assert_whole(&events, "completed");
    let usage = client.get("/usage").unwrap().body;
    assert_eq!(
        (&usage["consistent"], &usage["liveRuns"]),
        (&json!(true), &json!(0)),
        "{usage}"
    );
}

#[test]
fn gateways_whose_clocks_are_two_hours_apart_share_a_store_and_take_each_others_runs_over() {
    let mut random = Seeded::announced("clocks apart");
    let Some(mut fleet) = Fleet::start(random.number(), None) else {
        return;
    };
    let clocks = [0, 1].map(|place| {
        let file = fleet.site.path().join(format!("faults-{place}"));
        let preload = Preload::new(&file).unwrap();
        fleet.gateways[place].environment = preload.environment().unwrap();
        preload
    });
    fleet.suffer(Fault::Gateways).unwrap();
    for (clock, ahead) in clocks.iter().zip([HOUR_MS, -HOUR_MS]) {
        clock.set_clock(ahead).unwrap();
    }
    let faults = [
        Fault::Gateway(0),
        Fault::Adopted(1),
        Fault::Worker(Some(1)),
        Fault::Gateways,
        Fault::Gateway(1),
    ];
    for fault in faults {
        fleet.suffer(fault).unwrap();
    }
    let (found, finished, much) = fleet.judge(Duration::from_mins(1));
    assert!(found.is_empty(), "{:#?}", &found[..found.len().min(5)]);
    finished.unwrap();
    eprintln!("two hours apart: {much:?}");
    assert!(much.runs > 30, "{much:?}");
}
