//! Steps that are started before the one before was read, with the scheduler that plans them.

use std::collections::BTreeMap;

use weir_cuda::CudaBackend;
use weir_cuda::kernels::CacheType;
use weir_model::WeightFormat;
use weir_model::backend::{Backend, NoMasks};
use weir_scheduler::{Config, Event, NewSequence, Priority, Scheduler, SequenceId, Verdict};

use crate::model::{cuda, seeded};
use crate::shim::Shim;

/// What each sequence put out.
type Outputs = BTreeMap<SequenceId, Vec<u32>>;

pub(crate) fn scheduler(backend: &impl Backend) -> Scheduler {
    let limits = backend.limits().plan();
    Scheduler::new(Config::new(limits, [1; 32], [2; 32])).unwrap()
}

/// Runs five sequences of different lengths, of which two stop by themselves; gives what they put out and how many steps were started ahead.
fn run(backend: &mut CudaBackend<Shim>, runs_ahead: bool) -> (Outputs, u32) {
    let mut scheduler = scheduler(backend);
    for id in 0..5u64 {
        let length = 3 + id * 6;
        let tokens: Vec<u32> = (0..length).map(|at| ((at * 7 + id) % 40) as u32).collect();
        let new = NewSequence {
            id: SequenceId(id),
            tokens: &tokens,
            max_output: 9 + id as u32,
            priority: Priority::Standard,
            scope: None,
            group: id,
            uncached: false,
        };
        scheduler.submit(&new).unwrap();
    }
    let (mut outputs, mut sampled, mut ahead) = (Outputs::new(), Vec::new(), 0);
    while scheduler.has_work() || scheduler.is_in_flight() {
        if !scheduler.is_in_flight() {
            scheduler.plan();
            for event in scheduler.events() {
                match *event {
                    Event::Started { id, slot, .. } => {
                        let (prompt, output) = scheduler.tokens(id).unwrap();
                        backend.open(slot, &seeded(id.0 as u32), prompt, output);
                    }
                    Event::Preempted { slot, .. } | Event::Closed { slot, .. } => {
                        backend.close(slot);
                    }
                }
            }
            if scheduler.batch().is_empty() {
                break;
            }
            let device = backend.ahead().unwrap();
            device.launch(scheduler.batch(), &NoMasks).unwrap();
        }
        let device = backend.ahead().unwrap();
        if runs_ahead && let Some(next) = scheduler.plan_ahead() {
            device.launch(next, &NoMasks).unwrap();
            ahead += 1;
        }
        device.collect(&mut sampled).unwrap();
        let tokens = sampled.iter().map(|sampled| sampled.token);
        scheduler.complete(tokens, |outcome| {
            let output = outputs.entry(outcome.id).or_default();
            output.push(outcome.token);
            // Found when the next step has been started already.
            let stops = outcome.id.0.is_multiple_of(3) && output.len() == 5;
            if stops {
                Verdict::Stop
            } else {
                Verdict::Continue
            }
        });
        scheduler.check();
    }
    (outputs, ahead)
}

#[test]
fn steps_started_ahead_give_the_same_tokens() {
    let start = |seed| cuda("qwen3", WeightFormat::Stored, CacheType::Act, seed);
    let (Some(mut one), Some(mut other)) = (start(71), start(72)) else {
        return;
    };
    let (want, none) = run(&mut one, false);
    let (got, ahead) = run(&mut other, true);
    assert_eq!(got, want);
    assert_eq!(none, 0);
    assert!(ahead >= 8, "{ahead} steps were started ahead");
    let lengths: Vec<usize> = got.values().map(Vec::len).collect();
    assert_eq!(lengths, [5, 10, 11, 5, 13]);
    // And once more on the same backend, whose slots and pages others have used.
    assert_eq!(run(&mut other, true).0, want);
}
