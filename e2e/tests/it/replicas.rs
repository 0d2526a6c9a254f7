//! Two gateway processes on one PostgreSQL, and one worker between them.

use std::time::Instant;

use serde_json::json;
use weir_e2e::postgres::{PostgresServer, bin};
use weir_e2e::processes::{GatewayProcess, Plan, snapshot_tenant, write_snapshot};
use weir_e2e::{Client, RandomModel, Signal, Site, Tenant, Weir, send, wait_for};

use crate::stand::{assert_whole, body, text};

/// How long a stream may stand still when its gateway dies; `docs/durability.md` says 11 s, a busy machine takes longer.
const STILL_S: u64 = 40;

/// `weir up`, which has the worker, and `weir gateway` beside it.
struct Pair {
    server: PostgresServer,
    /// Kept for its folders.
    site: Site,
    a: Weir,
    b: GatewayProcess,
}

impl Pair {
    fn start() -> Option<Self> {
        if bin().is_none() {
            eprintln!("skipped: PostgreSQL is not installed (apt-get install postgresql)");
            return None;
        }
        let server = PostgresServer::start().unwrap();
        let url = server.database().unwrap();
        // Slow enough for a run to be met in the middle.
        let shape = RandomModel {
            hidden: 512,
            layers: 6,
            intermediate: 1536,
            ..RandomModel::default()
        };
        let tenant = Tenant {
            name: "acme",
            spec: json!({"windows": [{"period": "24h", "tokens": 100_000_000}], "limits": {"concurrentRuns": 2}}),
        };
        let site = Site::random(shape, &[tenant]).unwrap();
        let mut a = Weir::spawn(
            &site.manifests(),
            &site.data(),
            "127.0.0.1:0",
            &["--store", &url],
        )
        .unwrap();
        a.wait_ready().unwrap();
        let b = beside(&site, &a, &url);
        b.serves().unwrap();
        Some(Self { server, site, a, b })
    }
}

/// A gateway that serves the same as A, with A's worker.
fn beside(site: &Site, a: &Weir, store: &str) -> GatewayProcess {
    let line = std::fs::read(format!("/proc/{}/cmdline", a.worker_pids()[0])).unwrap();
    let words: Vec<String> = line
        .split(|byte| *byte == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    let after = |flag: &str| {
        let place = words.iter().position(|word| word == flag).unwrap();
        words[place + 1].clone()
    };
    let plan = Plan::at(site, a).unwrap();
    let limits = json!({"concurrentRuns": 2});
    let tenants = [snapshot_tenant("acme", 100_000_000, &limits).unwrap()];
    let workers = [(after("--name"), after("--listen"))];
    let workers = workers
        .each_ref()
        .map(|(name, at)| (name.as_str(), at.clone()));
    let snapshot = write_snapshot((site, &plan), "b", &tenants, &workers).unwrap();
    let mut gateway = GatewayProcess::new(site, "b", store, &snapshot).unwrap();
    gateway.start(None).unwrap();
    gateway
}

#[test]
fn a_run_of_one_gateway_is_followed_cancelled_and_counted_at_the_other() {
    let Some(pair) = Pair::start() else { return };
    let (a, b) = (pair.a.client("acme-dev-key"), pair.b.client("acme"));
    let run = a.post("/inference", &body("long", 1500)).unwrap().run_id();
    let mut at_a = a.events(&run, 0).unwrap();
    let mut at_b = b.events(&run, 0).unwrap();
    let mut seen = vec![];
    for _ in 0..8 {
        let (one, other) = (
            at_a.next_event().unwrap().unwrap(),
            at_b.next_event().unwrap().unwrap(),
        );
        assert_eq!(one, other, "the same bytes at both");
        seen.push(one);
    }
    // The same key at the other gateway joins; another run counts against one limit for both.
    let again = b.post("/inference", &body("long", 1500)).unwrap();
    assert_eq!((again.status, again.run_id()), (200, run.clone()));
    let second = b.post("/inference", &body("second", 1500)).unwrap();
    assert_eq!(second.status, 202, "{second:?}");
    for client in [&a, &b] {
        let third = client.post("/inference", &body("third", 10)).unwrap();
        assert_eq!(
            (third.status, third.code()),
            (429, "concurrency_limited"),
            "{third:?}"
        );
    }
    let begun = Instant::now();
    let cancelled = b.delete(&format!("/runs/{run}")).unwrap();
    assert_eq!(cancelled.status, 202, "{cancelled:?}");
    let rest = at_b.to_end().unwrap();
    assert_eq!(rest.last().unwrap().kind, "cancelled");
    eprintln!(
        "cancelled at the other gateway within {:?}",
        begun.elapsed()
    );
    seen.extend(rest);
    assert_whole(&seen, "cancelled");
    assert_eq!(b.all_events(&run, 0).unwrap(), seen);
    let second = second.run_id();
    a.delete(&format!("/runs/{second}")).unwrap();
    wait_for("the second run's end", 30, || {
        let row = a.get(&format!("/runs/{second}")).ok()?.body;
        (row["status"] == "cancelled").then_some(())
    })
    .unwrap();
    let usage = b.get("/usage").unwrap().body;
    assert_eq!(
        (&usage["consistent"], &usage["liveRuns"]),
        (&json!(true), &json!(0)),
        "{usage}"
    );
}

#[test]
fn a_stream_goes_on_at_the_other_gateway_when_its_own_is_killed() {
    let Some(mut pair) = Pair::start() else {
        return;
    };
    let (a, b) = (pair.a.client("acme-dev-key"), pair.b.client("acme"));
    let unbroken = {
        let run = b
            .post("/inference", &body("unbroken", 300))
            .unwrap()
            .run_id();
        b.all_events(&run, 0).unwrap()
    };
    assert_whole(&unbroken, "completed");
    let mut at_a = a.stream(&body("broken", 300)).unwrap();
    let first = at_a.next_event().unwrap().unwrap();
    let run = first.json()["runId"].as_str().unwrap().to_owned();
    let mut at_b = b.events(&run, 0).unwrap();
    let mut seen_at_a = vec![first];
    let mut seen = vec![];
    for _ in 0..20 {
        seen_at_a.push(at_a.next_event().unwrap().unwrap());
        seen.push(at_b.next_event().unwrap().unwrap());
    }
    send(pair.a.pid(), Signal::KILL);
    let killed = Instant::now();
    while let Ok(Some(event)) = at_a.next_event() {
        seen_at_a.push(event);
    }
    let mut still = std::time::Duration::ZERO;
    let mut last = Instant::now();
    while let Some(event) = at_b.next_event().unwrap() {
        still = still.max(last.elapsed());
        last = Instant::now();
        seen.push(event);
    }
    eprintln!(
        "the stream went on after at most {still:?}, and ended {:?} after the kill",
        killed.elapsed()
    );
    assert!(still.as_secs() < STILL_S, "it stood still for {still:?}");
    assert_whole(&seen, "completed");
    assert_eq!(
        seen[..seen_at_a.len()],
        seen_at_a[..],
        "what A showed is what B shows"
    );
    assert_eq!(
        text(&seen),
        text(&unbroken),
        "the same output as without a death"
    );
    assert_eq!(b.all_events(&run, 0).unwrap(), seen);
    let usage = b.get("/usage").unwrap().body;
    assert_eq!(
        (&usage["consistent"], &usage["liveRuns"]),
        (&json!(true), &json!(0)),
        "{usage}"
    );
    // Nobody else ends what the killed one has left behind.
    pair.a.kill().ok();
    drop((pair.server, pair.site));
}

#[test]
fn an_unkeyed_call_ends_with_its_gateway_and_not_at_its_ceiling() {
    let Some(mut pair) = Pair::start() else {
        return;
    };
    let address = pair.a.listen.clone();
    let b = pair.b.client("acme");
    let live = || {
        let usage = b.get("/usage").ok()?.body;
        usage["liveRuns"].as_u64()
    };
    // The run that showed that B serves is not the one to wait for.
    wait_for("no run", 30, || live().filter(|runs| *runs == 0)).unwrap();
    let call = std::thread::spawn(move || {
        let client = Client::new(&address, "acme-dev-key");
        let body = json!({"model": "random", "messages": [{"role": "user", "content": "count"}], "max_tokens": 1500, "ignore_eos": true});
        client.post("/v1/chat/completions", &body)
    });
    wait_for("the run to be live", 30, || {
        live().filter(|runs| *runs == 1)
    })
    .unwrap();
    send(pair.a.pid(), Signal::KILL);
    assert!(call.join().unwrap().is_err(), "its client is cut off");
    wait_for("its end", STILL_S, || live().filter(|runs| *runs == 0)).unwrap();
    let usage = b.get("/usage").unwrap().body;
    let model = &usage["byModel"][0];
    assert_eq!(model["runs"]["cancelled"], 1, "{usage}");
    assert!(model["outputTokens"].as_u64().unwrap() < 1400, "{usage}");
    pair.a.kill().ok();
}
