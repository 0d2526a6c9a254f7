// The first steps of a pass: token ids to the residual stream, and block tables.
#include "common.cuh"
#include "quant.cuh"

// A token of the batch: an id, or -1 - slot where it is the one that slot sampled last and the host has not seen yet.
DEVICE u32 token_at(const i32* tokens, const u32* last_tokens) {
    i32 token = tokens[blockIdx.x];
    return token < 0 ? last_tokens[-1 - token] : (u32)token;
}

// One block for each token.
//   tokens       (grid) ids, or places in last_tokens
//   last_tokens  (slots)
//   table        (vocabulary, hidden) activations' type
//   x            (grid, hidden) f32
KERNEL embed(const i32* tokens, const u32* last_tokens, const act* table, float* x, i32 hidden) {
    const act* from = table + (u64)token_at(tokens, last_tokens) * hidden;
    float* to = x + (u64)blockIdx.x * hidden;
    for (i32 i = threadIdx.x; i < hidden; i += blockDim.x) to[i] = act_to_float(from[i]);
}

// The same from tables in eight and in four bits (see quant.cuh).
KERNEL embed_int8(const i32* tokens, const u32* last_tokens, const u8* data, const u16* scales, float* x, i32 hidden) {
    u32 token = token_at(tokens, last_tokens);
    float* to = x + (u64)blockIdx.x * hidden;
    for (i32 i = threadIdx.x; i < hidden; i += blockDim.x) to[i] = weight_int8(data, scales, token, i, groups_of(hidden));
}
KERNEL embed_int4(const i32* tokens, const u32* last_tokens, const u8* data, const u16* scales, const u16* minima, float* x, i32 hidden) {
    u32 token = token_at(tokens, last_tokens);
    float* to = x + (u64)blockIdx.x * hidden;
    for (i32 i = threadIdx.x; i < hidden; i += blockDim.x) to[i] = weight_int4(data, scales, minima, token, i, groups_of(hidden));
}

// Block tables, before the pass: a change for each thread.
//   changes  (count) a place in the tables, and the block that is there from now on; no place twice
//   tables   (slots, blocks of a context)
KERNEL update_tables(const Words2* changes, u32* tables, u32 count) {
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) tables[changes[at].x] = changes[at].y;
}
