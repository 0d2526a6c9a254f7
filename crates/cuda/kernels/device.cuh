// What the families need of the machine: the only file with instructions of a GPU. The CPU has tests' shim/shim.h instead, with the same names.
#pragma once

typedef signed char i8;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;

struct alignas(8) Words2 { u32 x, y; };
struct alignas(16) Words4 { u32 x, y, z, w; };

#define DEVICE static __device__ __forceinline__
#define KERNEL extern "C" __global__ void
#define SHARED __shared__

#ifndef WEIR_SHIM
// Two f32 to the halves of a word, rounded to nearest even: `low` in the lower one.
DEVICE u32 pack_bf16(float low, float high) {
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
DEVICE u32 pack_f16(float low, float high) {
    u32 word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
DEVICE float f16_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
// Two to the power of x, to two units in the last place.
DEVICE float exp2_fast(float x) {
    float value;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
    return value;
}
// (16, 16) times (16, 8), f32 sums: d += a b. Lane l has, with g = l / 4 and q = l % 4:
//   a: rows g, g + 8, g, g + 8 at columns 2q, 2q, 2q + 8, 2q + 8 and the next ones
//   b: column g at rows 2q, 2q + 8 and the next ones
//   d: rows g, g, g + 8, g + 8 at columns 2q, 2q + 1, 2q, 2q + 1
DEVICE void mma_bf16(float d[4], const u32 a[4], const u32 b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void mma_f16(float d[4], const u32 a[4], const u32 b[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#if __CUDA_ARCH__ >= 890
#define HAS_FP8 1
// Two fp8 (e4m3) from f32, rounded to nearest even, at most 448: `low` in the lower byte.
DEVICE u16 pack_fp8(float low, float high) {
    u16 pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
}
// The two f16 of two fp8.
DEVICE u32 fp8_to_f16(u16 pair) {
    u32 word;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(word) : "h"(pair));
    return word;
}
#endif
#endif
