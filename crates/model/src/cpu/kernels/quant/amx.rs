//! Quantized products with AMX: sixteen tokens by sixteen outputs by 64 inputs in one instruction.
//!
//! The compiler has no stable functions for these instructions, so they are written as assembly; tile registers are used by
//! nothing else.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]

#[cfg(target_arch = "x86_64")]
pub(in crate::cpu::kernels) use kernels::{has, int4, int8};

#[cfg(target_arch = "x86_64")]
mod kernels {
    use std::arch::asm;
    use std::arch::x86_64::{
        __cpuid_count, _mm512_and_si512, _mm512_cvtepi32_ps, _mm512_fmadd_ps, _mm512_loadu_ps,
        _mm512_loadu_si512, _mm512_mul_ps, _mm512_set1_epi8, _mm512_set1_ps, _mm512_setzero_ps,
        _mm512_srli_epi16, _mm512_storeu_ps, _mm512_storeu_si512,
    };
    use std::cell::RefCell;
    use std::ops::Range;
    use std::sync::OnceLock;

    use super::super::args::{QuantArgs, TILE};
    use super::super::vnni;
    use crate::quant::{GROUP, GROUP_BYTES_4, GROUP_BYTES_8, PANEL};

    /// Fewest tokens for which a tile is faster than vectors.
    const WORTH_IT: usize = 5;

    /// Whether the machine has AMX for bytes and the system lets this process use it. Asks the system, once.
    pub(in crate::cpu::kernels) fn has() -> bool {
        static HAS: OnceLock<bool> = OnceLock::new();
        *HAS.get_or_init(|| {
            const TILE_AND_INT8: u32 = 1 << 24 | 1 << 25;
            let leaf = __cpuid_count(7, 0);
            vnni::has() && leaf.edx & TILE_AND_INT8 == TILE_AND_INT8 && request()
        })
    }

    /// Asks Linux for the tile registers' state (`arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)`).
    fn request() -> bool {
        if !cfg!(target_os = "linux") {
            return false;
        }
        let mut result: i64 = 158;
        // SAFETY: the call changes nothing but what this process may use.
        unsafe {
            asm!(
                "syscall",
                inout("rax") result,
                in("rdi") 0x1023_u64,
                in("rsi") 18_u64,
                out("rcx") _,
                out("r11") _,
                options(nostack)
            );
        }
        result == 0
    }

    #[repr(C, align(64))]
    struct Config([u8; 64]);

    /// Palette 1: all tiles are 16 rows of 64 bytes.
    static CONFIG: Config = {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        let mut tile = 0;
        while tile < 8 {
            bytes[16 + 2 * tile] = 64;
            bytes[48 + tile] = 16;
            tile += 1;
        }
        Config(bytes)
    };

    #[derive(Clone, Copy)]
    #[repr(C, align(64))]
    struct Line([u8; 64]);

    /// Sums of a tile: (16 tokens, 16 outputs).
    #[repr(C, align(64))]
    struct Sums([[i32; PANEL]; TILE]);

    /// A tile's results so far: (16 tokens, 16 outputs).
    #[repr(C, align(64))]
    struct Values([[f32; PANEL]; TILE]);

    /// Panels that share the loading of activations.
    const PAIR: usize = 2;

    /// Groups between the sums' way out of the tiles and their use: a load waits long for what a tile has just stored.
    const DELAY: usize = 2;

    thread_local! {
        /// Two panels' weights as bytes.
        static UNPACKED: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
    }

    /// # Safety
    /// As [`QuantArgs`]; [`has`] is true.
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(in crate::cpu::kernels) unsafe fn int8(args: &QuantArgs, panels: Range<usize>) {
        // SAFETY: the caller's.
        unsafe {
            if args.tokens < WORTH_IT {
                return vnni::int8(args, panels);
            }
            configure();
            let mut panel = panels.start;
            while panel < panels.end {
                let weights = args.weights.add(panel * args.groups * GROUP_BYTES_8);
                if panel + PAIR <= panels.end {
                    tiles::<false, PAIR>(args, panel, weights);
                } else {
                    tiles::<false, 1>(args, panel, weights);
                }
                panel += PAIR;
            }
            release();
        }
    }

    /// # Safety
    /// As [`int8`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(in crate::cpu::kernels) unsafe fn int4(args: &QuantArgs, panels: Range<usize>) {
        // SAFETY: the caller's.
        unsafe {
            if args.tokens < WORTH_IT {
                return vnni::int4(args, panels);
            }
        }
        UNPACKED.with_borrow_mut(|lines| {
            let need = PAIR * args.groups * GROUP_BYTES_8 / size_of::<Line>();
            if lines.len() < need {
                lines.resize(need, Line([0; 64]));
            }
            let bytes = lines.as_mut_ptr().cast::<u8>();
            // SAFETY: the caller's; the lines hold two panels.
            unsafe {
                configure();
                let mut panel = panels.start;
                while panel < panels.end {
                    let count = PAIR.min(panels.end - panel);
                    // Panels lie one behind the other, here as there.
                    let from = args.weights.add(panel * args.groups * GROUP_BYTES_4);
                    for group in 0..count * args.groups {
                        let from = from.add(group * GROUP_BYTES_4);
                        unpack(from, bytes.add(group * GROUP_BYTES_8));
                    }
                    if count == PAIR {
                        tiles::<true, PAIR>(args, panel, bytes);
                    } else {
                        tiles::<true, 1>(args, panel, bytes);
                    }
                    panel += PAIR;
                }
                release();
            }
        });
    }

    #[inline(always)]
    unsafe fn configure() {
        // SAFETY: the machine has AMX; the configuration is valid.
        unsafe {
            asm!("ldtilecfg [{0}]", in(reg) &raw const CONFIG, options(nostack, readonly));
        }
    }

    #[inline(always)]
    unsafe fn release() {
        // SAFETY: the machine has AMX.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }

    /// Four bits to eight.
    #[inline(always)]
    unsafe fn unpack(from: *const u8, to: *mut u8) {
        // SAFETY: the caller's: a group of each.
        unsafe {
            let nibble = _mm512_set1_epi8(15);
            for quad in 0..GROUP / 8 {
                let both = _mm512_loadu_si512(from.add(quad * 64).cast());
                let low = _mm512_and_si512(both, nibble);
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(both), nibble);
                _mm512_storeu_si512(to.add(quad * 64).cast(), low);
                _mm512_storeu_si512(to.add((quad + GROUP / 8) * 64).cast(), high);
            }
        }
    }

    /// Sums of up to two panels for sixteen tokens.
    type Pair = [Sums; PAIR];

    /// All tokens of `P` panels; `weights` is (`P`, groups, 16, 16, 4) bytes with a sign.
    #[inline(always)]
    unsafe fn tiles<const HAS_MIN: bool, const P: usize>(
        args: &QuantArgs,
        panel: usize,
        weights: *const u8,
    ) {
        // SAFETY: the caller's; the last tile's missing tokens are computed from what lies there and left out.
        unsafe {
            let panel_bytes = args.groups * GROUP_BYTES_8;
            let mut ring: [Pair; DELAY + 1] =
                [const { [const { Sums([[0; PANEL]; TILE]) }; PAIR] }; DELAY + 1];
            for first in (0..args.tokens).step_by(TILE) {
                let q = args.token(first);
                let mut values = [const { Values([[0.0; PANEL]; TILE]) }; P];
                for group in 0..args.groups + DELAY {
                    if group < args.groups {
                        multiply::<P>(
                            q.add(group * TILE * GROUP),
                            (weights.add(group * GROUP_BYTES_8), panel_bytes),
                            ring[group % (DELAY + 1)].as_mut_ptr().cast(),
                        );
                    }
                    if group >= DELAY {
                        let group = group - DELAY;
                        let pair = &ring[group % (DELAY + 1)];
                        for p in 0..P {
                            let place = (first, panel + p, group);
                            add::<HAS_MIN>(args, place, &pair[p], &mut values[p]);
                        }
                    }
                }
                for p in 0..P {
                    for t in 0..TILE.min(args.tokens - first) {
                        let value = _mm512_loadu_ps(values[p].0[t].as_ptr());
                        vnni::put(args, first + t, panel + p, value);
                    }
                }
            }
        }
    }

    /// Adds a group's integer sums by their scales.
    #[inline(always)]
    unsafe fn add<const HAS_MIN: bool>(
        args: &QuantArgs,
        (first, panel, group): (usize, usize, usize),
        sums: &Sums,
        values: &mut Values,
    ) {
        // SAFETY: the caller's: tile, panel and group exist.
        unsafe {
            let place = args.place(first) + group * TILE;
            let index = (panel * args.groups + group) * PANEL;
            let scale = vnni::bf16(args.weight_scales.add(index));
            let x_scales = args.scales.add(place);
            let mut lanes = [0f32; TILE];
            let mut min = _mm512_setzero_ps();
            if HAS_MIN {
                let x_sums = _mm512_mul_ps(
                    _mm512_cvtepi32_ps(_mm512_loadu_si512(args.sums.add(place).cast())),
                    _mm512_loadu_ps(x_scales),
                );
                _mm512_storeu_ps(lanes.as_mut_ptr(), x_sums);
                min = vnni::bf16(args.weight_mins.add(index));
            }
            for t in 0..TILE {
                let to = values.0[t].as_mut_ptr();
                let by = _mm512_mul_ps(scale, _mm512_set1_ps(x_scales.add(t).read()));
                let dot = _mm512_cvtepi32_ps(_mm512_loadu_si512(sums.0[t].as_ptr().cast()));
                let mut value = _mm512_fmadd_ps(dot, by, _mm512_loadu_ps(to));
                if HAS_MIN {
                    value = _mm512_fmadd_ps(_mm512_set1_ps(lanes[t]), min, value);
                }
                _mm512_storeu_ps(to, value);
            }
        }
    }

    /// `sums` (`P`, 16, 16) = `x` (16, 64) times each `w` (16, 16, 4); the second lies so many bytes behind the first.
    #[inline(always)]
    unsafe fn multiply<const P: usize>(
        x: *const i8,
        (w, panel_bytes): (*const u8, usize),
        sums: *mut i32,
    ) {
        // SAFETY: the caller's; tiles are configured, and no other code has anything in them.
        unsafe {
            if P == PAIR {
                asm!(
                    "tileloadd tmm2, [{x} + {stride}]",
                    "tileloadd tmm3, [{w} + {stride}]",
                    "tileloadd tmm4, [{w2} + {stride}]",
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tdpbssd tmm0, tmm2, tmm3",
                    "tdpbssd tmm1, tmm2, tmm4",
                    "tilestored [{sums} + {stride}], tmm0",
                    "tilestored [{sums2} + {stride}], tmm1",
                    x = in(reg) x,
                    w = in(reg) w,
                    w2 = in(reg) w.add(panel_bytes),
                    sums = in(reg) sums,
                    sums2 = in(reg) sums.add(TILE * PANEL),
                    stride = in(reg) 64_usize,
                    options(nostack)
                );
            } else {
                asm!(
                    "tilezero tmm0",
                    "tileloadd tmm1, [{x} + {stride}]",
                    "tileloadd tmm2, [{w} + {stride}]",
                    "tdpbssd tmm0, tmm1, tmm2",
                    "tilestored [{sums} + {stride}], tmm0",
                    x = in(reg) x,
                    w = in(reg) w,
                    sums = in(reg) sums,
                    stride = in(reg) 64_usize,
                    options(nostack)
                );
            }
        }
    }
}
