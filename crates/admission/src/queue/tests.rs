use super::*;

const SOME: Capacity = Capacity {
    seats: 1,
    kv_tokens: 1_000_000,
};
const NONE: Capacity = Capacity {
    seats: 0,
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
