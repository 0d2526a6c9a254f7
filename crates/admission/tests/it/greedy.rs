//! What one tenant has to wait while others flood the pool.

use weir_admission::{Config, Priority};

use crate::pool::{Pool, Random, Run};

/// 0.2 to 2.2 seconds.
fn chat(random: &mut Random, tenant: u32, priority: Priority) -> Run {
    let ceiling = 20 + random.below(200);
    Run {
        tenant,
        priority,
        prompt_tokens: 20 + random.below(400),
        ceiling,
        output_tokens: 1 + random.below(ceiling),
        offered_ms: 0,
        estimate_ms: 0,
        max_wait_ms: 30_000,
    }
}

struct Flood {
    name: &'static str,
    tenants: u32,
    priority: Priority,
    /// Long runs instead of chats: half a minute each.
    is_long: bool,
    /// What the modest tenant may have to wait, at 99 % and at most, in ms.
    bounds: (u64, u64),
}

/// Sixteen seats, four of them kept for those who have few; the flood is five times what they can do. The modest tenant sends a chat
/// every half second.
const FLOODS: [Flood; 5] = [
    Flood {
        name: "one other tenant, equally urgent",
        tenants: 1,
        priority: Priority::Interactive,
        is_long: false,
        bounds: (50, 400),
    },
    Flood {
        name: "one other tenant, batch",
        tenants: 1,
        priority: Priority::Batch,
        is_long: false,
        bounds: (50, 400),
    },
    Flood {
        name: "ten other tenants, equally urgent",
        tenants: 10,
        priority: Priority::Interactive,
        is_long: false,
        bounds: (2_000, 2_500),
    },
    Flood {
        name: "ten other tenants, batch",
        tenants: 10,
        priority: Priority::Batch,
        is_long: false,
        bounds: (600, 1_500),
    },
    Flood {
        name: "one other tenant whose runs take half a minute",
        tenants: 1,
        priority: Priority::Interactive,
        is_long: true,
        bounds: (400, 2_500),
    },
];

const MODEST: u32 = 99;

/// Waits of the modest tenant, sorted, and how many of its runs were refused or expired.
fn flooded(flood: &Flood, seed: u64) -> (Vec<u64>, usize) {
    let mut random = Random(seed);
    let mut pool = Pool::new(Config::default(), 16);
    pool.reserved = 4;
    let (mut sent, mut refused) = (0, 0);
    for at in (0..120_000).step_by(10) {
        pool.advance_to(at);
        for _ in 0..2 {
            if random.chance(60) {
                let tenant = random.below(flood.tenants);
                let mut run = chat(&mut random, tenant, flood.priority);
                if flood.is_long {
                    (run.ceiling, run.output_tokens) = (3_000, 3_000);
                }
                pool.offer(run);
            }
        }
        if at % 500 == 0 {
            let before = pool.refused.len();
            pool.offer(chat(&mut random, MODEST, Priority::Interactive));
            sent += 1;
            refused += pool.refused.len() - before;
        }
    }
    pool.advance_to(400_000);
    let own = |(id, _): &&(u32, u64)| pool.runs[id].tenant == MODEST;
    let mut waits: Vec<u64> = pool.started.iter().filter(own).map(|(_, w)| *w).collect();
    waits.sort_unstable();
    assert_eq!(
        waits.len() + refused + pool.expired.iter().filter(own).count(),
        sent
    );
    let lost = sent - waits.len();
    (waits, lost)
}

#[test]
fn a_modest_tenant_waits_little_whoever_floods() {
    let mut failed = Vec::new();
    for flood in &FLOODS {
        for seed in 0..2 {
            let (waits, lost) = flooded(flood, seed);
            let at = |percent: usize| waits[(waits.len() - 1) * percent / 100];
            let line = format!(
                "{} seed {seed}: waits {} ms in the median, {} at 99 %, {} at most; {lost} lost",
                flood.name,
                at(50),
                at(99),
                at(100)
            );
            println!("{line}");
            if lost > 0 || at(99) > flood.bounds.0 || at(100) > flood.bounds.1 {
                failed.push(line);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Three times what the pool can do, all of it urgent, and a batch tenant beside it.
#[test]
fn a_flood_of_urgent_runs_does_not_starve_batch() {
    for seed in 0..2 {
        println!("seed {seed}");
        let mut random = Random(seed);
        let config = Config {
            max_depth: 512,
            ..Config::default()
        };
        let mut pool = Pool::new(config, 8);
        for at in (0..200_000).step_by(50) {
            pool.advance_to(at);
            let tenant = random.below(3);
            let mut run = chat(&mut random, tenant, Priority::Interactive);
            run.max_wait_ms = 120_000;
            pool.offer(run);
            if at % 5_000 == 0 {
                let mut run = chat(&mut random, 9, Priority::Batch);
                run.max_wait_ms = 120_000;
                pool.offer(run);
            }
        }
        let batch = pool.started.iter().map(|(id, wait)| (pool.runs[id], wait));
        let batch: Vec<_> = batch
            .filter(|(run, _)| run.priority == Priority::Batch)
            .collect();
        let last = batch.iter().map(|(run, wait)| run.offered_ms + *wait).max();
        println!("{} of batch, the last at {last:?}", batch.len());
        // Aging: one about every ten seconds, to the end.
        assert!(batch.len() >= 15 && last >= Some(180_000));
    }
}
