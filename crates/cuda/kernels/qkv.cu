// What follows the product that makes queries, keys and values: bias, norm of queries and keys, rotation, and the write to the cache.
#include "kv.cuh"

#define HALF_DIM (HEAD_DIM / 2)
#define PAIRS ((HALF_DIM + WARP - 1) / WARP)

// Grid: (tokens, heads / 4), four warps each; a warp has one head of one token, queries first, then keys, then values.
//   qkv        (tokens, (heads + 2 kv_heads) * HEAD_DIM) f32
//   bias       ((heads + 2 kv_heads) * HEAD_DIM) f32 or null
//   q_norm, k_norm  (HEAD_DIM) f32 or null
//   angles     (positions, HEAD_DIM / 2, cosine | sine) f32
//   positions  (tokens)
//   places     (tokens) where keys and values go: block * block_tokens + offset; negative: nowhere
//   q          (tokens, heads, HEAD_DIM) activations
//   keys, values, key_scales, value_scales: see kv.cuh; scales are null unless KV is 1
KERNEL qkv_finish(const float* qkv, const float* bias, const float* q_norm, const float* k_norm, const float* angles,
                  const i32* positions, const i32* places, act* q, cell* keys, cell* values, float* key_scales, float* value_scales,
                  i32 heads, i32 kv_heads, i32 block_tokens, float eps) {
    i32 token = blockIdx.x, lane = threadIdx.x % WARP;
    i32 head = blockIdx.y * (blockDim.x / WARP) + threadIdx.x / WARP;
    i32 all = heads + 2 * kv_heads;
    if (head >= all) return;
    i32 place = places[token];
    bool is_query = head < heads, is_value = head >= heads + kv_heads;
    if (place < 0 && !is_query) return;
    const float* from = qkv + ((u64)token * all + head) * HEAD_DIM;
    // Numbers i and i + HALF_DIM of the head, for i = lane, lane + 32, ...
    float low[PAIRS], high[PAIRS];
    float squares = 0.0f;
    for (i32 at = 0; at < PAIRS; ++at) {
        i32 i = at * WARP + lane;
        bool is_in = i < HALF_DIM;
        low[at] = is_in ? from[i] : 0.0f;
        high[at] = is_in ? from[i + HALF_DIM] : 0.0f;
        if (bias && is_in) {
            low[at] += bias[(u64)head * HEAD_DIM + i];
            high[at] += bias[(u64)head * HEAD_DIM + i + HALF_DIM];
        }
        squares += low[at] * low[at] + high[at] * high[at];
    }
    const float* norm = is_value ? nullptr : is_query ? q_norm : k_norm;
    if (norm) {
        float scale = rsqrtf(warp_sum(squares) / (float)HEAD_DIM + eps);
        for (i32 at = 0; at < PAIRS; ++at) {
            i32 i = at * WARP + lane;
            if (i >= HALF_DIM) break;
            low[at] *= scale * norm[i];
            high[at] *= scale * norm[i + HALF_DIM];
        }
    }
    if (!is_value) {
        const float* angle = angles + (u64)positions[token] * HEAD_DIM;
        for (i32 at = 0; at < PAIRS; ++at) {
            i32 i = at * WARP + lane;
            if (i >= HALF_DIM) break;
            float cosine = angle[2 * i], sine = angle[2 * i + 1], a = low[at], b = high[at];
            low[at] = a * cosine - b * sine;
            high[at] = b * cosine + a * sine;
        }
    }
    if (is_query) {
        act* to = q + ((u64)token * heads + head) * HEAD_DIM;
        for (i32 at = 0; at < PAIRS; ++at) {
            i32 i = at * WARP + lane;
            if (i >= HALF_DIM) break;
            to[i] = float_to_act(low[at]);
            to[i + HALF_DIM] = float_to_act(high[at]);
        }
        return;
    }
    u64 index = kv_index(place, head - heads - (is_value ? kv_heads : 0), kv_heads, block_tokens);
    cell* to = (is_value ? values : keys) + index * HEAD_DIM;
#if KV
    float most = 0.0f;
    for (i32 at = 0; at < PAIRS; ++at) most = fmaxf(most, fmaxf(fabsf(low[at]), fabsf(high[at])));
    most = warp_max(most);
    float scale = most > 0.0f ? most / 448.0f : 1.0f;
    if (lane == 0) (is_value ? value_scales : key_scales)[index] = scale;
    for (i32 at = 0; at < PAIRS; ++at) {
        i32 i = at * WARP + lane;
        if (i >= HALF_DIM) break;
        to[i] = float_to_fp8(low[at] / scale);
        to[i + HALF_DIM] = float_to_fp8(high[at] / scale);
    }
#else
    for (i32 at = 0; at < PAIRS; ++at) {
        i32 i = at * WARP + lane;
        if (i >= HALF_DIM) break;
        to[i] = float_to_act(low[at]);
        to[i + HALF_DIM] = float_to_act(high[at]);
    }
#endif
}
