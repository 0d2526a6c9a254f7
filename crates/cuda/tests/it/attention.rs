//! Attention over the paged cache, of prompts and of single tokens, against softmax as it is written.

use weir_cuda::device::{Address, Arguments, Execute as _, Launch};
use weir_cuda::kernels::{CacheType, Kernel, Variant};

use crate::numbers::{Random, assert_near};
use crate::rows::fp8;
use crate::shim::{BF16, F16, Shim, act_bits, act_value};

const BLOCKS: usize = 24;

/// A sequence: its positions that are cached, of which the last `tokens` are queried.
struct Sequence {
    table: Vec<i32>,
    length: usize,
    tokens: usize,
}

/// A cache full of numbers, and queries.
struct World {
    variant: Variant,
    kv_heads: usize,
    group: usize,
    block_tokens: usize,
    window: usize,
    sequences: Vec<Sequence>,
    /// (blocks, `kv_heads`, `block_tokens`, dim), as the kernels see them
    keys: Vec<f32>,
    values: Vec<f32>,
    /// (tokens, heads, dim)
    queries: Vec<f32>,
}

/// Where a world is on the device.
struct Places {
    caches: [Address; 4],
    tables: Address,
    starts: Vec<i32>,
    queries: Address,
    out: Address,
}

impl World {
    fn new(
        variant: Variant,
        (kv_heads, group): (usize, usize),
        window: usize,
        lengths: &[(usize, usize)],
    ) -> Self {
        let block_tokens = 32;
        let mut random = Random(variant.head_dim as u64 + window as u64);
        let mut free: Vec<i32> = (0..BLOCKS as i32).collect();
        let mut sequences = Vec::new();
        for &(length, tokens) in lengths {
            let table = (0..length.div_ceil(block_tokens))
                .map(|_| free.swap_remove(random.below(free.len())));
            sequences.push(Sequence {
                table: table.collect(),
                length,
                tokens,
            });
        }
        let tokens: usize = sequences.iter().map(|sequence| sequence.tokens).sum();
        let (cells, dim) = (
            BLOCKS * kv_heads * block_tokens * variant.head_dim,
            variant.head_dim,
        );
        Self {
            variant,
            kv_heads,
            group,
            block_tokens,
            window,
            sequences,
            keys: random.floats(cells),
            values: random.floats(cells),
            // Large enough that some positions count more than others.
            queries: random
                .floats(tokens * kv_heads * group * dim)
                .iter()
                .map(|x| 6.0 * x)
                .collect(),
        }
    }

    fn index(&self, sequence: &Sequence, position: usize, kv_head: usize) -> usize {
        let block = sequence.table[position / self.block_tokens] as usize;
        (block * self.kv_heads + kv_head) * self.block_tokens + position % self.block_tokens
    }

    /// Puts everything on the device; positions that no sequence has are no numbers, and what is cached is rounded here too.
    fn place(&mut self, shim: &mut Shim) -> Places {
        let dim = self.variant.head_dim;
        let mut is_used = vec![false; self.keys.len() / dim];
        for sequence in &self.sequences {
            for position in 0..sequence.length {
                for kv_head in 0..self.kv_heads {
                    is_used[self.index(sequence, position, kv_head)] = true;
                }
            }
        }
        let (keys, key_scales) = cache(shim, &mut self.keys, &is_used);
        let (values, value_scales) = cache(shim, &mut self.values, &is_used);
        let act = self.variant.act;
        self.queries
            .iter_mut()
            .for_each(|x| *x = act_value(act, act_bits(act, *x)));
        let (mut tables, mut starts) = (Vec::new(), Vec::new());
        for sequence in &self.sequences {
            starts.push(tables.len() as i32);
            tables.extend_from_slice(&sequence.table);
        }
        Places {
            caches: [keys, values, key_scales, value_scales],
            tables: shim.put(&tables),
            starts,
            queries: shim.put_act(&self.queries),
            out: shim.room(self.queries.len() * 2),
        }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.variant.head_dim as f32).sqrt()
    }

    /// (tokens, heads, dim)
    fn want(&self) -> Vec<f32> {
        let (dim, mut out) = (self.variant.head_dim, Vec::new());
        let mut queries = self.queries.chunks(dim);
        for sequence in &self.sequences {
            for token in sequence.length - sequence.tokens..sequence.length {
                let first = if self.window == 0 {
                    0
                } else {
                    (token + 1).saturating_sub(self.window)
                };
                for head in 0..self.kv_heads * self.group {
                    let query = queries.next().unwrap();
                    let at = |position| self.index(sequence, position, head / self.group) * dim;
                    let scores: Vec<f32> = (first..=token)
                        .map(|position| {
                            dot(query, &self.keys[at(position)..][..dim]) * self.scale()
                        })
                        .collect();
                    let best = scores.iter().copied().fold(f32::MIN, f32::max);
                    let weights: Vec<f32> =
                        scores.iter().map(|score| (score - best).exp()).collect();
                    let sum: f32 = weights.iter().sum();
                    let mut row = vec![0.0; dim];
                    for (position, weight) in (first..=token).zip(weights) {
                        let value = &self.values[at(position)..][..dim];
                        row.iter_mut()
                            .zip(value)
                            .for_each(|(x, v)| *x += weight / sum * v);
                    }
                    out.append(&mut row);
                }
            }
        }
        out
    }

    fn cache_arguments(
        &self,
        mut arguments: Arguments,
        places: &Places,
        out: Address,
    ) -> Arguments {
        for at in places.caches {
            arguments = arguments.at(at);
        }
        let scale = self.scale() * std::f32::consts::LOG2_E;
        let sizes = arguments
            .at(out)
            .int(self.group)
            .int(self.kv_heads)
            .int(self.block_tokens);
        sizes.float(scale).int(self.window)
    }

    fn prefill(&self, shim: &mut Shim, places: &Places) -> Vec<f32> {
        let (mut tiles, mut positions, mut first) = (Vec::new(), Vec::new(), 0);
        for (sequence, start) in self.sequences.iter().zip(&places.starts) {
            for row in (0..sequence.tokens * self.group).step_by(64) {
                tiles.extend([first as i32, sequence.tokens as i32, row as i32, *start]);
            }
            first += sequence.tokens;
            positions
                .extend((sequence.length - sequence.tokens..sequence.length).map(|at| at as i32));
        }
        let (at_tiles, at_positions) = (shim.put(&tiles), shim.put(&positions));
        let arguments = Arguments::new()
            .at(at_tiles)
            .at(places.tables)
            .at(at_positions)
            .at(places.queries);
        let launch = Launch {
            kernel: Kernel::PagedPrefill,
            grid: [tiles.len() / 4, self.kv_heads, 1],
            threads: 128,
            arguments: self.cache_arguments(arguments, places, places.out),
        };
        shim.launch(&launch).unwrap();
        shim.get_act(places.out, self.queries.len())
    }

    fn decode(&self, shim: &mut Shim, places: &Places, splits: usize) -> Vec<f32> {
        let (rows, heads, dim) = (
            self.sequences.len(),
            self.kv_heads * self.group,
            self.variant.head_dim,
        );
        // The last row only fills up.
        let mut starts = places.starts.clone();
        starts.push(0);
        let mut lengths: Vec<i32> = self
            .sequences
            .iter()
            .map(|sequence| sequence.length as i32)
            .collect();
        lengths.push(0);
        let (at_starts, at_lengths) = (shim.put(&starts), shim.put(&lengths));
        let parts = shim.room((rows + 1) * heads * splits * (dim + 2) * 4);
        let arguments = Arguments::new()
            .at(at_starts)
            .at(at_lengths)
            .at(places.tables)
            .at(places.queries);
        let launch = Launch {
            kernel: Kernel::PagedDecode,
            grid: [self.kv_heads * self.group.div_ceil(16), rows + 1, splits],
            threads: 128,
            arguments: self.cache_arguments(arguments, places, parts),
        };
        shim.launch(&launch).unwrap();
        let launch = Launch {
            kernel: Kernel::Combine,
            grid: [heads, rows + 1, 1],
            threads: 32,
            arguments: Arguments::new()
                .at(parts)
                .at(at_lengths)
                .at(places.out)
                .int(splits),
        };
        shim.launch(&launch).unwrap();
        shim.get_act(places.out, self.queries.len())
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Stores numbers as the cache does and reads them back into `numbers`; gives cells and scales.
fn cache(shim: &mut Shim, numbers: &mut [f32], is_used: &[bool]) -> (Address, Address) {
    let (dim, act) = (shim.variant.head_dim, shim.variant.act);
    if shim.variant.cache == CacheType::Act {
        let mut bits = Vec::new();
        for (head, is_used) in numbers.chunks_mut(dim).zip(is_used) {
            for x in head {
                *x = act_value(act, act_bits(act, *x));
                bits.push(if *is_used { act_bits(act, *x) } else { 0x7fff });
            }
        }
        return (shim.put(&bits), Address::NONE);
    }
    let (mut bytes, mut scales) = (Vec::new(), Vec::new());
    for (at, (head, is_used)) in numbers.chunks_mut(dim).zip(is_used).enumerate() {
        let scale = 0.002 + (at % 7) as f32 * 0.001;
        for x in head.iter_mut() {
            // Any byte is a number but for two, which are none.
            let byte = (x.to_bits() >> 3 & 0xff) as u8;
            let byte = if byte & 0x7f == 0x7f { 0 } else { byte };
            *x = fp8(byte) * scale;
            bytes.push(if *is_used { byte } else { 0x7f });
        }
        scales.push(if *is_used { scale } else { f32::NAN });
    }
    (shim.put(&bytes), shim.put(&scales))
}

fn check(variant: Variant, heads: (usize, usize), window: usize, tolerance: f32) {
    let Some(mut shim) = Shim::start(variant, 21) else {
        return;
    };
    let name = |what: &str| format!("{what} of {variant:?}, heads {heads:?}, window {window}");
    let mut world = World::new(
        variant,
        heads,
        window,
        &[(70, 70), (3, 1), (100, 21), (33, 33)],
    );
    let places = world.place(&mut shim);
    let got = world.prefill(&mut shim, &places);
    assert_near(&name("prefill"), &got, &world.want(), tolerance);
    let mut world = World::new(
        variant,
        heads,
        window,
        &[(70, 1), (1, 1), (129, 1), (32, 1)],
    );
    let places = world.place(&mut shim);
    for splits in [1, 3, 6] {
        let got = world.decode(&mut shim, &places, splits);
        assert_near(&name("decode"), &got, &world.want(), tolerance);
    }
}

/// Results are of the order of 1 and rounded to 8 bits, and so are the weights they are sums with.
const BF16_TOLERANCE: f32 = 0.012;

#[test]
fn attention_is_softmax_over_the_pages() {
    check(BF16, (2, 4), 0, BF16_TOLERANCE);
    check(F16, (1, 3), 0, 0.002);
    check(
        Variant {
            head_dim: 16,
            ..BF16
        },
        (1, 7),
        0,
        BF16_TOLERANCE,
    );
}

#[test]
fn a_window_ends_what_a_token_sees() {
    for window in [1, 20, 64] {
        check(BF16, (1, 2), window, BF16_TOLERANCE);
    }
}

#[test]
fn more_than_sixteen_heads_share_a_key() {
    check(BF16, (1, 20), 0, BF16_TOLERANCE);
}

#[test]
fn fp8_pages_have_a_scale_for_each_position_and_head() {
    // The cached numbers are up to 3.6, and errors grow with them.
    check(
        Variant {
            cache: CacheType::Fp8,
            ..BF16
        },
        (2, 4),
        0,
        0.03,
    );
}
