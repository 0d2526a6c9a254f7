//! Seeded arrivals against a pool with a number of seats. A failure names its seed.

use weir_admission::{Config, Priority};

use crate::pool::{Pool, Random, run};

/// Tenant 0 sends eight times the tokens of the others, and everybody always has runs waiting.
#[test]
fn tenants_that_always_wait_get_equal_tokens() {
    for seed in 0..10 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let mut pool = Pool::new(Config::default(), 4);
        for at in 0..600 {
            pool.advance_to(at * 100);
            for tenant in 0..3 {
                let depth = |pool: &Pool| {
                    let own = |id: &&u32| pool.runs[id].tenant == tenant;
                    pool.waiting.keys().filter(own).count()
                };
                while depth(&pool) < 6 {
                    let mut run = run(&mut random, tenant, Priority::Standard);
                    // The ceiling is what is charged before anything is known: make it true.
                    run.output_tokens = run.ceiling;
                    pool.offer(run);
                }
            }
        }
        let given: Vec<u64> = (0..3).map(|tenant| pool.tokens_started(tenant)).collect();
        let (least, most) = (given.iter().min().unwrap(), given.iter().max().unwrap());
        // Twice the largest run, as start-time fair queueing promises.
        assert!(most - least <= 2 * 3_240, "seed {seed}: {given:?}");
        assert!(*least > 20_000, "seed {seed}: {given:?}");
    }
}

/// Everything at once: every run ends in exactly one way, nobody waits longer than it agreed to, and no priority starves.
#[test]
fn every_offered_run_ends_once_and_in_time() {
    let mut seen = [0; 4];
    let mut with_batch = 0;
    for seed in 0..60 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let config = Config {
            max_depth: 10 + random.below(40),
            aging_ms: 500 + u64::from(random.below(3_000)),
            ..Config::default()
        };
        let mut pool = Pool::new(config, 1 + random.below(8));
        let mut cancelled = 0;
        let mut at = 0;
        for _ in 0..400 {
            at += u64::from(random.below(300));
            pool.advance_to(at);
            let priority = Priority::ALL[random.below(3) as usize];
            let tenant = random.below(3);
            let mut new = run(&mut random, tenant, priority);
            new.max_wait_ms = u64::from(random.below(if seed % 2 == 0 { 20_000 } else { 200_000 }));
            pool.offer(new);
            if random.chance(5)
                && let Some((id, ticket)) = pool.waiting.pop_first()
            {
                assert_eq!(pool.admission.cancel(ticket, at), Some(id));
                cancelled += 1;
            }
        }
        pool.advance_to(at + 1_000_000);
        assert_eq!(pool.waiting.len(), 0);
        let ends = pool.started.len() + pool.expired.len() + pool.displaced.len() + cancelled;
        assert_eq!(ends, pool.runs.len());
        for (id, wait) in pool.started.iter().chain(&pool.expired) {
            assert!(*wait <= pool.runs[id].max_wait_ms, "run {id} waited {wait}");
        }
        let is_batch = |(id, _): &(u32, u64)| pool.runs[id].priority == Priority::Batch;
        with_batch += usize::from(pool.started.iter().any(is_batch));
        let counts = [
            pool.started.len(),
            pool.expired.len(),
            pool.displaced.len(),
            pool.refused.len(),
        ];
        for (sum, count) in seen.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
    // A queue of ten in front of one seat may be full of urgent runs all the time: then batch is shed.
    assert!(with_batch >= 50, "batch ran in {with_batch} of 60");
}
