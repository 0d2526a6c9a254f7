// Attention of prompts: many tokens of a sequence at once, each over what comes before it, the pieces computed earlier included.
#include "attend.cuh"

// Grid: (tiles, kv_heads), four warps each. Query rows of one sequence and key head lie one behind the other: row r is head r % group
// of token r / group; a tile is 64 of them, a warp has 16.
//   tiles      (grid.x, 4) first token of the sequence in the batch, its count of tokens, first query row, where its block table begins
//   tables     all block tables
//   positions  (tokens)
//   q, out     (tokens, kv_heads * group, HEAD_DIM) activations
//   keys, values, key_scales, value_scales: see kv.cuh
//   scale, window: see attend.cuh
KERNEL paged_prefill(const i32* tiles, const i32* tables, const i32* positions, const act* q, const cell* keys, const cell* values,
                     const float* key_scales, const float* value_scales, act* out, i32 group, i32 kv_heads, i32 block_tokens, float scale,
                     i32 window) {
    const i32* tile = tiles + 4 * blockIdx.x;
    i32 first_token = tile[0], rows = tile[1] * group, first_row = tile[2] + threadIdx.x / WARP * 16;
    if (first_row >= rows) return;
    CacheView cache = {keys, values, key_scales, value_scales, tables + tile[3], (i32)blockIdx.y, kv_heads, block_tokens};
    i32 heads = kv_heads * group, g = threadIdx.x % WARP / 4;
    Queries queries;
    const act* from[2];
    u64 places[2];
    for (i32 at = 0; at < 2; ++at) {
        i32 row = first_row + g + 8 * at, token = first_token + row / group;
        bool is_there = row < rows;
        places[at] = ((u64)token * heads + blockIdx.y * group + row % group) * HEAD_DIM;
        from[at] = is_there ? q + places[at] : nullptr;
        queries.position[at] = is_there ? positions[token] : -1;
    }
    load_queries(queries, from[0], from[1]);
    i32 last_row = (first_row + 15 < rows ? first_row + 15 : rows - 1);
    i32 lowest = positions[first_token + first_row / group], end = positions[first_token + last_row / group] + 1;
    i32 begin = window > 0 && lowest - window + 1 > 0 ? (lowest - window + 1) / TILE * TILE : 0;
    Outputs outputs;
    clear(outputs);
    for (i32 first = begin; first < end; first += TILE) attend_tile(queries, outputs, cache, first, end, scale, window);
    finish_sums(outputs);
    for (i32 at = 0; at < 2; ++at) {
        if (queries.position[at] < 0) continue;
        float share = 1.0f / outputs.sum[at];
        for (i32 n = 0; n < COLUMNS; ++n)
            for (i32 column = 0; column < 2; ++column)
                out[places[at] + output_column(n, column)] = float_to_act(outputs.o[n][2 * at + column] * share);
    }
}
