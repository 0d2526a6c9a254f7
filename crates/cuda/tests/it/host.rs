//! The host's part of a step, on a device that carries out nothing.

use weir_cuda::CudaBackend;
use weir_cuda::idle::Idle;
use weir_model::backend::{Backend, NoMasks, SamplingParams};
use weir_model::{WeightFormat, load_network};
use weir_scheduler::{Event, NewSequence, Priority, Scheduler, SequenceId, Verdict};

use crate::counting::allocations;
use crate::model::files;
use crate::parity::OPTIONS;
use crate::parity::ahead::scheduler;

/// Opens and closes what the plan says; returns whether anything was.
fn settle(scheduler: &Scheduler, backend: &mut impl Backend) -> bool {
    for event in scheduler.events() {
        match *event {
            Event::Started { id, slot, .. } => {
                let (prompt, output) = scheduler.tokens(id).unwrap();
                backend.open(slot, &SamplingParams::greedy(), prompt, output);
            }
            Event::Preempted { slot, .. } | Event::Closed { slot, .. } => backend.close(slot),
        }
    }
    !scheduler.events().is_empty()
}

#[test]
fn a_warm_backend_starts_and_reads_steps_without_an_allocation() {
    let (config, network) = load_network(&files("qwen2"), WeightFormat::Stored).unwrap();
    let mut backend = CudaBackend::new(Idle::default(), &network, &config, &OPTIONS).unwrap();
    let mut scheduler = scheduler(backend.limits()).unwrap();
    for id in 0..16u64 {
        let new = NewSequence {
            id: SequenceId(id),
            tokens: &[1, 2, 3, 4, id as u32],
            max_output: 60 + id as u32,
            priority: Priority::Standard,
            scope: None,
            group: id,
            adapter: None,
            uncached: false,
        };
        scheduler.submit(&new).unwrap();
    }
    let (mut sampled, mut counted, mut steps, mut ahead) = (Vec::new(), 0, 0, 0);
    while scheduler.has_work() || scheduler.is_in_flight() {
        let before = allocations();
        let mut is_counted = steps > 2;
        if !scheduler.is_in_flight() {
            scheduler.plan();
            is_counted &= !settle(&scheduler, &mut backend);
            if scheduler.batch().is_empty() {
                break;
            }
            let device = backend.ahead().unwrap();
            device.launch(scheduler.batch(), &NoMasks).unwrap();
        }
        let device = backend.ahead().unwrap();
        if let Some(next) = scheduler.plan_ahead() {
            device.launch(next, &NoMasks).unwrap();
            ahead += 1;
        }
        device.collect(&mut sampled).unwrap();
        let tokens = sampled.iter().map(|sampled| sampled.token);
        scheduler.complete(tokens, |_| Verdict::Continue);
        steps += 1;
        if is_counted {
            counted += allocations() - before;
        }
    }
    assert!(steps > 60 && ahead > 50, "{ahead} of {steps} steps ahead");
    assert_eq!(counted, 0, "allocations in {steps} steps");
    let before = allocations();
    drop(std::hint::black_box(vec![1_u8]));
    assert_eq!(allocations() - before, 1, "allocations are counted");
}
