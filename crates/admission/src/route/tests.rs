use super::*;

fn worker(id: u64) -> WorkerView {
    WorkerView {
        id: WorkerId(id),
        running: 0,
        max_running: 8,
        max_batch_tokens: 512,
        waiting: 0,
        outstanding_prefill_tokens: 0,
        free_kv_tokens: 1_000_000,
        pace: Pace::default(),
        step_us: 10_000,
        prefix_affinity_tokens: 0,
    }
}

/// Steps of so many us, and so many for each token in them.
fn pace(step_us: u64, token_us: u64) -> Pace {
    let mut pace = Pace::default();
    for (steps, tokens) in [(10, 5_000), (40, 40)] {
        pace.observe(steps, tokens, steps * step_us + tokens * token_us);
    }
    pace
}

struct Case {
    name: &'static str,
    /// Changes to workers 1 and 2, which are equal otherwise.
    given: fn(&mut WorkerView, &mut WorkerView),
    want: u64,
}

const CASES: [Case; 10] = [
    Case {
        name: "equal workers: the lower id",
        given: |_, _| {},
        want: 1,
    },
    Case {
        name: "more prefill outstanding is later",
        given: |one, _| one.outstanding_prefill_tokens = 4_000,
        want: 2,
    },
    Case {
        name: "equal prefill, fewer runs",
        given: |one, _| one.running = 3,
        want: 2,
    },
    Case {
        name: "no free seat is later than some prefill",
        given: |one, two| {
            (one.running, two.outstanding_prefill_tokens) = (8, 500);
        },
        want: 2,
    },
    Case {
        name: "no free memory is later than some prefill",
        given: |one, two| {
            (one.free_kv_tokens, two.outstanding_prefill_tokens) = (0, 500);
        },
        want: 2,
    },
    Case {
        name: "slower steps weigh",
        given: |one, two| {
            (one.step_us, two.step_us) = (40_000, 10_000);
            two.outstanding_prefill_tokens = 512;
        },
        want: 2,
    },
    Case {
        name: "a learned pace counts, whatever the recent step took",
        given: |one, two| {
            (one.pace, two.pace) = (pace(5_000, 50), pace(1_000, 10));
            (one.step_us, two.step_us) = (10, 99_000);
        },
        want: 2,
    },
    Case {
        name: "a cached prefix beats a little less load",
        given: |one, two| {
            one.outstanding_prefill_tokens = 100;
            two.outstanding_prefill_tokens = 500;
            two.prefix_affinity_tokens = 960;
        },
        want: 2,
    },
    Case {
        name: "a cached prefix does not beat a long queue",
        given: |_, two| {
            two.outstanding_prefill_tokens = 60_000;
            two.prefix_affinity_tokens = 960;
        },
        want: 1,
    },
    Case {
        name: "a cached prefix on a full worker does not beat a free one",
        given: |_, two| {
            two.running = 8;
            two.prefix_affinity_tokens = 960;
        },
        want: 1,
    },
];

const ASK: Ask = Ask {
    prompt_tokens: 1_000,
    output_tokens: 100,
};

#[test]
fn runs_go_where_the_first_token_is_soonest() {
    let mut failed = Vec::new();
    for case in CASES {
        let (mut one, mut two) = (worker(1), worker(2));
        (case.given)(&mut one, &mut two);
        for workers in [[one, two], [two, one]] {
            let got = route(&workers, &ASK, &RoutePolicy::default()).map(|r| r.worker.0);
            if got != Some(case.want) {
                failed.push((case.name, got));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(route(&[], &ASK, &RoutePolicy::default()), None);
}

#[test]
fn what_was_expected_is_said() {
    let mut two = worker(2);
    two.pace = pace(2_000, 100);
    two.prefix_affinity_tokens = 1_200;
    let routed = route(&[two], &ASK, &RoutePolicy::default()).unwrap();
    assert_eq!(routed.affinity_tokens, 1_000);
    // One step for the one token that is left of the prompt.
    assert!((2_000..=2_200).contains(&routed.predicted_us), "{routed:?}");
    two.prefix_affinity_tokens = 0;
    let routed = route(&[two], &ASK, &RoutePolicy::default()).unwrap();
    // Two steps of 512 tokens.
    assert!(
        (103_900..=104_100).contains(&routed.predicted_us),
        "{routed:?}"
    );
}

#[test]
fn a_popular_prefix_costs_at_most_the_cap() {
    let policy = RoutePolicy::default();
    let ask = Ask {
        prompt_tokens: 100_000,
        output_tokens: 100,
    };
    // The whole prompt is cached on worker 2: worth two seconds of prefill, counted as half a second.
    let chosen_at = |outstanding: u64| {
        let mut two = worker(2);
        two.prefix_affinity_tokens = 100_000;
        two.outstanding_prefill_tokens = outstanding;
        route(&[worker(1), two], &ask, &policy).map(|routed| routed.worker.0)
    };
    // 25,600 tokens are 0.5 s at 512 tokens per 10 ms.
    assert_eq!(chosen_at(25_000), Some(2));
    assert_eq!(chosen_at(26_500), Some(1));
}
