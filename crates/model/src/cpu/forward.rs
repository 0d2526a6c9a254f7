//! One pass of a batch through the network.

use weir_scheduler::Batch;

use super::adapters::HeldAdapters;
use super::buffers::Buffers;
use super::kernels::{
    Activations, Attention, Columns, Kernels, KvCache, KvPlace, LayerView, Product, for_rows,
};
use super::pool::Pool;
use crate::adapter::Part;
use crate::config::ModelConfig;
use crate::network::{Layer, Linear, Network};

/// The parts a pass works with.
pub(super) struct Forward<'a> {
    pub config: &'a ModelConfig,
    pub network: &'a Network,
    pub kernels: &'a Kernels,
    pub pool: &'a mut Pool,
    pub cache: &'a mut KvCache,
    pub buffers: &'a mut Buffers,
    pub adapters: &'a mut HeldAdapters,
}

impl Forward<'_> {
    /// Runs all tokens of a checked batch through all layers.
    pub(super) fn run(&mut self, batch: &Batch) {
        self.prepare(batch);
        let tokens = batch.tokens.len();
        let hidden = self.config.hidden_size;
        for (token, row) in batch
            .tokens
            .iter()
            .zip(self.buffers.x.chunks_exact_mut(hidden))
        {
            self.network.embedding.read_row(*token as usize, row);
        }
        for (index, layer) in self.network.layers.iter().enumerate() {
            self.attention(layer, index, batch, tokens);
            self.feed_forward(layer, index, tokens);
        }
    }

    /// Logits of some tokens of the batch (indices into its tokens), at most [`LOGIT_ROWS_MAX`](super::buffers::LOGIT_ROWS_MAX): (rows, vocabulary).
    pub(super) fn logits(&mut self, tokens: &[u32]) -> &mut [f32] {
        let (hidden, vocab) = (self.config.hidden_size, self.config.vocab_size);
        let Buffers {
            x,
            last,
            logits,
            rounded,
            ..
        } = &mut *self.buffers;
        for (&token, row) in tokens.iter().zip(last.chunks_exact_mut(hidden)) {
            row.copy_from_slice(&x[token as usize * hidden..][..hidden]);
            self.kernels
                .rms_norm(row, &self.network.final_norm, self.config.rms_norm_eps);
        }
        let head = [Product {
            weights: &self.network.head,
            bias: None,
            out_col: 0,
        }];
        let tokens = tokens.len();
        let act = Activations {
            x: last,
            x_width: hidden,
            rounded,
            out: logits,
            out_width: vocab,
            tokens,
            accumulate: false,
        };
        self.kernels.multiply(self.pool, &head, act);
        &mut logits[..tokens * vocab]
    }

    /// Where each token goes in the cache, its rotation, and the tiles of attention: the same for all layers.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "counts are bounded by the batch's u32 fields; angles are f32"
    )]
    fn prepare(&mut self, batch: &Batch) {
        let config = self.config;
        let Buffers {
            rotations,
            places,
            frequencies,
            ..
        } = &mut *self.buffers;
        places.clear();
        let block_tokens = self.cache.shape().block_tokens as u32;
        let half = config.head_dim / 2;
        for row in &batch.rows {
            let table = batch.row_blocks(row);
            for at in 0..row.token_count {
                let position = row.start + at;
                let block = table[(position / block_tokens) as usize].0;
                let rotation = &mut rotations[places.len() * config.head_dim..][..config.head_dim];
                places.push(KvPlace {
                    block,
                    offset: position % block_tokens,
                });
                let (cos, sin) = rotation.split_at_mut(half);
                for ((cos, sin), frequency) in cos.iter_mut().zip(sin).zip(&*frequencies) {
                    // The angle in f32 as the reference has it, its functions in f64 so that they are exact for it.
                    let angle = f64::from(position as f32 * frequency);
                    (*cos, *sin) = (angle.cos() as f32, angle.sin() as f32);
                }
            }
        }
        self.adapters.lay_out(batch);
        self.buffers.tiles.clear();
        self.buffers.merges.clear();
        for row in &batch.rows {
            self.buffers.add_tiles(row, config, batch.rows.len());
        }
    }

    fn attention(&mut self, layer: &Layer, index: usize, batch: &Batch, tokens: usize) {
        self.project(layer, index, tokens);
        let config = self.config;
        let (hidden, heads) = (config.hidden_size, config.head_count * config.head_dim);
        let view = LayerView {
            cells: self.cache.layer(index),
            tables: &batch.blocks,
            head_count: config.head_count,
            kv_heads: config.kv_head_count,
            head_dim: config.head_dim,
            q_width: heads + 2 * config.kv_width(),
            block_tokens: self.cache.shape().block_tokens,
            window: config.sliding_window[index].map(|window| window as usize),
        };
        let Buffers {
            x,
            qkv,
            attended,
            tiles,
            merges,
            parts,
            rounded,
            ..
        } = &mut *self.buffers;
        let attention = Attention {
            tiles,
            merges,
            q: qkv,
            parts,
            out: &mut attended[..tokens * heads],
        };
        self.kernels.attend_all(self.pool, &view, attention);
        let act = Activations {
            x: attended,
            x_width: heads,
            rounded,
            out: x,
            out_width: hidden,
            tokens,
            accumulate: true,
        };
        self.kernels
            .multiply(self.pool, &[product(&layer.o, 0)], act);
        let parts = [(Part::Attended, 0)];
        self.adapters.add(
            (self.kernels, &mut *self.pool),
            (index, &parts),
            (&*attended, heads),
            (&mut *x, hidden),
        );
    }

    /// Queries, keys and values of all tokens, rotated; keys and values go into the cache.
    fn project(&mut self, layer: &Layer, index: usize, tokens: usize) {
        self.normalise(&layer.attention_norm, tokens);
        let (kernels, config) = (self.kernels, self.config);
        let (heads, kv) = (config.head_count * config.head_dim, config.kv_width());
        let (width, head_dim) = (heads + 2 * kv, config.head_dim);
        let Buffers {
            normed,
            qkv,
            rotations,
            places,
            rounded,
            ..
        } = &mut *self.buffers;
        let products = [
            product(&layer.q, 0),
            product(&layer.k, heads),
            product(&layer.v, heads + kv),
        ];
        let act = Activations {
            x: normed,
            x_width: config.hidden_size,
            rounded,
            out: qkv,
            out_width: width,
            tokens,
            accumulate: false,
        };
        kernels.multiply(self.pool, &products, act);
        let parts = [
            (Part::Queries, 0),
            (Part::Keys, heads),
            (Part::Values, heads + kv),
        ];
        self.adapters.add(
            (kernels, &mut *self.pool),
            (index, &parts),
            (&*normed, config.hidden_size),
            (&mut *qkv, width),
        );
        for_rows(
            self.pool,
            &mut qkv[..tokens * width],
            width,
            &|token, row| {
                let rotation = &rotations[token * head_dim..][..head_dim];
                for (head, values) in row[..heads + kv].chunks_exact_mut(head_dim).enumerate() {
                    if let Some((q_norm, k_norm)) = &layer.qk_norm {
                        let weight = if head < config.head_count {
                            q_norm
                        } else {
                            k_norm
                        };
                        kernels.rms_norm(values, weight, config.rms_norm_eps);
                    }
                    rotate(values, rotation);
                }
            },
        );
        let columns = Columns {
            width,
            key_col: heads,
        };
        self.cache
            .write((kernels, &mut *self.pool), index, places, qkv, columns);
    }

    fn feed_forward(&mut self, layer: &Layer, index: usize, tokens: usize) {
        let (hidden, inner) = (self.config.hidden_size, self.config.intermediate_size);
        self.normalise(&layer.mlp_norm, tokens);
        let Buffers {
            x,
            normed,
            gate_up,
            rounded,
            ..
        } = &mut *self.buffers;
        let products = [product(&layer.gate, 0), product(&layer.up, inner)];
        let act = Activations {
            x: normed,
            x_width: hidden,
            rounded,
            out: gate_up,
            out_width: 2 * inner,
            tokens,
            accumulate: false,
        };
        self.kernels.multiply(self.pool, &products, act);
        let kernels = self.kernels;
        let parts = [(Part::Gate, 0), (Part::Up, inner)];
        self.adapters.add(
            (kernels, &mut *self.pool),
            (index, &parts),
            (&*normed, hidden),
            (&mut *gate_up, 2 * inner),
        );
        for_rows(
            self.pool,
            &mut gate_up[..tokens * 2 * inner],
            2 * inner,
            &|_, row| {
                let (gate, up) = row.split_at_mut(inner);
                kernels.silu_mul(gate, up);
            },
        );
        let act = Activations {
            x: gate_up,
            x_width: 2 * inner,
            rounded,
            out: x,
            out_width: hidden,
            tokens,
            accumulate: true,
        };
        self.kernels
            .multiply(self.pool, &[product(&layer.down, 0)], act);
        self.adapters.add(
            (kernels, &mut *self.pool),
            (index, &[(Part::Down, 0)]),
            (&*gate_up, 2 * inner),
            (&mut *x, hidden),
        );
    }

    /// `normed` = `RMSNorm`(x)
    fn normalise(&mut self, weight: &[f32], tokens: usize) {
        let (hidden, eps, kernels) = (
            self.config.hidden_size,
            self.config.rms_norm_eps,
            self.kernels,
        );
        let Buffers { x, normed, .. } = &mut *self.buffers;
        let x = &*x;
        for_rows(
            self.pool,
            &mut normed[..tokens * hidden],
            hidden,
            &|token, row| {
                row.copy_from_slice(&x[token * hidden..][..hidden]);
                kernels.rms_norm(row, weight, eps);
            },
        );
    }
}

fn product(linear: &Linear, out_col: usize) -> Product<'_> {
    Product {
        weights: &linear.weight,
        bias: linear.bias.as_deref(),
        out_col,
    }
}

/// Rotates pairs (i, i + half) of one head by the position's angles: `rotation` is cosines, then sines.
fn rotate(values: &mut [f32], rotation: &[f32]) {
    let half = values.len() / 2;
    let (cos, sin) = rotation.split_at(half);
    let (first, second) = values.split_at_mut(half);
    for i in 0..half {
        let (a, b) = (first[i], second[i]);
        first[i] = a * cos[i] - b * sin[i];
        second[i] = b * cos[i] + a * sin[i];
    }
}
