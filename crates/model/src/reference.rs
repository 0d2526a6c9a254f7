//! Parts of the CPU backend on their own: what other backends are compared with.

use crate::backend::{Sampled, SamplingParams};
use crate::cpu::Level;
use crate::cpu::kernels::Kernels;
use crate::sampler::{self, RowPosition, Scratch, TokenCounts};

/// Chooses the token that follows `prompt` and `output`, from a row of logits; `None` where they are not numbers.
pub fn sample(
    logits: &[f32],
    params: &SamplingParams,
    (prompt, output): (&[u32], &[u32]),
    mask: Option<&[u32]>,
) -> Option<Sampled> {
    let mut counts = TokenCounts::default();
    for &token in prompt {
        counts.add_prompt(token);
    }
    for &token in output {
        counts.add_output(token);
    }
    let row = RowPosition {
        position: (prompt.len() + output.len()) as u64,
        output_len: u32::try_from(output.len()).unwrap_or(u32::MAX),
        mask,
        uncounted: &[],
    };
    let kernels = Kernels::at_most(Level::detect());
    let mut scratch = Scratch::new(logits.len());
    let mut logits = logits.to_vec();
    sampler::sample(&kernels, &mut logits, params, row, &counts, &mut scratch).ok()
}
