// Attention of one token of each sequence, its positions split among several blocks of threads so that few sequences fill the device too.
#include "attend.cuh"

#define WARPS 4

// Grid: (kv_heads * parts of a group, rows, splits), four warps each. A block has up to 16 heads of a group and a share of the positions, of
// which its warps take every fourth tile each.
//   starts     (rows) where a row's block table begins
//   lengths    (rows) positions to look at, its own included; 0: a row that only fills the batch up
//   q          (rows, kv_heads * group, HEAD_DIM) activations
//   parts      (rows, kv_heads * group, splits, HEAD_DIM + 2) f32: weighted sum, largest score, sum of weights
//   tables, keys, values, key_scales, value_scales, scale, window: as for paged_prefill
KERNEL paged_decode(const i32* starts, const i32* lengths, const i32* tables, const act* q, const cell* keys, const cell* values,
                    const float* key_scales, const float* value_scales, float* parts, i32 group, i32 kv_heads, i32 block_tokens, float scale,
                    i32 window) {
    SHARED float sums[2][16][HEAD_DIM + 2];
    i32 length = lengths[blockIdx.y];
    if (length == 0) return;
    i32 warp = threadIdx.x / WARP, g = threadIdx.x % WARP / 4, splits = gridDim.z;
    i32 kv_head = blockIdx.x % kv_heads, first_head = blockIdx.x / kv_heads * 16, heads = kv_heads * group;
    CacheView cache = {keys, values, key_scales, value_scales, tables + starts[blockIdx.y], kv_head, kv_heads, block_tokens};
    Queries queries;
    const act* from[2];
    for (i32 at = 0; at < 2; ++at) {
        i32 head = first_head + g + 8 * at;
        bool is_there = head < group;
        from[at] = is_there ? q + ((u64)blockIdx.y * heads + kv_head * group + head) * HEAD_DIM : nullptr;
        queries.position[at] = is_there ? length - 1 : -1;
    }
    load_queries(queries, from[0], from[1]);
    i32 skipped = window > 0 && length > window ? (length - window) / TILE : 0;
    i32 share = ((length + TILE - 1) / TILE - skipped + splits - 1) / splits;
    i32 begin = (skipped + (i32)blockIdx.z * share) * TILE, end = begin + share * TILE < length ? begin + share * TILE : length;
    Outputs outputs;
    clear(outputs);
    for (i32 first = begin + warp * TILE; first < end; first += WARPS * TILE) attend_tile(queries, outputs, cache, first, end, scale, window);
    finish_sums(outputs);
    // The upper half of the warps hands over to the lower one, twice.
    for (i32 half = WARPS / 2; half > 0; half /= 2) {
        if (warp >= half && warp < 2 * half)
            for (i32 at = 0; at < 2; ++at) {
                float* row = sums[warp - half][g + 8 * at];
                for (i32 n = 0; n < COLUMNS; ++n)
                    for (i32 column = 0; column < 2; ++column) row[output_column(n, column)] = outputs.o[n][2 * at + column];
                if (threadIdx.x % 4 == 0) row[HEAD_DIM] = outputs.best[at], row[HEAD_DIM + 1] = outputs.sum[at];
            }
        __syncthreads();
        if (warp < half)
            for (i32 at = 0; at < 2; ++at) {
                const float* row = sums[warp][g + 8 * at];
                float best = fmaxf(outputs.best[at], row[HEAD_DIM]);
                float mine = best > MINUS_INFINITY ? exp2_fast(outputs.best[at] - best) : 0.0f;
                float theirs = best > MINUS_INFINITY ? exp2_fast(row[HEAD_DIM] - best) : 0.0f;
                outputs.best[at] = best;
                outputs.sum[at] = outputs.sum[at] * mine + row[HEAD_DIM + 1] * theirs;
                for (i32 n = 0; n < COLUMNS; ++n)
                    for (i32 column = 0; column < 2; ++column) {
                        float* o = &outputs.o[n][2 * at + column];
                        *o = *o * mine + row[output_column(n, column)] * theirs;
                    }
            }
        __syncthreads();
    }
    if (warp != 0) return;
    for (i32 at = 0; at < 2; ++at) {
        i32 head = first_head + g + 8 * at;
        if (head >= group) continue;
        float* to = parts + (((u64)blockIdx.y * heads + kv_head * group + head) * splits + blockIdx.z) * (HEAD_DIM + 2);
        for (i32 n = 0; n < COLUMNS; ++n)
            for (i32 column = 0; column < 2; ++column) to[output_column(n, column)] = outputs.o[n][2 * at + column];
        if (threadIdx.x % 4 == 0) to[HEAD_DIM] = outputs.best[at], to[HEAD_DIM + 1] = outputs.sum[at];
    }
}

// Grid: (heads, rows): joins the parts of each head.
//   parts, lengths  as above
//   out             (rows, heads, HEAD_DIM) activations
KERNEL combine(const float* parts, const i32* lengths, act* out, i32 splits) {
    if (lengths[blockIdx.y] == 0) return;
    u64 head = (u64)blockIdx.y * gridDim.x + blockIdx.x;
    const float* from = parts + head * splits * (HEAD_DIM + 2);
    float best = MINUS_INFINITY, sum = 0.0f;
    for (i32 at = 0; at < splits; ++at) best = fmaxf(best, from[at * (HEAD_DIM + 2) + HEAD_DIM]);
    for (i32 at = 0; at < splits; ++at) {
        const float* part = from + at * (HEAD_DIM + 2);
        sum += part[HEAD_DIM + 1] * exp2_fast(part[HEAD_DIM] - best);
    }
    for (i32 i = threadIdx.x; i < HEAD_DIM; i += blockDim.x) {
        float value = 0.0f;
        for (i32 at = 0; at < splits; ++at) {
            const float* part = from + at * (HEAD_DIM + 2);
            value += part[i] * exp2_fast(part[HEAD_DIM] - best);
        }
        out[head * HEAD_DIM + i] = float_to_act(value / sum);
    }
}
