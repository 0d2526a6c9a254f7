// Weights in eight and in four bits, in the layout that artifacts have (crates/model/src/quant.rs): 64 inputs share a scale, 16 outputs make a
// panel, and a panel's group is 16 times (16 outputs, 4 inputs) bytes. In four bits the group's first 32 inputs are the low nibbles
// and the others the high ones. What fills up the last panel and the last group is zero.
//   data            (panels, groups, 1024 or 512) bytes
//   scales, minima  (panels, groups, 16) bf16; minima only in four bits
#pragma once
#include "common.cuh"

#define PANEL 16
#define GROUP 64

DEVICE i32 groups_of(i32 inputs) { return (inputs + GROUP - 1) / GROUP; }

DEVICE float weight_int8(const u8* data, const u16* scales, u32 output, u32 input, i32 groups) {
    u64 group = (u64)(output / PANEL) * groups + input / GROUP;
    u32 k = input % GROUP;
    i8 q = (i8)data[group * 1024 + k / 4 * 64 + output % PANEL * 4 + k % 4];
    return (float)q * bf16_to_float(scales[group * PANEL + output % PANEL]);
}

DEVICE float weight_int4(const u8* data, const u16* scales, const u16* minima, u32 output, u32 input, i32 groups) {
    u64 group = (u64)(output / PANEL) * groups + input / GROUP, number = group * PANEL + output % PANEL;
    u32 k = input % GROUP, low = k % 32;
    u32 q = data[group * 512 + low / 4 * 64 + output % PANEL * 4 + low % 4] >> k / 32 * 4 & 15;
    return fmaf((float)q, bf16_to_float(scales[number]), bf16_to_float(minima[number]));
}
