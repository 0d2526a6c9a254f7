use super::*;

fn worker(id: u64) -> WorkerView<'static> {
    WorkerView {
        id: WorkerId(id),
        digest: "sha256:a",
        running: 0,
        max_running: 8,
        max_batch_tokens: 512,
        waiting: 0,
        outstanding_prefill_tokens: 0,
        free_kv_tokens: 1_000_000,
        step_us: 10_000,
        last_progress_ms: 100_000,
        prefix_affinity_tokens: 0,
    }
}

struct Case {
    name: &'static str,
    /// Changes to workers 1 and 2, which are equal otherwise.
    given: fn(&mut WorkerView<'_>, &mut WorkerView<'_>),
    want: Option<u64>,
}

const CASES: [Case; 11] = [
    Case {
        name: "equal workers: the lower id",
        given: |_, _| {},
        want: Some(1),
    },
    Case {
        name: "more prefill outstanding is later",
        given: |one, _| one.outstanding_prefill_tokens = 4_000,
        want: Some(2),
    },
    Case {
        name: "equal prefill, fewer runs",
        given: |one, _| one.running = 3,
        want: Some(2),
    },
    Case {
        name: "no free seat is later than some prefill",
        given: |one, two| {
            (one.running, two.outstanding_prefill_tokens) = (8, 500);
        },
        want: Some(2),
    },
    Case {
        name: "no free memory is later than some prefill",
        given: |one, two| {
            (one.free_kv_tokens, two.outstanding_prefill_tokens) = (0, 500);
        },
        want: Some(2),
    },
    Case {
        name: "slower steps weigh",
        given: |one, two| {
            (one.step_us, two.step_us) = (40_000, 10_000);
            two.outstanding_prefill_tokens = 512;
        },
        want: Some(2),
    },
    Case {
        name: "a cached prefix beats a little less load",
        given: |one, two| {
            one.outstanding_prefill_tokens = 100;
            two.outstanding_prefill_tokens = 500;
            two.prefix_affinity_tokens = 960;
        },
        want: Some(2),
    },
    Case {
        name: "a cached prefix does not beat a long queue",
        given: |_, two| {
            two.outstanding_prefill_tokens = 60_000;
            two.prefix_affinity_tokens = 960;
        },
        want: Some(1),
    },
    Case {
        name: "no progress: excluded however idle it looks",
        given: |one, two| {
            one.last_progress_ms = 94_999;
            two.outstanding_prefill_tokens = 1_000_000;
        },
        want: Some(2),
    },
    Case {
        name: "another version: excluded",
        given: |one, _| one.digest = "sha256:b",
        want: Some(2),
    },
    Case {
        name: "nobody is left",
        given: |one, two| {
            (one.digest, two.last_progress_ms) = ("sha256:b", 0);
        },
        want: None,
    },
];

#[test]
fn runs_go_where_the_first_token_is_soonest() {
    let ask = Ask {
        digest: "sha256:a",
        prompt_tokens: 1_000,
        output_tokens: 100,
        now_ms: 100_000,
    };
    let mut failed = Vec::new();
    for case in CASES {
        let (mut one, mut two) = (worker(1), worker(2));
        (case.given)(&mut one, &mut two);
        for workers in [[one, two], [two, one]] {
            let got = route(&workers, &ask, &RoutePolicy::default()).map(|id| id.0);
            if got != case.want {
                failed.push((case.name, got));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn a_popular_prefix_costs_at_most_the_cap() {
    let policy = RoutePolicy::default();
    let ask = Ask {
        digest: "sha256:a",
        prompt_tokens: 100_000,
        output_tokens: 100,
        now_ms: 100_000,
    };
    // The whole prompt is cached on worker 2: worth two seconds of prefill, counted as half a second.
    let mut two = worker(2);
    two.prefix_affinity_tokens = 100_000;
    let chosen_at = |outstanding: u64| {
        let mut two = two;
        two.outstanding_prefill_tokens = outstanding;
        route(&[worker(1), two], &ask, &policy).map(|id| id.0)
    };
    // 25,600 tokens are 0.5 s at 512 tokens per 10 ms.
    assert_eq!(chosen_at(25_000), Some(2));
    assert_eq!(chosen_at(26_000), Some(1));
}
