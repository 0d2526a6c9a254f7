// Types and helpers of every family.
//
// ACT says what activations and 16-bit weights are: 0 is bf16, 1 is f16; both are handled as their bits. Sums, norms, angles and
// the residual stream are f32.
#pragma once
#include "device.cuh"

#ifndef ACT
#define ACT 0
#endif

typedef u16 act;

#define WARP 32
#define ALL_LANES 0xffffffffu
#define MINUS_INFINITY __uint_as_float(0xff800000u)

DEVICE float bf16_to_float(u16 bits) { return __uint_as_float((u32)bits << 16); }

DEVICE float act_to_float(act bits) {
#if ACT
    return f16_to_float(bits);
#else
    return bf16_to_float(bits);
#endif
}
DEVICE u32 pack_act(float low, float high) {
#if ACT
    return pack_f16(low, high);
#else
    return pack_bf16(low, high);
#endif
}
DEVICE act float_to_act(float value) { return (act)pack_act(value, 0.0f); }

DEVICE void mma_act(float d[4], const u32 a[4], const u32 b[2]) {
#if ACT
    mma_f16(d, a, b);
#else
    mma_bf16(d, a, b);
#endif
}

DEVICE float warp_sum(float value) {
    for (int step = WARP / 2; step > 0; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}
DEVICE float warp_max(float value) {
    for (int step = WARP / 2; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
}

// The sum over all threads, for each of them; `scratch` has one place for each warp and is free again afterwards.
// Threads are a multiple of 32. The order of the additions depends on nothing but the number of threads.
DEVICE float block_sum(float value, float* scratch) {
    value = warp_sum(value);
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = value;
    __syncthreads();
    value = 0.0f;
    for (u32 warp = 0; warp < blockDim.x / WARP; ++warp) value += scratch[warp];
    __syncthreads();
    return value;
}

// The larger value, on ties the smaller index.
struct Best {
    float value;
    u32 index;
};
DEVICE Best better(Best a, Best b) {
    return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}
// The best over all threads, for each of them.
DEVICE Best block_best(Best best, Best* scratch) {
    for (int step = WARP / 2; step > 0; step /= 2) {
        Best other;
        other.value = __shfl_xor_sync(ALL_LANES, best.value, step);
        other.index = __shfl_xor_sync(ALL_LANES, best.index, step);
        best = better(best, other);
    }
    if (threadIdx.x % WARP == 0) scratch[threadIdx.x / WARP] = best;
    __syncthreads();
    best = scratch[0];
    for (u32 warp = 1; warp < blockDim.x / WARP; ++warp) best = better(best, scratch[warp]);
    __syncthreads();
    return best;
}

// One fp8 number (e4m3: 4 bits of exponent with bias 7, 3 of mantissa) as f32, exactly.
DEVICE float fp8_to_float(u8 bits) {
    return __uint_as_float((u32)(bits & 0x80) << 24 | (u32)(bits & 0x7f) << 20) * __uint_as_float(0x7b800000u); // 2^120
}
// Nearest fp8, ties to even; beyond 448 it is 448.
DEVICE u8 float_to_fp8(float value) {
#ifdef HAS_FP8
    return (u8)pack_fp8(value, 0.0f);
#else
    u32 sign = __float_as_uint(value) >> 24 & 0x80;
    float size = fminf(fabsf(value), 448.0f);
    // Adding 2^k rounds to steps of 2^(k - 23): the step of the number's own exponent, or that of the smallest ones, 2^-9.
    u32 exponent = __float_as_uint(size) >> 23;
    u32 magic = (exponent < 121 ? 121 : exponent) + 20;
    float big = __uint_as_float(magic << 23);
    float rounded = (size + big) - big;
    return (u8)(sign | __float_as_uint(rounded * __uint_as_float(0x03800000u)) >> 20); // 2^-120
#endif
}
// Two fp8 numbers as two activations.
DEVICE u32 fp8_to_act(u16 pair) {
#if defined(HAS_FP8) && ACT
    return fp8_to_f16(pair);
#elif defined(HAS_FP8)
    u32 halves = fp8_to_f16(pair);
    return pack_bf16(f16_to_float((u16)halves), f16_to_float((u16)(halves >> 16)));
#else
    return pack_act(fp8_to_float((u8)pair), fp8_to_float((u8)(pair >> 8)));
#endif
}
