// Attention of one warp: up to 16 query rows over cached positions, 16 at a time, on the matrix units.
//
// Nothing goes through shared memory. A product sums over columns in any order as long as both sides agree, so a lane takes eight
// neighbouring numbers of a key (16 bytes) and the queries' numbers are laid out to fit; and output columns may be any numbers of a
// head, so a lane takes HEAD_DIM / 8 neighbouring numbers of a value. See device.cuh for what a lane holds of a product; g is lane / 4 and q is
// lane % 4.
#pragma once
#include "kv.cuh"

#define TILE 16 // Positions at a time.
#define STEPS ((HEAD_DIM + 31) / 32 * 2) // Products of 16 columns each that make up a dot product of queries and keys.
#define COLUMNS (HEAD_DIM / 8) // Numbers of a value that a lane has, and products of 8 columns that make up the output.

// Query rows g and g + 8 of this lane.
struct Queries {
    u32 a[STEPS][4];
    i32 position[2]; // -1: there is no such row.
};
// Output rows g and g + 8: o[n][0..2] and o[n][2..4] are numbers 2q * COLUMNS + n and (2q + 1) * COLUMNS + n of each.
struct Outputs {
    float o[COLUMNS][4];
    float best[2]; // Largest score so far, in powers of two.
    float sum[2]; // Sum of weights, this lane's columns only until finish_sums.
};

// Where the cache is, for one key head of one sequence.
struct CacheView {
    const cell* keys;
    const cell* values;
    const float* key_scales;
    const float* value_scales;
    const i32* table;
    i32 kv_head, kv_heads, block_tokens;
};

DEVICE Words4 load_words4(const void* from) { return *(const Words4*)from; }

DEVICE void load_queries(Queries& queries, const act* row0, const act* row1) {
    i32 q = threadIdx.x % 4;
    for (i32 c = 0; c < STEPS / 2; ++c) {
        i32 first = 32 * c + 8 * q;
        Words4 zero = {0, 0, 0, 0};
        Words4 low = row0 && first < HEAD_DIM ? load_words4(row0 + first) : zero;
        Words4 high = row1 && first < HEAD_DIM ? load_words4(row1 + first) : zero;
        u32* a = queries.a[2 * c];
        a[0] = low.x, a[1] = high.x, a[2] = low.y, a[3] = high.y;
        a = queries.a[2 * c + 1];
        a[0] = low.z, a[1] = high.z, a[2] = low.w, a[3] = high.w;
    }
}

DEVICE void clear(Outputs& out) {
    for (i32 n = 0; n < COLUMNS; ++n)
        for (i32 at = 0; at < 4; ++at) out.o[n][at] = 0.0f;
    for (i32 at = 0; at < 2; ++at) {
        out.best[at] = MINUS_INFINITY;
        out.sum[at] = 0.0f;
    }
}

// Eight numbers of a key from `first` on, as activations.
DEVICE Words4 load_key(const cell* key, i32 first) {
    Words4 zero = {0, 0, 0, 0};
    if (first >= HEAD_DIM) return zero;
#if KV
    Words2 bytes = *(const Words2*)(key + first);
    Words4 words = {fp8_to_act((u16)bytes.x), fp8_to_act((u16)(bytes.x >> 16)), fp8_to_act((u16)bytes.y), fp8_to_act((u16)(bytes.y >> 16))};
    return words;
#else
    return load_words4(key + first);
#endif
}

// This lane's COLUMNS numbers of a value as halves of words; zeros where the position is not there, since zero times what lies
// there may be no number.
DEVICE void load_value(u32 words[(COLUMNS + 1) / 2], const cell* value, bool is_there) {
    i32 first = threadIdx.x % WARP / 4 * COLUMNS;
    for (i32 at = 0; at < (COLUMNS + 1) / 2; ++at) words[at] = 0;
    if (!is_there) return;
#if KV
    for (i32 at = 0; at < COLUMNS / 2; ++at) words[at] = fp8_to_act((u16)(value[first + 2 * at] | value[first + 2 * at + 1] << 8));
    if (COLUMNS % 2) words[COLUMNS / 2] = fp8_to_act(value[first + COLUMNS - 1]);
#else
#if COLUMNS % 8 == 0
    for (i32 at = 0; at < COLUMNS / 8; ++at) *(Words4*)(words + 4 * at) = load_words4(value + first + 8 * at);
#elif COLUMNS % 2 == 0
    for (i32 at = 0; at < COLUMNS / 2; ++at) words[at] = *(const u32*)(value + first + 2 * at);
#else
    for (i32 at = 0; at < COLUMNS; ++at) words[at / 2] |= (u32)value[first + at] << at % 2 * 16;
#endif
#endif
}

// One tile: positions `first` .. first + 16 (a multiple of 16, so in one block), of which those below `end` are there.
//   scale   what scores are multiplied with, times log2(e)
//   window  0, or how many positions a row sees, its own included
DEVICE void attend_tile(const Queries& queries, Outputs& out, const CacheView& cache, i32 first, i32 end, float scale, i32 window) {
    i32 g = threadIdx.x % WARP / 4, q = threadIdx.x % 4;
    i32 block = cache.table[first / cache.block_tokens];
    u64 index = kv_index(block * cache.block_tokens + first % cache.block_tokens, cache.kv_head, cache.kv_heads, cache.block_tokens);
    const cell* keys = cache.keys + index * HEAD_DIM;
    const cell* values = cache.values + index * HEAD_DIM;
    // s[half]: rows g and g + 8, positions first + 8 half + 2q and the next one
    float s[2][4];
    for (i32 half = 0; half < 2; ++half) {
        for (i32 at = 0; at < 4; ++at) s[half][at] = 0.0f;
        const cell* key = keys + (8 * half + g) * HEAD_DIM;
        for (i32 c = 0; c < STEPS / 2; ++c) {
            Words4 words = load_key(key, 32 * c + 8 * q);
            u32 b[2] = {words.x, words.y};
            mma_act(s[half], queries.a[2 * c], b);
            b[0] = words.z, b[1] = words.w;
            mma_act(s[half], queries.a[2 * c + 1], b);
        }
    }
    float best[2] = {out.best[0], out.best[1]};
    for (i32 half = 0; half < 2; ++half)
        for (i32 at = 0; at < 4; ++at) {
            i32 offset = 8 * half + 2 * q + at % 2, position = first + offset, row = queries.position[at / 2];
            float score = s[half][at] * scale;
#if KV
            if (position < end) score *= cache.key_scales[index + offset];
#endif
            bool is_seen = position < end && position <= row && (window == 0 || position > row - window);
            s[half][at] = is_seen ? score : MINUS_INFINITY;
            best[at / 2] = fmaxf(best[at / 2], s[half][at]);
        }
    bool is_higher = false;
    for (i32 row = 0; row < 2; ++row) {
        // The four lanes of a row agree.
        best[row] = fmaxf(best[row], __shfl_xor_sync(ALL_LANES, best[row], 1));
        best[row] = fmaxf(best[row], __shfl_xor_sync(ALL_LANES, best[row], 2));
        is_higher |= best[row] > out.best[row];
    }
    if (__any_sync(ALL_LANES, is_higher)) {
        float shrink[2];
        for (i32 row = 0; row < 2; ++row) {
            shrink[row] = best[row] > out.best[row] ? exp2_fast(out.best[row] - best[row]) : 1.0f;
            out.sum[row] *= shrink[row];
            out.best[row] = best[row];
        }
        for (i32 n = 0; n < COLUMNS; ++n)
            for (i32 at = 0; at < 4; ++at) out.o[n][at] *= shrink[at / 2];
    }
    for (i32 half = 0; half < 2; ++half)
        for (i32 at = 0; at < 4; ++at) {
            bool is_seen = s[half][at] > MINUS_INFINITY;
            float weight = is_seen ? exp2_fast(s[half][at] - out.best[at / 2]) : 0.0f;
            out.sum[at / 2] += weight;
#if KV
            if (is_seen) weight *= cache.value_scales[index + 8 * half + 2 * q + at % 2];
#endif
            s[half][at] = weight;
        }
    u32 a[4] = {pack_act(s[0][0], s[0][1]), pack_act(s[0][2], s[0][3]), pack_act(s[1][0], s[1][1]), pack_act(s[1][2], s[1][3])};
    u32 words[4][(COLUMNS + 1) / 2];
    for (i32 at = 0; at < 4; ++at) {
        i32 offset = 8 * (at / 2) + 2 * q + at % 2;
        load_value(words[at], values + offset * HEAD_DIM, first + offset < end);
    }
    for (i32 n = 0; n < COLUMNS; ++n) {
        u32 halves = n % 2 ? 0x7632 : 0x5410;
        u32 b[2] = {__byte_perm(words[0][n / 2], words[1][n / 2], halves), __byte_perm(words[2][n / 2], words[3][n / 2], halves)};
        mma_act(out.o[n], a, b);
    }
}

// Sums of weights over the four lanes of each row.
DEVICE void finish_sums(Outputs& out) {
    for (i32 row = 0; row < 2; ++row) {
        out.sum[row] += __shfl_xor_sync(ALL_LANES, out.sum[row], 1);
        out.sum[row] += __shfl_xor_sync(ALL_LANES, out.sum[row], 2);
    }
}

// Number `at` (0 or 1) of pair n of this lane, as an index into a head.
DEVICE i32 output_column(i32 n, i32 at) { return (2 * (threadIdx.x % 4) + at) * COLUMNS + n; }
