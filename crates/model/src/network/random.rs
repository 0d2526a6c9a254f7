//! A network of random weights, for measurements of speed where the numbers mean nothing.

use std::io;

use memmap2::MmapMut;

use super::{Layer, Linear, Network};
use crate::config::ModelConfig;
use crate::quant::Weights;
use crate::weights::{Matrix, WeightType};

/// Numbers that are made one by one; the rest repeats them.
const SEED_NUMBERS: usize = 1 << 16;

impl Network {
    /// Weights in bf16, of a size that keeps what a layer computes near 1.
    ///
    /// # Errors
    /// There is no memory.
    pub fn random(config: &ModelConfig) -> io::Result<Self> {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let (heads, kv) = (config.head_count * config.head_dim, config.kv_width());
        let embedding = matrix(config.vocab_size, hidden)?;
        let head = if config.tied_embeddings {
            embedding.clone()
        } else {
            matrix(config.vocab_size, hidden)?
        };
        let layer = || -> io::Result<Layer> {
            Ok(Layer {
                attention_norm: vec![1.0; hidden],
                q: linear((heads, hidden), config.bias.qkv)?,
                k: linear((kv, hidden), config.bias.qkv)?,
                v: linear((kv, hidden), config.bias.qkv)?,
                qk_norm: config
                    .qk_norm
                    .then(|| (vec![1.0; config.head_dim], vec![1.0; config.head_dim])),
                o: linear((hidden, heads), config.bias.output)?,
                mlp_norm: vec![1.0; hidden],
                gate: linear((inner, hidden), config.bias.mlp)?,
                up: linear((inner, hidden), config.bias.mlp)?,
                down: linear((hidden, inner), config.bias.mlp)?,
            })
        };
        Ok(Self {
            embedding,
            layers: (0..config.layer_count)
                .map(|_| layer())
                .collect::<io::Result<_>>()?,
            final_norm: vec![1.0; hidden],
            head,
        })
    }
}

fn linear((outputs, inputs): (usize, usize), bias: bool) -> io::Result<Linear> {
    Ok(Linear {
        weight: matrix(outputs, inputs)?,
        bias: bias.then(|| vec![0.0; outputs]),
    })
}

fn matrix(rows: usize, cols: usize) -> io::Result<Weights> {
    let mut memory = MmapMut::map_anon(WeightType::Bf16.bytes_of(rows * cols))?;
    let scale = 1.0 / (cols as f32).sqrt();
    let mut state = 1u32;
    let seed: Vec<u8> = (0..SEED_NUMBERS)
        .flat_map(|_| {
            // A linear congruence: cheap, and even enough for sums to cancel.
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let number = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
            half::bf16::from_f32(number * scale).to_le_bytes()
        })
        .collect();
    for piece in memory.chunks_mut(seed.len()) {
        piece.copy_from_slice(&seed[..piece.len()]);
    }
    let map = memory.make_read_only()?;
    Ok(Weights::Stored(Matrix::of_map(
        map,
        WeightType::Bf16,
        [rows, cols],
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_repeat_and_fill_the_matrix() {
        let Weights::Stored(matrix) = matrix(400, 200).unwrap() else {
            unreachable!("nothing quantizes it");
        };
        let numbers = matrix.to_vec();
        assert_eq!(numbers.len(), 80_000);
        // One over the root of 200, rounded up to the next number of bf16.
        assert!(numbers.iter().all(|x| x.abs() <= 0.0709));
        assert!(numbers.iter().sum::<f32>().abs() < 100.0);
        assert_eq!(numbers[..100], numbers[SEED_NUMBERS..][..100]);
    }
}
