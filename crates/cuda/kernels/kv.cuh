// The paged cache of keys and values.
//
// Keys and values of one layer each: (blocks, kv_heads, block_tokens, HEAD_DIM); a block holds `block_tokens` positions, a multiple of 16.
// KV says of what: 0 is the activations' type; 1 is fp8 (e4m3) with one f32 scale for each position and head, (blocks, kv_heads, block_tokens).
#pragma once
#include "common.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#endif
#ifndef KV
#define KV 0
#endif
#if HEAD_DIM % 8 || HEAD_DIM > 256
#error "HEAD_DIM must be a multiple of 8 up to 256"
#endif

#if KV
typedef u8 cell;
#else
typedef act cell;
#endif

// Index of a position's first scale; times HEAD_DIM, of its first number. `place` is block * block_tokens + offset.
DEVICE u64 kv_index(i32 place, i32 kv_head, i32 kv_heads, i32 block_tokens) {
    i32 block = place / block_tokens;
    return ((u64)block * kv_heads + kv_head) * block_tokens + (place - block * block_tokens);
}
