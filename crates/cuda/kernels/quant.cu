// Products with weights in eight and in four bits (quant.cuh): of up to eight rows, which only read, and of more rows on the matrix
// units; and weights as they would be in 16 bits, for large products by cuBLASLt.
//
//   x    (tokens, inputs) activations; inputs is a multiple of 4
//   out  (tokens, stride) f32, or activations where is_act; the product's outputs begin at `out`
#include "quant.cuh"

DEVICE void store(void* out, u64 index, float value, i32 is_act) {
    if (is_act) ((act*)out)[index] = float_to_act(value);
    else ((float*)out)[index] = value;
}

// Four activations from input `first` on; zeros beyond the last one.
DEVICE Words2 load_inputs(const act* row, i32 first, i32 inputs) {
    Words2 zero = {0, 0};
    return first < inputs ? *(const Words2*)(row + first) : zero;
}

// Byte `at` of a word, with and without sign.
DEVICE float signed_byte(u32 word, i32 at) { return (float)(i8)(word >> 8 * at); }
DEVICE float unsigned_byte(u32 word, i32 at) { return (float)(u8)(word >> 8 * at); }

#define GEMV_WARPS 8

// Grid: (panels), eight warps each, which take every eighth group. A lane has 4 inputs and 4 of the panel's outputs.
template <int BITS, int TOKENS>
DEVICE void gemv(const act* x, const u8* data, const u16* scales, const u16* minima, void* out, i32 tokens, i32 outputs, i32 inputs, i32 stride,
                 i32 is_act, float (*sums)[PANEL][TOKENS]) {
    i32 groups = groups_of(inputs), warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, chunk = lane / 4, first_output = lane % 4 * 4;
    float sum[4][TOKENS];
    for (i32 j = 0; j < 4; ++j)
        for (i32 t = 0; t < TOKENS; ++t) sum[j][t] = 0.0f;
    for (i32 group = warp; group < groups; group += GEMV_WARPS) {
        u64 index = (u64)blockIdx.x * groups + group;
        Words2 scale = *(const Words2*)(scales + index * PANEL + first_output);
        float scale_of[4] = {bf16_to_float((u16)scale.x), bf16_to_float((u16)(scale.x >> 16)), bf16_to_float((u16)scale.y), bf16_to_float((u16)(scale.y >> 16))};
        Words4 words[2];
        if (BITS == 8) {
            words[0] = ((const Words4*)(data + index * 1024))[lane];
            words[1] = ((const Words4*)(data + index * 1024))[lane + WARP];
        } else {
            Words4 both = ((const Words4*)(data + index * 512))[lane];
            const u32 low = 0x0f0f0f0fu;
            words[0] = {both.x & low, both.y & low, both.z & low, both.w & low};
            words[1] = {both.x >> 4 & low, both.y >> 4 & low, both.z >> 4 & low, both.w >> 4 & low};
        }
        float minimum_of[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        if (BITS == 4) {
            Words2 minimum = *(const Words2*)(minima + index * PANEL + first_output);
            minimum_of[0] = bf16_to_float((u16)minimum.x), minimum_of[1] = bf16_to_float((u16)(minimum.x >> 16));
            minimum_of[2] = bf16_to_float((u16)minimum.y), minimum_of[3] = bf16_to_float((u16)(minimum.y >> 16));
        }
#pragma unroll
        for (i32 half = 0; half < 2; ++half) {
            u32 weights[4] = {words[half].x, words[half].y, words[half].z, words[half].w};
            i32 input = group * GROUP + half * GROUP / 2 + chunk * 4;
            for (i32 t = 0; t < TOKENS; ++t) {
                if (t >= tokens) break;
                Words2 pair = load_inputs(x + (u64)t * inputs, input, inputs);
                float in[4] = {act_to_float((u16)pair.x), act_to_float((u16)(pair.x >> 16)), act_to_float((u16)pair.y), act_to_float((u16)(pair.y >> 16))};
                float total = in[0] + in[1] + in[2] + in[3];
                for (i32 j = 0; j < 4; ++j) {
                    float dot = 0.0f;
                    for (i32 i = 0; i < 4; ++i) dot += (BITS == 8 ? signed_byte(weights[j], i) : unsigned_byte(weights[j], i)) * in[i];
                    sum[j][t] += scale_of[j] * dot;
                    if (BITS == 4) sum[j][t] += minimum_of[j] * total;
                }
            }
        }
    }
    for (i32 j = 0; j < 4; ++j)
        for (i32 t = 0; t < TOKENS; ++t) {
            for (i32 step = 4; step < WARP; step *= 2) sum[j][t] += __shfl_xor_sync(ALL_LANES, sum[j][t], step);
            if (chunk == 0) sums[warp][first_output + j][t] = sum[j][t];
        }
    __syncthreads();
    i32 output = threadIdx.x % PANEL, token = threadIdx.x / PANEL;
    if (token >= tokens || token >= TOKENS || blockIdx.x * PANEL + output >= outputs) return;
    float total = 0.0f;
    for (i32 at = 0; at < GEMV_WARPS; ++at) total += sums[at][output][token];
    store(out, (u64)token * stride + blockIdx.x * PANEL + output, total, is_act);
}

#define GEMV(NAME, BITS, TOKENS)                                                                                                                      \
    KERNEL NAME(const act* x, const u8* data, const u16* scales, const u16* minima, void* out, i32 tokens, i32 outputs, i32 inputs, i32 stride,       \
                i32 is_act) {                                                                                                                         \
        SHARED float sums[GEMV_WARPS][PANEL][TOKENS];                                                                                                 \
        gemv<BITS, TOKENS>(x, data, scales, minima, out, tokens, outputs, inputs, stride, is_act, sums);                                              \
    }
GEMV(int8_gemv_1, 8, 1)
GEMV(int8_gemv_2, 8, 2)
GEMV(int8_gemv_4, 8, 4)
GEMV(int8_gemv_8, 8, 8)
GEMV(int4_gemv_1, 4, 1)
GEMV(int4_gemv_2, 4, 2)
GEMV(int4_gemv_4, 4, 4)
GEMV(int4_gemv_8, 4, 8)

#define ROW_TILES 4

// Grid: (panels / 4, tokens / 64), four warps each; a warp has one panel and 64 rows. Integers are multiplied as they are, which 16
// bits hold exactly; what a group sums up to is scaled in f32. A product of 16 inputs takes them in the order 4q, 4q + 1, 4q + 2, 4q + 3 for a
// lane's four, on both sides.
template <int BITS>
DEVICE void gemm(const act* x, const u8* data, const u16* scales, const u16* minima, void* out, i32 tokens, i32 outputs, i32 inputs, i32 stride,
                 i32 is_act) {
    i32 groups = groups_of(inputs), lane = threadIdx.x % WARP, g = lane / 4, q = lane % 4;
    i32 panel = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, first_token = blockIdx.y * ROW_TILES * 16;
    if (panel * PANEL >= outputs) return;
    // [tile of rows][half of the panel][lane's four]
    float sum[ROW_TILES][2][4];
    for (i32 m = 0; m < ROW_TILES; ++m)
        for (i32 n = 0; n < 2; ++n)
            for (i32 at = 0; at < 4; ++at) sum[m][n][at] = 0.0f;
    u32 ones = pack_act(1.0f, 1.0f);
    for (i32 group = 0; group < groups; ++group) {
        u64 index = (u64)panel * groups + group;
        float part[ROW_TILES][2][4], total[ROW_TILES][4];
        for (i32 m = 0; m < ROW_TILES; ++m)
            for (i32 at = 0; at < 4; ++at) part[m][0][at] = part[m][1][at] = total[m][at] = 0.0f;
        for (i32 step = 0; step < GROUP / 16; ++step) {
            u32 b[2][2];
            for (i32 n = 0; n < 2; ++n) {
                u32 word;
                if (BITS == 8) {
                    word = ((const u32*)(data + index * 1024))[(4 * step + q) * PANEL + 8 * n + g];
                    b[n][0] = pack_act(signed_byte(word, 0), signed_byte(word, 1));
                    b[n][1] = pack_act(signed_byte(word, 2), signed_byte(word, 3));
                } else {
                    word = ((const u32*)(data + index * 512))[(4 * (step % 2) + q) * PANEL + 8 * n + g] >> step / 2 * 4 & 0x0f0f0f0fu;
                    b[n][0] = pack_act(unsigned_byte(word, 0), unsigned_byte(word, 1));
                    b[n][1] = pack_act(unsigned_byte(word, 2), unsigned_byte(word, 3));
                }
            }
            i32 input = group * GROUP + 16 * step + 4 * q;
            for (i32 m = 0; m < ROW_TILES; ++m) {
                i32 row = first_token + 16 * m + g;
                if (first_token + 16 * m >= tokens) break;
                Words2 zero = {0, 0};
                Words2 low = row < tokens ? load_inputs(x + (u64)row * inputs, input, inputs) : zero;
                Words2 high = row + 8 < tokens ? load_inputs(x + (u64)(row + 8) * inputs, input, inputs) : zero;
                u32 a[4] = {low.x, high.x, low.y, high.y};
                mma_act(part[m][0], a, b[0]);
                mma_act(part[m][1], a, b[1]);
                if (BITS == 4) {
                    u32 b_ones[2] = {ones, ones};
                    mma_act(total[m], a, b_ones);
                }
            }
        }
        for (i32 n = 0; n < 2; ++n)
            for (i32 column = 0; column < 2; ++column) {
                u64 number = index * PANEL + 8 * n + 2 * q + column;
                float scale = bf16_to_float(scales[number]), minimum = BITS == 4 ? bf16_to_float(minima[number]) : 0.0f;
                for (i32 m = 0; m < ROW_TILES; ++m)
                    for (i32 at = column; at < 4; at += 2) {
                        sum[m][n][at] += scale * part[m][n][at];
                        if (BITS == 4) sum[m][n][at] += minimum * total[m][at];
                    }
            }
    }
    for (i32 m = 0; m < ROW_TILES; ++m)
        for (i32 n = 0; n < 2; ++n)
            for (i32 at = 0; at < 4; ++at) {
                i32 token = first_token + 16 * m + g + 8 * (at / 2), output = panel * PANEL + 8 * n + 2 * q + at % 2;
                if (token < tokens && output < outputs) store(out, (u64)token * stride + output, sum[m][n][at], is_act);
            }
}

KERNEL int8_gemm(const act* x, const u8* data, const u16* scales, const u16* minima, void* out, i32 tokens, i32 outputs, i32 inputs, i32 stride, i32 is_act) {
    gemm<8>(x, data, scales, minima, out, tokens, outputs, inputs, stride, is_act);
}
KERNEL int4_gemm(const act* x, const u8* data, const u16* scales, const u16* minima, void* out, i32 tokens, i32 outputs, i32 inputs, i32 stride, i32 is_act) {
    gemm<4>(x, data, scales, minima, out, tokens, outputs, inputs, stride, is_act);
}

// Grid: (outputs): one row of weights to activations' type, (outputs, inputs).
KERNEL int8_dequantize(const u8* data, const u16* scales, const u16* minima, act* out, i32 inputs) {
    for (i32 i = threadIdx.x; i < inputs; i += blockDim.x)
        out[(u64)blockIdx.x * inputs + i] = float_to_act(weight_int8(data, scales, blockIdx.x, i, groups_of(inputs)));
}
KERNEL int4_dequantize(const u8* data, const u16* scales, const u16* minima, act* out, i32 inputs) {
    for (i32 i = threadIdx.x; i < inputs; i += blockDim.x)
        out[(u64)blockIdx.x * inputs + i] = float_to_act(weight_int4(data, scales, minima, blockIdx.x, i, groups_of(inputs)));
}
