//! Kernels that work on one row at a time: norm, embedding, gate, and what follows the product of queries, keys and values.

use weir_cuda::device::{Address, Arguments, Execute as _, Launch};
use weir_cuda::kernels::{ActType, CacheType, Kernel, Variant};

use crate::numbers::{Random, assert_near};
use crate::shim::{BF16, F16, Shim};

/// What rounding to 8 bits makes of numbers up to 4.
const BF16_STEP: f32 = 0.016;

fn launch(shim: &mut Shim, kernel: Kernel, grid: [usize; 3], threads: usize, arguments: Arguments) {
    let launch = Launch {
        kernel,
        grid,
        threads,
        arguments,
    };
    shim.launch(&launch).unwrap();
}

fn norm(row: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let squares: f32 = row.iter().map(|x| x * x).sum();
    let scale = 1.0 / (squares / row.len() as f32 + eps).sqrt();
    row.iter().zip(weight).map(|(x, w)| x * scale * w).collect()
}

#[test]
fn the_norm_adds_what_the_layer_before_made() {
    let Some(mut shim) = Shim::start(BF16, 11) else {
        return;
    };
    let (tokens, hidden, eps) = (3, 100, 1e-5);
    let mut random = Random(1);
    let x = random.floats(tokens * hidden);
    let delta = random.floats(tokens * hidden);
    let (bias, weight) = (random.floats(hidden), random.floats(hidden));
    for (with_delta, rows) in [(false, None), (true, None), (true, Some([2i32, -1, 0]))] {
        let (at_x, at_delta) = (shim.put(&x), shim.put(&delta));
        let (at_bias, at_weight) = (shim.put(&bias), shim.put(&weight));
        let out = shim.put_act(&vec![7.0; tokens * hidden]);
        let at_rows = rows.map_or(Address::NONE, |rows| shim.put(&rows));
        let given = |at| if with_delta { at } else { Address::NONE };
        let arguments = Arguments::new()
            .at(at_x)
            .at(given(at_delta))
            .at(given(at_bias))
            .at(at_weight)
            .at(at_rows)
            .at(out)
            .int(hidden)
            .float(eps);
        launch(&mut shim, Kernel::RmsNorm, [tokens, 1, 1], 64, arguments);
        let got = shim.get_act(out, tokens * hidden);
        let mut want_x = x.clone();
        for (block, got) in got.chunks(hidden).enumerate() {
            let token = rows.map_or(block as i32, |rows| rows[block]);
            let Ok(token) = usize::try_from(token) else {
                assert!(
                    got.iter().all(|&x| x == 7.0),
                    "a row that fills up is left alone"
                );
                continue;
            };
            let row = &mut want_x[token * hidden..][..hidden];
            for (i, x) in row.iter_mut().enumerate().filter(|_| with_delta) {
                *x += delta[token * hidden + i] + bias[i];
            }
            assert_near("norm", got, &norm(row, &weight, eps), BF16_STEP);
        }
        assert_near("stream", &shim.get(at_x, tokens * hidden), &want_x, 1e-6);
    }
}

#[test]
fn the_embedding_takes_tokens_and_what_slots_sampled() {
    let Some(mut shim) = Shim::start(BF16, 12) else {
        return;
    };
    let (vocab, hidden) = (9, 20);
    let table = Random(2).floats(vocab * hidden);
    let (at_table, x) = (shim.put_act(&table), shim.room(3 * hidden * 4));
    let (tokens, last) = (shim.put(&[4i32, -1 - 2, 0]), shim.put(&[0u32, 0, 8]));
    let arguments = Arguments::new()
        .at(tokens)
        .at(last)
        .at(at_table)
        .at(x)
        .int(hidden);
    launch(&mut shim, Kernel::Embed, [3, 1, 1], 32, arguments);
    let got: Vec<f32> = shim.get(x, 3 * hidden);
    for (row, token) in got.chunks(hidden).zip([4, 8, 0]) {
        assert_near("embedding", row, &table[token * hidden..][..hidden], 0.004);
    }
}

#[test]
fn tables_change_where_they_are_told_to() {
    let Some(mut shim) = Shim::start(BF16, 16) else {
        return;
    };
    let mut want: Vec<u32> = (0..700).collect();
    let changes: Vec<u32> = (0..300).flat_map(|at| [at * 2 + 1, 9000 + at]).collect();
    let (tables, sent) = (shim.put(&want), shim.put(&changes));
    for change in changes.chunks(2) {
        want[change[0] as usize] = change[1];
    }
    let arguments = Arguments::new().at(sent).at(tables).int(300);
    launch(&mut shim, Kernel::UpdateTables, [2, 1, 1], 256, arguments);
    assert_eq!(shim.get::<u32>(tables, 700), want);
}

#[test]
fn the_gate_is_silu_times_up() {
    for act in [ActType::Bf16, ActType::F16] {
        let Some(mut shim) = Shim::start(if act == ActType::F16 { F16 } else { BF16 }, 13) else {
            return;
        };
        let (tokens, inner) = (2, 70);
        let mut random = Random(3);
        let (gate_up, bias) = (random.floats(tokens * 2 * inner), random.floats(2 * inner));
        for with_bias in [false, true] {
            let (from, at_bias) = (shim.put_act(&gate_up), shim.put(&bias));
            let out = shim.room(tokens * inner * 2);
            let at_bias = if with_bias { at_bias } else { Address::NONE };
            let arguments = Arguments::new().at(from).at(at_bias).at(out).int(inner);
            launch(&mut shim, Kernel::Swiglu, [2, tokens, 1], 32, arguments);
            let mut want = Vec::new();
            for row in gate_up.chunks(2 * inner) {
                let value = |i: usize| row[i] + if with_bias { bias[i] } else { 0.0 };
                want.extend(
                    (0..inner).map(|i| value(i) / (1.0 + (-value(i)).exp()) * value(inner + i)),
                );
            }
            let tolerance = if act == ActType::Bf16 {
                BF16_STEP
            } else {
                0.002
            };
            assert_near("gate", &shim.get_act(out, tokens * inner), &want, tolerance);
        }
    }
}

/// Shapes of one test of what follows the product.
struct Shape {
    heads: usize,
    kv_heads: usize,
    dim: usize,
}

/// Bias, norm and rotation of one head, as `transformers` has them.
fn finish(head: &mut Vec<f32>, bias: &[f32], norm_weight: Option<&[f32]>, position: Option<f32>) {
    let dim = head.len();
    head.iter_mut().zip(bias).for_each(|(x, bias)| *x += bias);
    if let Some(weight) = norm_weight {
        *head = norm(head, weight, 1e-6);
    }
    let Some(position) = position else {
        return;
    };
    for i in 0..dim / 2 {
        let (sin, cos) = angle(position, i, dim).sin_cos();
        let (a, b) = (head[i], head[i + dim / 2]);
        head[i] = a * cos - b * sin;
        head[i + dim / 2] = b * cos + a * sin;
    }
}

fn angle(position: f32, i: usize, dim: usize) -> f32 {
    position * 100.0f32.powf(-2.0 * i as f32 / dim as f32)
}

fn check_qkv(variant: Variant, heads: usize, kv_heads: usize) {
    let Some(mut shim) = Shim::start(variant, 14) else {
        return;
    };
    let Shape {
        heads,
        kv_heads,
        dim,
    } = Shape {
        heads,
        kv_heads,
        dim: variant.head_dim,
    };
    let (tokens, block_tokens, blocks, all) = (3, 16, 4, heads + 2 * kv_heads);
    let mut random = Random(4);
    let qkv = random.floats(tokens * all * dim);
    let bias = random.floats(all * dim);
    let (q_norm, k_norm) = (random.floats(dim), random.floats(dim));
    let (positions, places) = ([5i32, 40, 0], [3 * 16 + 5i32, -1, 16]);
    let angles: Vec<f32> = (0..64 * dim / 2)
        .flat_map(|at| {
            let (sin, cos) = angle((at / (dim / 2)) as f32, at % (dim / 2), dim).sin_cos();
            [cos, sin]
        })
        .collect();
    let cells = blocks * kv_heads * block_tokens;
    let (at_qkv, at_bias, at_angles) = (shim.put(&qkv), shim.put(&bias), shim.put(&angles));
    let norms = [shim.put(&q_norm), shim.put(&k_norm)];
    let (at_positions, at_places) = (shim.put(&positions), shim.put(&places));
    let q = shim.room(tokens * heads * dim * 2);
    let caches = [0; 2].map(|_| shim.room(cells * dim * 2));
    let scales = [0; 2].map(|_| shim.room(cells * 4));
    let mut arguments = Arguments::new()
        .at(at_qkv)
        .at(at_bias)
        .at(norms[0])
        .at(norms[1]);
    for at in [
        at_angles,
        at_positions,
        at_places,
        q,
        caches[0],
        caches[1],
        scales[0],
        scales[1],
    ] {
        arguments = arguments.at(at);
    }
    let arguments = arguments
        .int(heads)
        .int(kv_heads)
        .int(block_tokens)
        .float(1e-6);
    launch(
        &mut shim,
        Kernel::QkvFinish,
        [tokens, all.div_ceil(4), 1],
        128,
        arguments,
    );
    let got_q = shim.get_act(q, tokens * heads * dim);
    // fp8 keeps 4 bits of a number, of which the largest of its head is about 4.
    let is_fp8 = variant.cache == CacheType::Fp8;
    for (token, row) in qkv.chunks(all * dim).enumerate() {
        for (at, head) in row.chunks(dim).enumerate() {
            let (is_query, is_value) = (at < heads, at >= heads + kv_heads);
            let weight = if is_query { &q_norm } else { &k_norm };
            let mut want = head.to_vec();
            let position = (!is_value).then_some(positions[token] as f32);
            finish(
                &mut want,
                &bias[at * dim..][..dim],
                (!is_value).then_some(weight),
                position,
            );
            if is_query {
                assert_near(
                    "query",
                    &got_q[(token * heads + at) * dim..][..dim],
                    &want,
                    BF16_STEP,
                );
                continue;
            }
            let kind = usize::from(is_value);
            let kv_head = at - heads - kind * kv_heads;
            let Ok(place) = usize::try_from(places[token]) else {
                continue;
            };
            let index = (place / 16 * kv_heads + kv_head) * 16 + place % 16;
            let got = if is_fp8 {
                let scale: Vec<f32> = shim.get(scales[kind].after(4 * index as u64), 1);
                let bytes: Vec<u8> = shim.get(caches[kind].after((index * dim) as u64), dim);
                bytes.iter().map(|&byte| fp8(byte) * scale[0]).collect()
            } else {
                shim.get_act(caches[kind].after(2 * (index * dim) as u64), dim)
            };
            assert_near("cached", &got, &want, if is_fp8 { 0.13 } else { BF16_STEP });
        }
    }
}

/// Of an e4m3 number.
pub(crate) fn fp8(byte: u8) -> f32 {
    let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    sign * if exponent == 0 {
        mantissa * (-9f32).exp2()
    } else {
        (1.0 + mantissa / 8.0) * ((exponent - 7) as f32).exp2()
    }
}

#[test]
fn queries_keys_and_values_are_finished_and_cached() {
    for (head_dim, act) in [(64, ActType::Bf16), (8, ActType::F16), (16, ActType::Bf16)] {
        check_qkv(
            Variant {
                act,
                cache: CacheType::Act,
                head_dim,
            },
            4,
            2,
        );
    }
    check_qkv(
        Variant {
            cache: CacheType::Fp8,
            ..BF16
        },
        3,
        1,
    );
}
