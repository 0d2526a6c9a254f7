use super::*;

const SOME: Capacity = Capacity {
    seats: 1,
    total: 1,
    kv_tokens: 1_000_000,
};
const NONE: Capacity = Capacity {
    seats: 0,
    total: 1,
    kv_tokens: 1_000_000,
};

fn run(run: u32, tenant: &'static str, priority: Priority) -> Waiting<u32, &'static str> {
    Waiting {
        run,
        tenant,
        priority,
        prompt_tokens: 100,
        ceiling: 100,
        max_wait_ms: 10_000,
        deadline_ms: None,
        enqueued_at_ms: 0,
    }
}

fn queue(max_depth: u32) -> Admission<u32, &'static str> {
    Admission::new(Config {
        max_depth,
        ..Config::default()
    })
}

/// Runs in the order they go, one seat at a time.
fn drain(admission: &mut Admission<u32, &'static str>, now_ms: u64) -> Vec<u32> {
    let mut order = Vec::new();
    while let Some(decision) = admission.next(now_ms, &SOME) {
        match decision {
            Decision::Start(started) => order.push(started.run),
            Decision::Expired(expired) => panic!("run {} expired", expired.run),
        }
    }
    order
}

#[test]
fn urgent_runs_go_first_and_equals_in_order_of_arrival() {
    let mut a = queue(8);
    a.offer(run(1, "acme", Priority::Batch)).unwrap();
    a.offer(run(2, "acme", Priority::Standard)).unwrap();
    a.offer(run(3, "acme", Priority::Interactive)).unwrap();
    a.offer(run(4, "acme", Priority::Interactive)).unwrap();
    assert_eq!(a.next(0, &NONE), None);
    assert_eq!(drain(&mut a, 0), [3, 4, 2, 1]);
    assert_eq!(a.depths(), Depths::default());
}

fn depth_of(admission: &Admission<u32, &'static str>) -> u32 {
    admission.depths().total
}

#[test]
fn a_full_queue_sheds_the_least_urgent_for_a_more_urgent_one() {
    let mut a = queue(3);
    a.offer(run(1, "acme", Priority::Batch)).unwrap();
    a.offer(run(2, "globex", Priority::Batch)).unwrap();
    a.offer(run(3, "acme", Priority::Standard)).unwrap();
    let full = Refused::QueueFull {
        depth: 3,
        bound: 3,
        estimate_ms: 0,
    };
    assert_eq!(a.offer(run(4, "acme", Priority::Batch)), Err(full));
    let displaced = |a: &mut Admission<_, _>, id, priority| {
        a.offer(run(id, "acme", priority)).map(|o| o.displaced)
    };
    assert_eq!(displaced(&mut a, 5, Priority::Standard), Ok(Some(2)));
    assert_eq!(displaced(&mut a, 6, Priority::Interactive), Ok(Some(1)));
    assert_eq!(displaced(&mut a, 7, Priority::Interactive), Ok(Some(5)));
    assert_eq!(displaced(&mut a, 8, Priority::Standard), Err(full));
    assert_eq!(drain(&mut a, 0), [6, 7, 3]);
}

#[test]
fn priorities_and_classes_have_bounds_of_their_own() {
    let mut a: Admission<u32, &'static str> = Admission::new(Config {
        max_depth: 10,
        max_depth_per_priority: [10, 10, 2],
        max_depth_per_class: [10, 10, 1],
        ..Config::default()
    });
    let long = |id, priority| Waiting {
        prompt_tokens: 5_000,
        ..run(id, "acme", priority)
    };
    a.offer(run(1, "acme", Priority::Batch)).unwrap();
    a.offer(run(2, "acme", Priority::Batch)).unwrap();
    a.offer(long(3, Priority::Standard)).unwrap();
    a.offer(long(4, Priority::Interactive)).unwrap();
    let full = |depth, bound| {
        Err(Refused::QueueFull {
            depth,
            bound,
            estimate_ms: 0,
        })
    };
    assert_eq!(a.offer(run(5, "acme", Priority::Batch)), full(2, 2));
    assert_eq!(a.offer(long(5, Priority::Standard)), full(1, 1));
    assert!(a.offer(run(5, "acme", Priority::Standard)).is_ok());
    let depths = a.depths();
    assert_eq!((depths.total, depths.per_priority), (5, [1, 2, 2]));
    assert_eq!(depths.per_class, [[0, 0, 1], [1, 0, 1], [2, 0, 0]]);
}

#[test]
fn whoever_waited_too_long_expires_with_the_limit_it_met() {
    let mut a = queue(8);
    let patient = Waiting {
        max_wait_ms: 500,
        ..run(1, "acme", Priority::Standard)
    };
    let due = Waiting {
        deadline_ms: Some(300),
        ..run(2, "acme", Priority::Standard)
    };
    let ticket = a.offer(patient).unwrap().ticket;
    a.offer(due).unwrap();
    a.offer(run(3, "acme", Priority::Standard)).unwrap();
    assert_eq!(a.next_expiry_ms(), Some(300));
    assert_eq!(a.next(299, &NONE), None);
    let expired = |a: &mut Admission<u32, &'static str>| match a.next(600, &SOME) {
        Some(Decision::Expired(expired)) => Some((expired.run, expired.waited_ms, expired.why)),
        _ => None,
    };
    // Both are told before anybody starts, although there is a seat.
    assert_eq!(expired(&mut a), Some((2, 600, ExpiredWhy::Deadline)));
    assert_eq!(expired(&mut a), Some((1, 600, ExpiredWhy::MaxWait)));
    assert_eq!(drain(&mut a, 600), [3]);
    assert_eq!(a.cancel(ticket, 600), None);
    assert_eq!(a.next_expiry_ms(), None);
}

#[test]
fn a_cancelled_run_leaves_no_trace() {
    let mut a = queue(8);
    let ticket = a.offer(run(1, "acme", Priority::Batch)).unwrap().ticket;
    a.offer(run(2, "acme", Priority::Batch)).unwrap();
    assert_eq!(a.cancel(ticket, 0), Some(1));
    assert_eq!(a.cancel(ticket, 0), None);
    assert_eq!(drain(&mut a, 0), [2]);
    assert_eq!(depth_of(&a), 0);
}

#[test]
fn tenants_take_turns_by_tokens_not_by_runs() {
    let mut a = queue(64);
    // acme's runs are four times as large as globex's.
    for id in 0..8 {
        let large = Waiting {
            prompt_tokens: 700,
            ..run(id, "acme", Priority::Standard)
        };
        a.offer(large).unwrap();
    }
    for id in 100..116 {
        a.offer(run(id, "globex", Priority::Standard)).unwrap();
    }
    let order = drain(&mut a, 0);
    let globex = order[..10].iter().filter(|id| **id >= 100).count();
    assert_eq!(globex, 8, "{order:?}");
    // A tenant that was away has earned nothing by it: it is not given what the others had meanwhile (28 of its runs), and is
    // at most one large run behind.
    for id in 200..220 {
        a.offer(run(id, "acme", Priority::Standard)).unwrap();
        a.offer(run(id + 100, "initech", Priority::Standard))
            .unwrap();
    }
    let order = drain(&mut a, 0);
    let initech = order[..20].iter().filter(|id| **id >= 300).count();
    assert!((10..=12).contains(&initech), "{order:?}");
}

#[test]
fn a_tenants_long_prompts_do_not_hold_up_its_short_ones() {
    let mut a = queue(64);
    for id in 0..4 {
        let long = Waiting {
            prompt_tokens: 5_000,
            ..run(id, "acme", Priority::Standard)
        };
        a.offer(long).unwrap();
    }
    for id in 100..112 {
        a.offer(run(id, "acme", Priority::Standard)).unwrap();
    }
    let order = drain(&mut a, 0);
    assert_eq!(
        order,
        [
            100, 101, 102, 103, 0, 104, 105, 106, 107, 1, 108, 109, 110, 111, 2, 3
        ]
    );
}

#[test]
fn a_priority_that_got_nothing_for_long_goes_once_and_waits_again() {
    let mut a = queue(64);
    for id in 0..3 {
        a.offer(run(id, "acme", Priority::Batch)).unwrap();
        a.offer(run(10 + id, "acme", Priority::Interactive))
            .unwrap();
    }
    let mut started = |now_ms| match a.next(now_ms, &SOME) {
        Some(Decision::Start(started)) => started.run,
        other => panic!("{other:?}"),
    };
    assert_eq!(started(9_900), 10, "not yet");
    // Max wait is 10 s, and two levels take 10 s: aged to the top just before it expires.
    let mut a = Admission::new(Config {
        aging_ms: 1_000,
        ..Config::default()
    });
    for id in 0..3 {
        a.offer(run(id, "acme", Priority::Batch)).unwrap();
        a.offer(run(10 + id, "acme", Priority::Interactive))
            .unwrap();
    }
    let mut started = |now_ms| match a.next(now_ms, &SOME) {
        Some(Decision::Start(started)) => started.run,
        other => panic!("{other:?}"),
    };
    assert_eq!(started(1_999), 10);
    assert_eq!(started(2_000), 0, "two levels up");
    assert_eq!(started(2_001), 11, "its claim is used up");
    assert_eq!(started(4_000), 1);
    assert_eq!(started(4_000), 12);
    assert_eq!(started(4_000), 2, "nobody is more urgent any more");
}

#[test]
fn a_run_that_does_not_fit_is_passed_a_bounded_number_of_times() {
    let mut a = Admission::new(Config {
        max_passed: 3,
        ..Config::default()
    });
    let large = Waiting {
        prompt_tokens: 5_000,
        ..run(1, "acme", Priority::Standard)
    };
    a.offer(large).unwrap();
    for id in 10..20 {
        a.offer(run(id, "globex", Priority::Standard)).unwrap();
    }
    let small = Capacity {
        seats: 8,
        total: 8,
        kv_tokens: 1_000,
    };
    let passing = std::iter::from_fn(|| a.next(0, &small)).count();
    assert_eq!(passing, 3);
    let first = a.next(0, &SOME);
    assert!(matches!(first, Some(Decision::Start(started)) if started.run == 1));
}

/// 100 prompt tokens, and half of a ceiling of 100 made in 100 ms.
const HALF: Finished = Finished {
    prompt_tokens: 100,
    output_tokens: 50,
    ceiling: 100,
    service_ms: 100,
};

/// Forty runs ended on the one seat, which is taken now.
fn measured(a: &mut Admission<u32, &'static str>) {
    for turn in 1..=40 {
        a.observe_finished(&HALF, turn * 100);
    }
    assert_eq!(a.next(4_000, &NONE), None);
}

#[test]
fn an_estimate_is_nothing_before_a_measurement_and_then_refuses() {
    let mut a = queue(64);
    for id in 0..10 {
        let offered = a.offer(run(id, "acme", Priority::Standard)).unwrap();
        assert_eq!(offered.estimate_ms, 0);
    }
    measured(&mut a);
    // The ten came before anything was measured: they weigh nothing until others do.
    let at = |id, priority| Waiting {
        enqueued_at_ms: 4_000,
        ..run(id, "acme", priority)
    };
    let mut a = queue(64);
    measured(&mut a);
    for id in 0..10 {
        a.offer(at(id, Priority::Standard)).unwrap();
    }
    let urgent = a.estimate_ms(&"acme", Priority::Interactive, 100, 4_000);
    assert_eq!(urgent, 100, "nobody is as urgent");
    let standard = a.estimate_ms(&"acme", Priority::Standard, 100, 4_000);
    assert_eq!(standard, 1_100, "ten wait before it");
    let other = a.estimate_ms(&"globex", Priority::Standard, 100, 4_000);
    assert!(
        (200..=205).contains(&other),
        "of acme's one goes before it: {other}"
    );
    let impatient = Waiting {
        max_wait_ms: 1_099,
        ..at(20, Priority::Standard)
    };
    let refused = |is_late| Refused::DeadlineUnmeetable {
        estimate_ms: 1_100,
        service_ms: 100,
        is_late,
    };
    assert_eq!(a.offer(impatient), Err(refused(false)));
    // It would start in time and end 100 ms after that: 50 tokens of 2 ms.
    let due = |deadline_ms| Waiting {
        deadline_ms: Some(deadline_ms),
        ..at(21, Priority::Standard)
    };
    assert_eq!(a.offer(due(5_199)), Err(refused(true)));
    assert!(a.offer(due(5_200)).is_ok());
    // Free seats cost no wait.
    let free = Capacity {
        seats: 20,
        total: 20,
        ..SOME
    };
    a.next(4_000, &free);
    assert_eq!(a.estimate_ms(&"acme", Priority::Standard, 100, 4_000), 0);
}

#[test]
fn a_pool_that_gets_nothing_done_is_as_slow_as_it_is_silent() {
    let mut a = queue(64);
    measured(&mut a);
    let waiting = Waiting {
        enqueued_at_ms: 4_000,
        ..run(1, "acme", Priority::Standard)
    };
    a.offer(waiting).unwrap();
    let estimate =
        |a: &Admission<_, _>, now_ms| a.estimate_ms(&"acme", Priority::Standard, 100, now_ms);
    assert_eq!(estimate(&a, 4_000), 200);
    assert_eq!(estimate(&a, 4_100), 200, "as long as runs take");
    assert_eq!(estimate(&a, 7_000), 6_000);
    a.observe_tokens(1, 7_000);
    assert_eq!(estimate(&a, 7_000), 200, "it computes: runs are long now");
}

#[test]
fn tokens_tell_before_the_first_run_ends() {
    let mut a = queue(64);
    let four = Capacity {
        seats: 4,
        total: 4,
        ..SOME
    };
    for id in 0..5 {
        a.offer(run(id, "acme", Priority::Standard)).unwrap();
    }
    for seats in (1..=4).rev() {
        a.next(0, &Capacity { seats, ..four });
    }
    assert_eq!(a.next(0, &Capacity { seats: 0, ..four }), None);
    a.observe_tokens(0, 0);
    // Four seats make 400 tokens in a second: each takes 10 ms for one.
    a.observe_tokens(400, 1_000);
    let late = Waiting {
        enqueued_at_ms: 1_000,
        ..run(9, "acme", Priority::Standard)
    };
    a.offer(late).unwrap();
    let wait = a.estimate_ms(&"acme", Priority::Standard, 100, 1_000);
    // One of 106 units before it, at four seats (the fifth came before anything was known).
    assert!((250..=300).contains(&wait), "{wait}");
}

#[test]
fn lost_seats_count_at_once_and_memory_that_is_short_counts_by_and_by() {
    let mut a = queue(64);
    let room = |seats, total| Capacity {
        seats,
        total,
        ..SOME
    };
    for turn in 1..=40 {
        a.observe_finished(&HALF, turn * 100);
    }
    assert_eq!(a.next(4_000, &room(0, 8)), None);
    for id in 0..39 {
        let waiting = Waiting {
            enqueued_at_ms: 4_000,
            ..run(id, "acme", Priority::Standard)
        };
        a.offer(waiting).unwrap();
    }
    let estimate =
        |a: &Admission<_, _>, now_ms| a.estimate_ms(&"acme", Priority::Standard, 100, now_ms);
    assert_eq!(estimate(&a, 4_000), 500);
    assert_eq!(a.next(4_000, &room(0, 4)), None);
    assert_eq!(estimate(&a, 4_000), 1_000, "half of the workers are gone");
    // Eight seats again, of which only two are ever busy while 39 wait: there is no memory for more.
    let tight = Capacity {
        kv_tokens: 0,
        ..room(6, 8)
    };
    for at in (4_000..14_000).step_by(100) {
        a.observe_finished(&HALF, at);
        assert_eq!(a.next(at, &tight), None);
    }
    let estimate = estimate(&a, 14_000);
    assert!((1_600..=2_200).contains(&estimate), "{estimate}");
}

#[test]
fn a_tenant_that_is_ahead_stays_ahead_while_it_has_nothing_waiting() {
    let mut a = queue(64);
    let large = Waiting {
        prompt_tokens: 1_900,
        ..run(100, "globex", Priority::Standard)
    };
    a.offer(large).unwrap();
    for id in 0..20 {
        a.offer(run(id, "acme", Priority::Standard)).unwrap();
    }
    let mut two = || (0..2).filter_map(|_| a.next(0, &SOME)).count();
    assert_eq!(two(), 2);
    a.offer(run(101, "globex", Priority::Standard)).unwrap();
    let order = drain(&mut a, 0);
    // globex was given 2,000 tokens: as many as ten of acme's runs.
    let place = order.iter().position(|id| *id == 101);
    assert!((8..=10).contains(&place.unwrap()), "{order:?}");
}

#[test]
fn an_estimate_knows_the_turns_of_a_tenants_classes() {
    let mut a = queue(64);
    measured(&mut a);
    for id in 0..20 {
        let waiting = Waiting {
            enqueued_at_ms: 4_000,
            ..run(id, "acme", Priority::Standard)
        };
        a.offer(waiting).unwrap();
    }
    let wait = |prompt_tokens| a.estimate_ms(&"acme", Priority::Standard, prompt_tokens, 4_000);
    assert_eq!(wait(100), 2_100, "behind all of its class");
    assert!(
        wait(5_000) / 10 == 50,
        "four short ones go before each long one"
    );
}

#[test]
fn more_urgent_runs_that_keep_coming_take_their_part_first() {
    let mut a = queue(64);
    measured(&mut a);
    let batch = Waiting {
        enqueued_at_ms: 4_000,
        ..run(0, "acme", Priority::Batch)
    };
    a.offer(batch).unwrap();
    let alone = a.estimate_ms(&"acme", Priority::Batch, 100, 4_000);
    assert_eq!(alone, 200);
    // Five a second of 100 ms each, on one seat: half of it.
    for turn in 0..50 {
        let now_ms = 4_000 + turn * 200;
        let urgent = Waiting {
            enqueued_at_ms: now_ms,
            ..run(100, "globex", Priority::Interactive)
        };
        a.offer(urgent).unwrap();
        let started = a.next(now_ms, &SOME);
        assert!(matches!(started, Some(Decision::Start(s)) if s.run == 100));
        a.observe_finished(&HALF, now_ms + 100);
        assert_eq!(a.next(now_ms + 100, &NONE), None);
    }
    let crowded = a.estimate_ms(&"acme", Priority::Batch, 100, 13_900);
    assert!((350..=450).contains(&crowded), "{crowded}");
}

#[test]
fn nobody_takes_the_last_seats_from_those_who_have_none() {
    let mut a = queue(64);
    for id in 0..20 {
        a.offer(run(id, "greedy", Priority::Interactive)).unwrap();
    }
    // Ten seats, four of them reserved.
    let mut seats = 10;
    let mut start = |a: &mut Admission<_, _>| {
        let room = Capacity {
            seats,
            total: 10,
            kv_tokens: 1_000_000,
        };
        let decision = a.next(0, &room)?;
        seats -= 1;
        match decision {
            Decision::Start(started) => Some(started.run),
            Decision::Expired(expired) => panic!("run {} expired", expired.run),
        }
    };
    a.hold_back(4, BTreeMap::new());
    let taken = std::iter::from_fn(|| start(&mut a)).count();
    assert_eq!(taken, 6, "the greedy one leaves the reserve");
    a.offer(run(100, "modest", Priority::Batch)).unwrap();
    assert_eq!(
        start(&mut a),
        Some(100),
        "a less urgent one of another tenant goes at once"
    );
    assert_eq!(a.estimate_ms(&"modest", Priority::Batch, 1, 0), 0);
    assert_eq!(start(&mut a), None);
    // One of the greedy one's runs ends: its seat is its own again.
    a.hold_back(4, BTreeMap::from([("greedy", 2), ("modest", 1)]));
    assert!(
        start(&mut a).is_some(),
        "whoever has less than the reserve may use it"
    );
}
