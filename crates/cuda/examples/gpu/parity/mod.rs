//! The backend on a device against the CPU backend. What a GPU is asked here, the tests ask of the shim: they run these same files.
//!
//! A case is a model and how it is kept. [`compare`] runs sequences of all kinds of steps on both, [`run_ahead`] starts steps before the ones
//! before were read.

pub(crate) mod ahead;
mod cases;
pub(crate) mod compare;
pub(crate) mod random;
mod sequences;

pub(crate) use ahead::{Work, run_ahead};
pub(crate) use cases::{Case, golden, wide};
pub(crate) use compare::compare;
pub(crate) use sequences::{Plan, Sequences};

use weir_cuda::CudaOptions;
use weir_cuda::kernels::CacheType;
use weir_model::backend::SamplingParams;

/// Everything that can go wrong.
pub(crate) type Failure = Box<dyn std::error::Error>;

/// What the backend may use: small, and enough for every case.
pub(crate) const OPTIONS: CudaOptions = CudaOptions {
    kv_bytes: Some(1 << 20),
    cache: CacheType::Act,
    block_tokens: 16,
    max_running: 16,
    max_batch_tokens: 640,
    context_tokens: 0,
};

/// Greedy for some slots, and with every filter and penalty for others.
pub(crate) fn seeded(slot: u32) -> SamplingParams {
    SamplingParams {
        temperature: if slot.is_multiple_of(3) { 0.0 } else { 2.0 },
        top_k: slot % 2 * 20,
        top_p: 0.95,
        seed: slot.into(),
        frequency_penalty: 0.3,
        repetition_penalty: 1.1,
        logprobs: Some(2),
        ..SamplingParams::greedy()
    }
}
