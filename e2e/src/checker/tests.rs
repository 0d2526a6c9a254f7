//! Doctored histories: each check is shown to fail, by its letter.

use std::collections::BTreeSet;

use serde_json::json;

use super::*;

/// Three runs of two tenants: one completed and read twice, one interrupted, one still live.
struct World {
    history: Vec<Call>,
    dump: Dump,
    memory: Vec<u64>,
    rules: Rules,
}

fn event(id: u64, kind: &str, rest: serde_json::Value) -> Event {
    let mut data = rest;
    data["sequence"] = json!(id);
    Event {
        id,
        kind: kind.to_owned(),
        data: data.to_string(),
    }
}

fn log(tokens: &[&str], end: Option<&str>) -> Vec<Event> {
    let mut log = vec![
        event(1, "accepted", json!({})),
        event(2, "started", json!({})),
    ];
    for (text, id) in tokens.iter().zip(3..) {
        log.push(event(id, "delta", json!({"text": text, "tokens": 1})));
    }
    if let Some(end) = end {
        let made = tokens.len() as u64;
        let usage = json!({"outputTokens": made, "costMicros": 2 + 4 * made});
        log.push(event(log.len() as u64 + 1, end, json!({"usage": usage})));
    }
    log
}

fn row(tenant: &str, key: &str, status: &str, log: &[Event]) -> Row {
    Row {
        tenant: tenant.to_owned(),
        request_key: Some(key.to_owned()),
        status: status.to_owned(),
        prompt_tokens: 2,
        cached_tokens: 0,
        output_tokens: log.iter().map(tokens_of).sum(),
        reserved_tokens: 10,
        cost_micros: None,
        last_sequence: log.len() as u64,
        started: true,
        expired: false,
    }
}

fn call(tenant: &str, what: What, run: &str, events: &[Event]) -> Call {
    Call {
        connection: 1,
        tenant: tenant.to_owned(),
        what,
        begun_ms: 5,
        ended_ms: 25,
        status: 200,
        run: Some(run.to_owned()),
        body: None,
        events: events.to_vec(),
        complete: true,
    }
}

fn submit(key: &str) -> What {
    What::Submit {
        key: Some(key.to_owned()),
        payload: "same".to_owned(),
    }
}

#[expect(clippy::too_many_lines, reason = "one world, told in full")]
fn world() -> World {
    let (whole, part, live) = (
        log(&["a", "b", "c"], Some("completed")),
        log(&["a", "b"], Some("interrupted")),
        log(&["a"], None),
    );
    let mut dump = Dump::default();
    for (run, tenant, status, log) in [
        ("one", "acme", "completed", &whole),
        ("two", "acme", "interrupted", &part),
        ("three", "globex", "running", &live),
    ] {
        dump.runs
            .insert(run.to_owned(), row(tenant, run, status, log));
        dump.events.insert(run.to_owned(), log.clone());
        dump.keys
            .push((tenant.to_owned(), run.to_owned(), run.to_owned()));
        let made: u64 = log.iter().map(tokens_of).sum();
        if status == "running" {
            dump.reservations.push(Reservation {
                tenant: tenant.to_owned(),
                run: run.to_owned(),
                tokens: 10,
                micros: 50,
                accepted_at_ms: 70,
                periods_s: vec![60],
            });
        } else {
            dump.ledger.push(Entry {
                tenant: tenant.to_owned(),
                run: run.to_owned(),
                accepted_at_ms: 70,
                status: status.to_owned(),
                prompt_tokens: 2,
                cached_tokens: 0,
                output_tokens: made,
                cost_micros: 2 + 4 * made,
                periods_s: vec![60],
            });
        }
    }
    let window = |used_tokens, used_micros, reserved_tokens, reserved_micros| Window {
        period_s: 60,
        start_ms: 0,
        used_tokens,
        reserved_tokens,
        used_micros,
        reserved_micros,
    };
    for (tenant, live_runs, window) in [
        ("acme", 0, window(9, 24, 0, 0)),
        ("globex", 1, window(0, 0, 10, 50)),
    ] {
        let windows = vec![window];
        dump.accounts
            .insert(tenant.to_owned(), Account { live_runs, windows });
    }
    let mut usage = call("acme", What::Usage, "", &[]);
    usage.run = None;
    usage.body = Some(
        json!({"windows": [{"limitTokens": 100, "availableTokens": 80, "reservedTokens": 11, "usedTokens": 9}], "consistent": true}),
    );
    let again = What::Read {
        run: "one".to_owned(),
        after: 2,
    };
    let history = vec![
        call("acme", submit("one"), "one", &whole),
        call("acme", again, "one", &whole[2..]),
        call("acme", submit("two"), "two", &part[..3]),
        call("globex", submit("three"), "three", &live),
        usage,
    ];
    let limits = [("acme", 100), ("globex", 100)];
    World {
        history,
        dump,
        memory: vec![10, 20],
        rules: Rules {
            limits: limits.map(|(t, l)| ((t.to_owned(), 60), l)).into(),
            price: (1, 0, 4),
            deterministic: true,
            quiet: false,
            answer_within_ms: Some(1000),
            memory_bytes: Some(20),
            lost: vec!["two".to_owned()],
        },
    }
}

fn found(world: &World) -> Vec<Violation> {
    check(&world.history, &world.dump, &world.memory, &world.rules)
}

#[test]
fn a_world_in_order_passes() {
    assert_eq!(found(&world()), []);
}

type Doctor = fn(&mut World);

const CASES: &[(&str, char, Doctor)] = &[
    ("an account that does not add up", 'B', |w| {
        w.history[4].body.as_mut().unwrap()["windows"][0]["usedTokens"] = json!(10);
    }),
    ("an account that was overdrawn", 'B', |w| {
        let window = json!({"limitTokens": 100, "availableTokens": -1, "reservedTokens": 1, "usedTokens": 100});
        w.history[4].body = Some(json!({"windows": [window]}));
    }),
    ("more in use than the limit", 'B', |w| {
        w.rules.limits.insert(("globex".to_owned(), 60), 9);
    }),
    ("a reservation that the account forgot", 'B', |w| {
        w.dump.accounts.get_mut("globex").unwrap().windows[0].reserved_tokens = 0;
    }),
    ("a run billed beyond its reservation", 'B', |w| {
        w.dump.runs.get_mut("one").unwrap().reserved_tokens = 4;
    }),
    ("two runs for one key", 'U', |w| {
        let twin = w.dump.runs["one"].clone();
        w.dump.runs.insert("twin".to_owned(), twin);
    }),
    ("two answers for one key", 'U', |w| {
        let mut other = w.history[0].clone();
        other.run = Some("two".to_owned());
        w.history.push(other);
    }),
    ("another payload for a key", 'U', |w| {
        let mut other = w.history[0].clone();
        other.what = What::Submit {
            key: Some("one".to_owned()),
            payload: "another".to_owned(),
        };
        w.history.push(other);
    }),
    ("a repeat that was refused", 'U', |w| {
        let mut other = w.history[0].clone();
        (other.status, other.run, other.events) = (409, None, vec![]);
        w.history.push(other);
    }),
    ("a gap in the log", 'S', |w| {
        w.dump.events.get_mut("one").unwrap().remove(3);
    }),
    ("a sequence used twice", 'S', |w| {
        w.dump.events.get_mut("one").unwrap()[3].id = 3;
    }),
    ("a sequence seen twice", 'S', |w| {
        let twice = w.history[0].events[3].clone();
        w.history[0].events.insert(3, twice);
    }),
    ("an event missing in a stream", 'S', |w| {
        w.history[0].events.remove(3);
    }),
    ("a replay that begins too late", 'S', |w| {
        w.history[1].events.remove(0);
    }),
    ("a replay with other bytes", 'S', |w| {
        w.history[1].events[0].data.push(' ');
    }),
    ("an event after the end", 'S', |w| {
        let more = event(7, "delta", json!({"text": "d", "tokens": 1}));
        w.history[0].events.push(more);
    }),
    ("a text that began again", 'S', |w| {
        let again = log(&["a", "a", "b"], Some("completed"));
        w.history[0].events.clone_from(&again);
        w.history[1].events = again[2..].to_vec();
        w.dump.events.insert("one".to_owned(), again);
    }),
    ("a completed run whose worker was gone", 'S', |w| {
        w.rules.lost.push("one".to_owned());
    }),
    ("two ends", 'T', |w| {
        let end = event(7, "completed", json!({}));
        w.dump.events.get_mut("one").unwrap().push(end);
        w.dump.runs.get_mut("one").unwrap().last_sequence = 7;
    }),
    ("an end without its event", 'T', |w| {
        w.dump.events.get_mut("two").unwrap().pop();
        w.dump.runs.get_mut("two").unwrap().last_sequence = 4;
    }),
    ("two settlements", 'T', |w| {
        let again = w.dump.ledger[0].clone();
        w.dump.ledger.push(again);
    }),
    ("an end without settlement", 'T', |w| {
        w.dump.ledger.remove(0);
    }),
    ("a reservation that was kept", 'T', |w| {
        let mut kept = w.dump.reservations[0].clone();
        (kept.tenant, kept.run) = ("acme".to_owned(), "one".to_owned());
        w.dump.reservations.push(kept);
    }),
    ("a live run that holds nothing", 'T', |w| {
        w.dump.reservations.clear();
    }),
    ("an end that changed", 'T', |w| {
        let mut seen = call(
            "acme",
            What::Row {
                run: "two".to_owned(),
            },
            "two",
            &[],
        );
        seen.body = Some(json!({"status": "completed", "lastSequence": 5}));
        w.history.push(seen);
    }),
    ("a token that was not billed", 'L', |w| {
        w.dump.ledger[0].output_tokens -= 1;
    }),
    ("a token that was not logged", 'L', |w| {
        w.dump.runs.get_mut("one").unwrap().output_tokens += 1;
    }),
    ("a wrong price", 'L', |w| {
        w.dump.ledger[0].cost_micros += 1;
    }),
    ("an account that is not its ledger", 'L', |w| {
        w.dump.accounts.get_mut("acme").unwrap().windows[0].used_tokens += 1;
    }),
    ("a ledger found wrong by its owner", 'L', |w| {
        w.history[4].body.as_mut().unwrap()["consistent"] = json!(false);
    }),
    ("an acknowledged run that is gone", 'D', |w| {
        w.dump.runs.remove("two");
        w.dump.events.remove("two");
        w.dump.ledger.remove(1);
    }),
    ("an acknowledged event that is gone", 'D', |w| {
        w.dump.events.get_mut("three").unwrap().pop();
        w.dump.runs.get_mut("three").unwrap().last_sequence = 2;
        w.dump.runs.get_mut("three").unwrap().output_tokens = 0;
    }),
    ("a cancellation that was forgotten", 'D', |w| {
        let mut cancel = call(
            "acme",
            What::Cancel {
                run: "one".to_owned(),
            },
            "one",
            &[],
        );
        cancel.status = 202;
        cancel.body = Some(json!({"status": "cancelling"}));
        w.history.push(cancel);
        let mut later = call(
            "acme",
            What::Row {
                run: "one".to_owned(),
            },
            "one",
            &[],
        );
        (later.begun_ms, later.ended_ms) = (30, 40);
        later.body = Some(json!({"status": "running"}));
        w.history.push(later);
    }),
    ("a log without its run", 'D', |w| {
        w.dump.events.insert("ghost".to_owned(), log(&["a"], None));
    }),
    ("another tenant's run was read", 'I', |w| {
        let theirs = What::Row {
            run: "one".to_owned(),
        };
        w.history.push(call("globex", theirs, "one", &[]));
    }),
    ("another tenant's run was joined", 'I', |w| {
        w.history[3].run = Some("one".to_owned());
    }),
    ("a run that does not end", 'F', |w| {
        w.rules.quiet = true;
    }),
    ("an answer that took too long", 'F', |w| {
        w.history[0].ended_ms = 2000;
    }),
    ("memory beyond its bound", 'M', |w| {
        w.memory.push(21);
    }),
];

#[test]
fn each_check_fails_on_a_history_that_was_doctored_against_it() {
    let mut missed = Vec::new();
    for (name, letter, doctor) in CASES {
        let mut world = world();
        doctor(&mut world);
        let found = found(&world);
        if !found.iter().any(|violation| violation.invariant == *letter) {
            missed.push(format!("{name}: no {letter} in {found:?}"));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
    let letters: BTreeSet<char> = CASES.iter().map(|case| case.1).collect();
    assert_eq!(letters, "BDFILMSTU".chars().collect(), "a case for each");
}

#[test]
fn a_dump_is_read_line_by_line_and_a_record_without_its_fields_is_refused() {
    let text = r#"{"record":"run","runId":"one","tenant":"acme","requestKey":"k","status":"completed","promptTokens":2,"cachedTokens":0,"outputTokens":1,"reservedTokens":9,"costMicros":6,"lastSequence":3,"startedAtMs":7,"eventsExpired":false}
{"record":"events","runId":"one","events":[{"sequence":1,"kind":"accepted","data":"{}"}]}
{"record":"events","runId":"one","events":[{"sequence":2,"kind":"delta","data":"{\"tokens\":1}"}]}
{"record":"key","tenant":"acme","requestKey":"k","runId":"one"}
{"record":"from a later version"}
"#;
    let dump = Dump::parse(text).unwrap();
    assert_eq!(dump.events["one"].len(), 2);
    assert_eq!(dump.runs["one"].request_key.as_deref(), Some("k"));
    assert_eq!(dump.keys.len(), 1);
    let error = Dump::parse(r#"{"record":"ledger","tenant":"acme"}"#).unwrap_err();
    assert!(format!("{error:#}").contains("runId"), "{error:#}");
}
