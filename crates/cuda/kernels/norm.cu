// RMSNorm (arXiv 1910.07467), with what is added to the residual stream before it.
#include "common.cuh"

// One block of threads for each row.
//   x       (tokens, hidden) f32, the residual stream; x += delta + bias, where these are given
//   delta   (tokens, hidden) f32 or null: what the layer before adds
//   bias    (hidden) f32 or null: the bias of that layer's last product
//   weight  (hidden) f32
//   rows    (grid) or null: which token each block works on; without it, the one of its own number
//   out     (grid, hidden) activations
KERNEL rms_norm(float* x, const float* delta, const float* bias, const float* weight, const i32* rows, act* out, i32 hidden, float eps) {
    SHARED float scratch[WARP];
    i32 token = rows ? rows[blockIdx.x] : (i32)blockIdx.x;
    if (token < 0) return; // A row that only fills the batch up.
    float* row = x + (u64)token * hidden;
    float squares = 0.0f;
    for (i32 i = threadIdx.x; i < hidden; i += blockDim.x) {
        float value = row[i];
        if (delta) {
            value += delta[(u64)token * hidden + i];
            if (bias) value += bias[i];
            row[i] = value;
        }
        squares += value * value;
    }
    float scale = rsqrtf(block_sum(squares, scratch) / (float)hidden + eps);
    act* to = out + (u64)blockIdx.x * hidden;
    for (i32 i = threadIdx.x; i < hidden; i += blockDim.x) to[i] = float_to_act(row[i] * scale * weight[i]);
}
