use super::*;
use crate::cpu::KvType;
use crate::cpu::kernels::attend::CHUNK;
use weir_scheduler::BlockId;

const HEADS: usize = 6;
const KV_HEADS: usize = 2;
const BLOCK: usize = 32;

/// A layer's cache with one sequence of so many positions, whose blocks are strided, and what was written.
struct Cached {
    cache: KvCache,
    table: Vec<BlockId>,
    /// (positions, keys | values) as given
    rows: Vec<f32>,
    head_dim: usize,
    positions: usize,
}

fn cached(kind: KvType, positions: usize, head_dim: usize, seed: u32) -> Cached {
    let blocks = positions.div_ceil(BLOCK);
    let shape = KvShape {
        layers: 1,
        blocks: 2 * blocks + 1,
        block_tokens: BLOCK,
        kv_heads: KV_HEADS,
        head_dim,
        kind,
    };
    let table: Vec<BlockId> = (0..blocks)
        .rev()
        .map(|block| BlockId(u32::try_from(2 * block + 1).unwrap()))
        .collect();
    let places: Vec<KvPlace> = (0..positions)
        .map(|position| KvPlace {
            block: table[position / BLOCK].0,
            offset: u32::try_from(position % BLOCK).unwrap(),
        })
        .collect();
    let width = 2 * KV_HEADS * head_dim;
    let rows = numbers(positions * width, seed);
    let mut cache = KvCache::new(shape);
    let columns = Columns { width, key_col: 0 };
    cache.write(
        (&levels()[0], &mut Pool::new(2).unwrap()),
        0,
        &places,
        &rows,
        columns,
    );
    Cached {
        cache,
        table,
        rows,
        head_dim,
        positions,
    }
}

impl Cached {
    fn view(&self, window: Option<usize>) -> LayerView<'_> {
        LayerView {
            cells: self.cache.layer(0),
            tables: &self.table,
            head_count: HEADS,
            kv_heads: KV_HEADS,
            head_dim: self.head_dim,
            q_width: HEADS * self.head_dim,
            block_tokens: BLOCK,
            window,
        }
    }

    /// The last `tokens` tokens' attention in f64.
    fn exact(&self, q: &[f32], window: Option<usize>, tokens: usize) -> Vec<f64> {
        let (dim, width) = (self.head_dim, 2 * KV_HEADS * self.head_dim);
        let mut all = Vec::new();
        for (at, q) in q.chunks_exact(dim).enumerate() {
            let (token, head) = (at / HEADS, at % HEADS / (HEADS / KV_HEADS));
            let last = self.positions - tokens + token;
            let first = window.map_or(0, |window| (last + 1).saturating_sub(window));
            let key = |p: usize| &self.rows[p * width + head * dim..][..dim];
            let value = |p: usize| &self.rows[p * width + (KV_HEADS + head) * dim..][..dim];
            let dot = |p: usize| -> f64 {
                let products = q
                    .iter()
                    .zip(key(p))
                    .map(|(a, b)| f64::from(*a) * f64::from(*b));
                products.sum::<f64>() / (dim as f64).sqrt()
            };
            let scores: Vec<f64> = (first..=last).map(dot).collect();
            let best = scores.iter().copied().fold(f64::MIN, f64::max);
            let sum: f64 = scores.iter().map(|s| (s - best).exp()).sum();
            for d in 0..dim {
                let parts = (first..=last).zip(&scores);
                all.push(
                    parts
                        .map(|(p, s)| (s - best).exp() / sum * f64::from(value(p)[d]))
                        .sum(),
                );
            }
        }
        all
    }
}

/// Tiles of the last `tokens` tokens with so many tokens in each; a tile of one token in chunks where asked.
fn run(
    kernels: &Kernels,
    cached: &Cached,
    window: Option<usize>,
    (q, tokens): (&[f32], usize),
    (per_tile, is_split): (usize, bool),
) -> Vec<f32> {
    let count = |n: usize| u32::try_from(n).unwrap();
    let part_width = 2 + cached.head_dim.next_multiple_of(16);
    let (mut tiles, mut merges) = (Vec::new(), Vec::new());
    for at in (0..tokens).step_by(per_tile) {
        for kv_head in 0..KV_HEADS {
            let position = cached.positions - tokens + at;
            let group = HEADS / KV_HEADS;
            let mut tile = Tile {
                first_token: count(at),
                position: count(position),
                token_count: count(per_tile.min(tokens - at)),
                kv_head: count(kv_head),
                first_head: 0,
                head_count: count(group),
                table: 0,
                split: None,
            };
            if !is_split {
                tiles.push(tile);
                continue;
            }
            let chunks = count((position + 1).div_ceil(CHUNK));
            let first_part = merges.last().map_or(0, |m: &Merge| m.first_part + m.chunks);
            for chunk in 0..chunks {
                tile.split = Some(Split {
                    chunk,
                    chunks,
                    first_part,
                });
                tiles.push(tile);
            }
            for head in 0..count(group) {
                merges.push(Merge {
                    token: count(at),
                    head: count(kv_head * group) + head,
                    first_part: first_part + head * chunks,
                    chunks,
                });
            }
        }
    }
    let parts = merges
        .last()
        .map_or(0, |m| (m.first_part + m.chunks) as usize);
    let mut parts = vec![f32::NAN; parts * part_width];
    let mut out = vec![f32::NAN; tokens * HEADS * cached.head_dim];
    let attention = Attention {
        tiles: &tiles,
        merges: &merges,
        q,
        parts: &mut parts,
        out: &mut out,
    };
    kernels.attend_all(&mut Pool::new(2).unwrap(), &cached.view(window), attention);
    out
}

/// Numbers are up to 2, so keys and values in these formats are off by so much at most, and scores by more.
fn tolerance(kind: KvType) -> f64 {
    match kind {
        KvType::F32 => 1e-5,
        KvType::F16 => 4e-3,
        KvType::Bf16 | KvType::Int8 => 3e-2,
    }
}

#[test]
fn attention_is_right_and_the_same_however_it_is_cut() {
    for kind in [KvType::F32, KvType::Bf16, KvType::F16, KvType::Int8] {
        for (positions, head_dim) in [
            (1, 16),
            (40, 20),
            (CHUNK, 64),
            (CHUNK * 2 + 70, 64),
            (CHUNK + 1, 80),
        ] {
            let cached = cached(kind, positions, head_dim, 5);
            let tokens = positions.min(9);
            let q = numbers(tokens * HEADS * head_dim, 11);
            for window in [None, Some(17), Some(CHUNK + 30)] {
                let exact = cached.exact(&q, window, tokens);
                let want = run(&levels()[0], &cached, window, (&q, tokens), (1, false));
                for (got, exact) in want.iter().zip(&exact) {
                    let off = (f64::from(*got) - exact).abs();
                    assert!(
                        off < tolerance(kind),
                        "{kind:?} {positions} {window:?}: {got} {exact}"
                    );
                }
                for kernels in levels() {
                    for cut in [(1, false), (1, true), (2, false), (4, false)] {
                        let got = run(&kernels, &cached, window, (&q, tokens), cut);
                        assert_eq!(
                            got,
                            want,
                            "{kind:?} {:?} {positions} {window:?} {cut:?}",
                            kernels.level()
                        );
                    }
                }
            }
        }
    }
}
