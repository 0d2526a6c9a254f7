//! What quantization costs: how far a model's expectations of a text are from those of the original.

use weir_scheduler::{Batch, BlockId, Row, SequenceId, SlotId};

use crate::backend::{Backend as _, BackendError, NoMasks, SamplingParams};
use crate::cpu::CpuBackend;

/// Differences between two models, over every token of a text but the first of each piece.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loss {
    /// Tokens that were predicted.
    pub tokens: u64,
    /// `exp` of the mean surprise of the original.
    pub perplexity_before: f64,
    /// And of the other.
    pub perplexity_after: f64,
    /// Mean Kullback-Leibler divergence of the other's distribution from the original's, in nats.
    pub divergence_mean: f64,
    /// The largest.
    pub divergence_max: f64,
    /// Share of positions at which both expect the same token most.
    pub same_best: f64,
}

/// Compares `other` with `original` on a text of tokens, in pieces as long as both can hold.
///
/// # Errors
/// A device failed, or a token is not in the vocabulary.
pub fn measure_loss(
    original: &mut CpuBackend,
    other: &mut CpuBackend,
    text: &[u32],
) -> Result<Loss, BackendError> {
    let piece = [original.limits(), other.limits()]
        .iter()
        .map(|limits| {
            limits
                .max_batch_tokens
                .min(limits.context_tokens)
                .min(limits.blocks * limits.block_tokens)
        })
        .min()
        .unwrap_or(1);
    let mut loss = Loss::default();
    let (mut before, mut after, mut same) = (0.0, 0.0, 0u64);
    for piece in text.chunks(piece as usize).filter(|piece| piece.len() > 1) {
        let mut expected: Vec<Vec<f64>> = Vec::with_capacity(piece.len());
        let batch = batch(piece, original.limits().block_tokens);
        original.all_logits(&batch, |_, logits| expected.push(log_softmax(logits)))?;
        let batch = self::batch(piece, other.limits().block_tokens);
        other.all_logits(&batch, |at, logits| {
            let Some(&next) = piece.get(at + 1) else {
                return;
            };
            let (p, q) = (&expected[at], log_softmax(logits));
            before -= p[next as usize];
            after -= q[next as usize];
            let divergence: f64 = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
            loss.divergence_mean += divergence;
            loss.divergence_max = loss.divergence_max.max(divergence);
            same += u64::from(best(p) == best(&q));
            loss.tokens += 1;
        })?;
    }
    let count = loss.tokens.max(1) as f64;
    loss.perplexity_before = (before / count).exp();
    loss.perplexity_after = (after / count).exp();
    loss.divergence_mean /= count;
    loss.same_best = same as f64 / count;
    Ok(loss)
}

/// One sequence from its beginning.
fn batch(tokens: &[u32], block_tokens: u32) -> Batch {
    let count = u32::try_from(tokens.len()).expect("a piece fits a batch");
    let blocks = count.div_ceil(block_tokens);
    let mut batch = Batch {
        step: 1,
        ..Batch::default()
    };
    batch.rows.push(Row {
        sequence: SequenceId(0),
        slot: SlotId(0),
        start: 0,
        token_offset: 0,
        token_count: count,
        block_offset: 0,
        block_count: blocks,
        draft_count: 0,
        samples: false,
    });
    batch.tokens.extend_from_slice(tokens);
    batch.blocks.extend((0..blocks).map(BlockId));
    batch
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let of = |logit: &f32| f64::from(*logit) - f64::from(best);
    let sum: f64 = logits.iter().map(|logit| of(logit).exp()).sum();
    logits.iter().map(|logit| of(logit) - sum.ln()).collect()
}

fn best(logits: &[f64]) -> Option<usize> {
    (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]))
}

/// Sequences that [`sample_text`] writes at the same time.
const WRITERS: u32 = 8;

/// So many tokens of text that the model writes by itself, from one token on: what it thinks likely is what it was made for. The
/// same model gives the same text.
///
/// # Errors
/// The device failed, or cannot hold eight sequences.
pub fn sample_text(
    model: &mut CpuBackend,
    start: u32,
    tokens: u32,
) -> Result<Vec<u32>, BackendError> {
    let limits = model.limits();
    let length = tokens.div_ceil(WRITERS).min(limits.context_tokens).max(2);
    let blocks = length.div_ceil(limits.block_tokens);
    let mut texts = vec![vec![start]; WRITERS as usize];
    let mut sampled = Vec::new();
    for slot in 0..WRITERS {
        let params = SamplingParams {
            temperature: 1.0,
            seed: slot.into(),
            ..SamplingParams::greedy()
        };
        model.open(SlotId(slot), &params, &[start], &[]);
    }
    for position in 0..length - 1 {
        let mut batch = Batch {
            step: u64::from(position) + 1,
            ..Batch::default()
        };
        for (slot, text) in (0..WRITERS).zip(&texts) {
            batch.rows.push(Row {
                sequence: SequenceId(slot.into()),
                slot: SlotId(slot),
                start: position,
                token_offset: slot,
                token_count: 1,
                block_offset: slot * blocks,
                block_count: blocks,
                draft_count: 0,
                samples: true,
            });
            batch.tokens.push(text[position as usize]);
            batch
                .blocks
                .extend((0..blocks).map(|block| BlockId(slot * blocks + block)));
        }
        model.step(&batch, &NoMasks, &mut sampled)?;
        for (text, sampled) in texts.iter_mut().zip(&sampled) {
            text.push(sampled.token);
        }
    }
    (0..WRITERS).for_each(|slot| model.close(SlotId(slot)));
    Ok(texts.concat())
}
