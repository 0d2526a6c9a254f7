//! A step allocates nothing once the backend is warm.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use weir_model::backend::{Backend as _, NoMasks, SamplingParams};
use weir_model::{Adapter, CpuOptions, OpenFiles};
use weir_scheduler::Batch;

use crate::harness::{Sequence, add_row, golden, load, options};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts what the current thread allocates.
struct Counting;

#[expect(unsafe_code, reason = "an allocator is unsafe to write")]
// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(pointer, layout) };
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_warm_step_allocates_nothing() {
    let mut backend = load(
        "qwen3",
        &CpuOptions {
            threads: 1,
            ..options()
        },
    );
    let sampled_params = SamplingParams {
        temperature: 1.0,
        top_p: 0.9,
        top_k: 20,
        repetition_penalty: 1.2,
        ..SamplingParams::greedy()
    };
    let prompt: Vec<u32> = (0..20).collect();
    let mut sequences: Vec<Sequence> = (0..4).map(|slot| Sequence::new(slot, &prompt)).collect();
    for (at, sequence) in sequences.iter().enumerate() {
        let params = if at % 2 == 0 {
            SamplingParams::greedy()
        } else {
            sampled_params.clone()
        };
        backend.open(sequence.slot, &params, &prompt, &[]);
    }
    let files = OpenFiles::from_dir(&golden("adapters/rslora")).unwrap();
    let adapters = backend.adapters().unwrap();
    let adapter = Adapter::load(&files, adapters.config()).unwrap();
    let adapter = adapters.insert(Arc::new(adapter)).unwrap();
    for sequence in &sequences[2..] {
        adapters.apply(sequence.slot, adapter);
    }
    let mut batch = Batch::default();
    let mut sampled = Vec::new();
    let mut allocated = Vec::new();
    for step in 1..30 {
        batch.clear();
        batch.step = step;
        for sequence in &mut sequences {
            let left = u32::try_from(sequence.tokens.len()).unwrap() - sequence.done;
            add_row(&mut batch, sequence, left);
        }
        let before = ALLOCATIONS.get();
        backend.step(&batch, &NoMasks, &mut sampled).unwrap();
        allocated.push(ALLOCATIONS.get() - before);
        for (sequence, sampled) in sequences.iter_mut().zip(&sampled) {
            sequence.tokens.push(sampled.token);
        }
    }
    assert!(
        allocated[1..].iter().all(|&count| count == 0),
        "allocations per step: {allocated:?}"
    );
}
