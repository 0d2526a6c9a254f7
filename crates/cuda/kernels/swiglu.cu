// The gate of the feed-forward part: silu(gate) * up (arXiv 2002.05202).
#include "common.cuh"

DEVICE float silu_mul(float gate, float up) { return gate / (1.0f + exp2_fast(-1.442695041f * gate)) * up; }

// Grid: (parts of inner, tokens); a thread makes two neighbouring numbers.
//   gate_up  (tokens, gate | up: 2 inner) activations
//   bias     (2 inner) f32 or null
//   out      (tokens, inner) activations; inner is even
KERNEL swiglu(const act* gate_up, const float* bias, act* out, i32 inner) {
    i32 i = 2 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= inner) return;
    const act* row = gate_up + (u64)blockIdx.y * 2 * inner;
    float gates[2], ups[2];
    for (i32 at = 0; at < 2; ++at) {
        gates[at] = act_to_float(row[i + at]);
        ups[at] = act_to_float(row[inner + i + at]);
        if (bias) {
            gates[at] += bias[i + at];
            ups[at] += bias[inner + i + at];
        }
    }
    *(u32*)(out + (u64)blockIdx.y * inner + i) = pack_act(silu_mul(gates[0], ups[0]), silu_mul(gates[1], ups[1]));
}
