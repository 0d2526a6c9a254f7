//! What the kernels of quantized products work on.

use std::ops::Range;

use crate::quant::{GROUP, PANEL};

/// Tokens in a tile of rounded activations: the rows of a matrix register.
pub(in crate::cpu::kernels) const TILE: usize = 16;

/// Activations rounded to eight bits: for each tile of sixteen tokens and each group, (16, 64) integers, sixteen scales and sixteen
/// sums.
pub(crate) struct QuantRows {
    q: Vec<Line>,
    scales: Vec<f32>,
    sums: Vec<i32>,
    groups: usize,
}

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([i8; 64]);

/// Where a token's group goes.
#[derive(Clone, Copy)]
pub(in crate::cpu::kernels) struct RowPlace {
    /// (tiles, groups, 16, 64)
    pub q: *mut i8,
    /// (tiles, groups, 16)
    pub scales: *mut f32,
    /// (tiles, groups, 16)
    pub sums: *mut i32,
    pub groups: usize,
    pub token: usize,
}

// SAFETY: each task writes the places of its own tokens.
unsafe impl Send for RowPlace {}
// SAFETY: as above.
unsafe impl Sync for RowPlace {}

impl QuantRows {
    /// Room for so many tokens of at most so many numbers.
    pub(crate) fn new(tokens: usize, cols: usize) -> Self {
        let (tiles, groups) = (tokens.div_ceil(TILE), cols.div_ceil(GROUP));
        Self {
            q: vec![Line([0; 64]); tiles * groups * TILE],
            scales: vec![0.0; tiles * groups * TILE],
            sums: vec![0; tiles * groups * TILE],
            groups: 0,
        }
    }

    /// Prepares for rows of so many numbers.
    pub(in crate::cpu::kernels) fn begin(&mut self, tokens: usize, cols: usize) -> RowPlace {
        self.groups = cols.div_ceil(GROUP);
        let need = tokens.div_ceil(TILE) * self.groups * TILE;
        assert!(need <= self.q.len(), "room for {tokens} tokens of {cols}");
        RowPlace {
            q: self.q.as_mut_ptr().cast(),
            scales: self.scales.as_mut_ptr(),
            sums: self.sums.as_mut_ptr(),
            groups: self.groups,
            token: 0,
        }
    }

    pub(in crate::cpu::kernels) fn groups(&self) -> usize {
        self.groups
    }

    pub(in crate::cpu::kernels) fn pointers(&self) -> (*const i8, *const f32, *const i32) {
        (
            self.q.as_ptr().cast(),
            self.scales.as_ptr(),
            self.sums.as_ptr(),
        )
    }
}

/// What to compute. Pointers are good for the shapes given; the panels of a call belong to it alone.
#[derive(Clone, Copy)]
pub(in crate::cpu::kernels) struct QuantArgs {
    /// (tiles, groups, 16, 64)
    pub q: *const i8,
    /// (tiles, groups, 16)
    pub scales: *const f32,
    /// (tiles, groups, 16)
    pub sums: *const i32,
    pub groups: usize,
    pub tokens: usize,
    /// (panels, groups, 16, 16, 4) bytes, or half of that
    pub weights: *const u8,
    /// (panels, groups, 16) bf16
    pub weight_scales: *const u16,
    /// (panels, groups, 16) bf16; null for eight bits
    pub weight_mins: *const u16,
    /// Outputs: the last panel may have fewer.
    pub rows: usize,
    /// (rows) or null
    pub bias: *const f32,
    /// (tokens, rows) f32, `out_stride` apart
    pub out: *mut f32,
    pub out_stride: usize,
    /// Adds to `out` instead of replacing it.
    pub accumulate: bool,
}

pub(in crate::cpu::kernels) type QuantFn = unsafe fn(&QuantArgs, Range<usize>);

impl QuantArgs {
    /// The same for some of the tokens; `first` begins a tile.
    pub(in crate::cpu::kernels) fn tokens(&self, first: usize, count: usize) -> Self {
        debug_assert!(first.is_multiple_of(TILE) && first + count <= self.tokens);
        let place = first * self.groups;
        // SAFETY: tiles lie one behind the other, and the tokens exist.
        unsafe {
            Self {
                q: self.q.add(place * GROUP),
                scales: self.scales.add(place),
                sums: self.sums.add(place),
                out: self.out.add(first * self.out_stride),
                tokens: count,
                ..*self
            }
        }
    }

    /// First integer of a token's first group; groups are `TILE * GROUP` apart.
    ///
    /// # Safety
    /// The token exists.
    #[inline(always)]
    pub(super) unsafe fn token(&self, token: usize) -> *const i8 {
        // SAFETY: the caller's.
        unsafe {
            self.q
                .add((token / TILE * self.groups * TILE + token % TILE) * GROUP)
        }
    }

    /// Index of a token's first scale and sum; groups are `TILE` apart.
    #[inline(always)]
    pub(super) fn place(&self, token: usize) -> usize {
        token / TILE * self.groups * TILE + token % TILE
    }

    /// Writes a token's results of one panel.
    ///
    /// # Safety
    /// Token and panel exist, and the panel is this call's.
    #[inline(always)]
    pub(super) unsafe fn put(&self, token: usize, panel: usize, values: &[f32; PANEL]) {
        let row = panel * PANEL;
        // SAFETY: the caller's; rows past the end are left out.
        unsafe {
            let out = self.out.add(token * self.out_stride + row);
            for at in 0..PANEL.min(self.rows - row) {
                let mut value = values[at];
                if !self.bias.is_null() {
                    value += self.bias.add(row + at).read();
                }
                let out = out.add(at);
                *out = if self.accumulate { *out + value } else { value };
            }
        }
    }
}
