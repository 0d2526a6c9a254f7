//! The hot path allocates nothing once it is warm.

use weir_scheduler::{Config, NewSequence, Priority, Scheduler, SequenceId, Verdict};

use crate::counting::allocations;
use crate::random::Random;
use crate::world::limits;

/// Steps, preemptions, cache hits and ends included; a pool so tight that all of them happen.
#[test]
fn a_warm_scheduler_plans_and_completes_without_an_allocation() {
    let mut scheduler =
        Scheduler::new(Config::new(limits(120, 16, 16, 96), [1; 32], [1; 32])).unwrap();
    let mut random = Random(1);
    let mut id = 0;
    let (mut counted, mut preempted, mut cached) = (0, 0, 0);
    for step in 0..4_000 {
        while scheduler.stats().waiting.iter().sum::<u32>() < 4 {
            id += 1;
            let mut prompt = vec![1; 16 * (1 + random.below(4) as usize)];
            prompt.extend((0..random.below(60)).map(|_| random.below(90)));
            let new = NewSequence {
                id: SequenceId(id),
                tokens: &prompt,
                max_output: 1 + random.below(200),
                priority: Priority::from_wire(random.below(3)),
                scope: Some([u8::try_from(random.below(3)).unwrap(); 32]),
                group: id,
                adapter: None,
                uncached: false,
            };
            scheduler.submit(&new).unwrap();
        }
        let before = allocations();
        let batch = scheduler.plan();
        let samples = batch.rows.iter().filter(|row| row.samples).count();
        scheduler.complete((0..samples).map(|_| step % 90), |_| Verdict::Continue);
        if step >= 2_000 {
            counted += allocations() - before;
            for event in scheduler.events() {
                if let weir_scheduler::Event::Started { cached_tokens, .. } = event {
                    cached += cached_tokens;
                }
            }
        } else {
            preempted = scheduler.stats().preemptions;
        }
    }
    assert!(
        scheduler.stats().preemptions > preempted,
        "nothing was preempted"
    );
    assert!(cached > 0, "nothing was cached");
    assert_eq!(counted, 0, "allocations in 2,000 steps");
    let before = allocations();
    drop(std::hint::black_box(vec![1_u8]));
    assert_eq!(allocations() - before, 1, "allocations are counted");
}
