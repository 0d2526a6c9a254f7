// The kernels' machine on a CPU, for tests: each thread of a block is a fiber, and whatever runs next is drawn by a seed.
//
// A fiber runs until it waits, at a barrier of its block or of its warp (shuffles and votes wait too). Lanes of a warp do not run in
// step: what relies on that without a barrier fails under some seed. Shared memory is filled with ones, which are no numbers, before each
// block. The same functions as in device.cuh follow, one number at a time.
#pragma once
#define WEIR_SHIM 1

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("weir_shared")))

struct Dim3 {
    unsigned x, y, z;
};

namespace shim {
extern Dim3 thread, block, block_size, grid_size;
// What a lane gives to its warp: 64 bits each.
extern uint64_t lanes[32 * 32];

void wait_block();
void wait_warp();

inline uint64_t* warp_lanes() { return lanes + thread.x / 32 * 32; }

// Gives `value` and takes what lane `from` gave.
template <class T> T exchange(T value, unsigned from) {
    static_assert(sizeof(T) <= 8, "a lane gives 64 bits");
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(T));
    warp_lanes()[thread.x % 32] = bits;
    wait_warp();
    bits = warp_lanes()[from % 32];
    wait_warp();
    memcpy(&value, &bits, sizeof(T));
    return value;
}
} // namespace shim

#define threadIdx shim::thread
#define blockIdx shim::block
#define blockDim shim::block_size
#define gridDim shim::grid_size

inline void __syncthreads() { shim::wait_block(); }
inline void __syncwarp() { shim::wait_warp(); }

template <class T> T __shfl_xor_sync(unsigned, T value, int mask) { return shim::exchange(value, shim::thread.x % 32 ^ mask); }
template <class T> T __shfl_sync(unsigned, T value, int lane) { return shim::exchange(value, lane); }
template <class T> T __shfl_up_sync(unsigned, T value, int by) {
    unsigned lane = shim::thread.x % 32;
    return shim::exchange(value, lane < (unsigned)by ? lane : lane - by);
}
inline int __any_sync(unsigned, int value) {
    shim::warp_lanes()[shim::thread.x % 32] = value != 0;
    shim::wait_warp();
    int any = 0;
    for (int lane = 0; lane < 32; ++lane) any |= (int)shim::warp_lanes()[lane];
    shim::wait_warp();
    return any;
}

// Fibers only change places where they wait, so nothing comes between.
template <class T> T atomicAdd(T* at, T value) {
    T before = *at;
    *at += value;
    return before;
}
inline unsigned atomicOr(unsigned* at, unsigned value) {
    unsigned before = *at;
    *at |= value;
    return before;
}

inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned out = 0;
    for (int at = 0; at < 4; ++at) out |= (unsigned)(bytes >> 8 * (selector >> 4 * at & 7) & 0xff) << 8 * at;
    return out;
}

inline unsigned short bf16_bits(float value) {
    unsigned bits = __float_as_uint(value);
    if (value != value) return 0x7fff;
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline unsigned pack_bf16(float low, float high) { return bf16_bits(low) | (unsigned)bf16_bits(high) << 16; }

inline float f16_to_float(unsigned short bits) {
    float sign = bits >> 15 ? -1.0f : 1.0f;
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexpf((float)mantissa, -24);
    return sign * ldexpf((float)(mantissa + 1024), exponent - 25);
}
inline unsigned short f16_bits(float value) {
    unsigned sign = __float_as_uint(value) >> 16 & 0x8000;
    float size = fabsf(value);
    if (value != value) return 0x7fff;
    if (size >= 65520.0f) return (unsigned short)(sign | 0x7c00);
    int exponent;
    frexpf(size, &exponent); // size = m 2^exponent, m from 1/2 to 1
    if (size == 0.0f || exponent < -13) exponent = -13;
    float steps = nearbyintf(ldexpf(size, 11 - exponent));
    // Of 2^11 steps the leading one adds to the exponent by itself.
    unsigned bits = exponent == -13 ? (unsigned)steps : (unsigned)(exponent + 13) * 1024 + (unsigned)steps;
    return (unsigned short)(sign | bits);
}
inline unsigned pack_f16(float low, float high) { return f16_bits(low) | (unsigned)f16_bits(high) << 16; }

inline float exp2_fast(float x) { return exp2f(x); }

namespace shim {
// Every lane of the warp gives its fragments and computes its own four numbers.
template <class Wide> void mma(float d[4], const unsigned a[4], const unsigned b[2], Wide wide) {
    // a and b of each lane, two words at a time, since a lane gives 64 bits.
    uint64_t gave[3][32];
    const uint64_t own[3] = {a[0] | (uint64_t)a[1] << 32, a[2] | (uint64_t)a[3] << 32, b[0] | (uint64_t)b[1] << 32};
    for (int at = 0; at < 3; ++at) {
        warp_lanes()[thread.x % 32] = own[at];
        wait_warp();
        memcpy(gave[at], warp_lanes(), sizeof gave[at]);
        wait_warp();
    }
    int g = thread.x % 32 / 4, q = thread.x % 4;
    for (int at = 0; at < 4; ++at) {
        int row = g + at / 2 * 8, column = 2 * q + at % 2;
        float sum = d[at];
        for (int k = 0; k < 16; ++k) {
            // Row `row` of a is with the lanes 4 (row % 8) .., in the low word of a pair for rows below 8.
            uint64_t words = gave[k / 8][row % 8 * 4 + k % 8 / 2];
            unsigned word = (unsigned)(row < 8 ? words : words >> 32);
            uint64_t columns = gave[2][column * 4 + k % 8 / 2];
            unsigned other = (unsigned)(k < 8 ? columns : columns >> 32);
            sum += wide((unsigned short)(word >> k % 2 * 16)) * wide((unsigned short)(other >> k % 2 * 16));
        }
        d[at] = sum;
    }
}
} // namespace shim

inline void mma_bf16(float d[4], const unsigned a[4], const unsigned b[2]) {
    shim::mma(d, a, b, [](unsigned short bits) { return __uint_as_float((unsigned)bits << 16); });
}
inline void mma_f16(float d[4], const unsigned a[4], const unsigned b[2]) {
    shim::mma(d, a, b, [](unsigned short bits) { return f16_to_float(bits); });
}
