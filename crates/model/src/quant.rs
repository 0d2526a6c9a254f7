//! Weights in eight or four bits, in groups of 64 inputs.
//!
//! `Int8`: weight = scale · q with q from -127 to 127. `Int4`: weight = minimum + scale · q with q from 0 to 15. Scales and minima are bf16,
//! rounded outwards before q is chosen. Sixteen outputs make a panel; in a panel, a group is 16 times (16 outputs, 4 inputs), so
//! that the processor's products of four bytes have one output a lane, and so that a group is what a matrix register holds. `Int4` has the
//! group's first 32 inputs in the low nibbles and the others in the high ones. The last panel and the last group are
//! filled up with zeros.

mod artifact;
mod loss;

use std::sync::Arc;

use memmap2::{Mmap, MmapMut};

use crate::cpu::Packer;
use crate::weights::Matrix;

pub use artifact::{QuantizeError, QuantizedSize, write_quantized};
pub use loss::{Loss, measure_loss, sample_text};

/// Outputs in a panel.
pub const PANEL: usize = 16;
/// Inputs that share a scale.
pub const GROUP: usize = 64;
/// Bytes of a panel's group in eight bits.
pub(crate) const GROUP_BYTES_8: usize = PANEL * GROUP;
/// Bytes of a panel's group in four bits.
pub(crate) const GROUP_BYTES_4: usize = PANEL * GROUP / 2;

/// Bits of a quantized weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuantKind {
    /// Eight bits and a scale for each group.
    Int8,
    /// Four bits, a scale and a minimum for each group.
    Int4,
}

impl QuantKind {
    /// Bytes of a panel's group.
    pub(crate) fn group_bytes(self) -> usize {
        match self {
            Self::Int8 => GROUP_BYTES_8,
            Self::Int4 => GROUP_BYTES_4,
        }
    }

    /// bf16 numbers for each output and group.
    pub(crate) fn numbers(self) -> usize {
        match self {
            Self::Int8 => 1,
            Self::Int4 => 2,
        }
    }
}

/// A quantized matrix. Cheap to clone.
#[derive(Clone, Debug)]
pub struct QuantMatrix {
    map: Arc<Mmap>,
    /// Where the integers and where the numbers begin.
    start: usize,
    numbers_start: usize,
    kind: QuantKind,
    rows: usize,
    cols: usize,
}

/// One panel to be written.
pub(crate) struct PanelMut<'a> {
    /// (groups, 16, 16, 4), or half of it
    pub data: &'a mut [u8],
    /// (groups, 16)
    pub scales: &'a mut [u16],
    /// (groups, 16), empty for eight bits
    pub mins: &'a mut [u16],
}

/// The weights of one product.
#[derive(Clone, Debug)]
pub enum Weights {
    /// As the file has them.
    Stored(Matrix),
    /// In fewer bits.
    Quantized(QuantMatrix),
}

impl Weights {
    /// Outputs.
    pub fn rows(&self) -> usize {
        match self {
            Self::Stored(matrix) => matrix.rows,
            Self::Quantized(matrix) => matrix.rows,
        }
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        match self {
            Self::Stored(matrix) => matrix.cols,
            Self::Quantized(matrix) => matrix.cols,
        }
    }

    /// Writes one row as f32 into `out` (cols).
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        match self {
            Self::Stored(matrix) => matrix.read_row(row, out),
            Self::Quantized(matrix) => matrix.read_row(row, out),
        }
    }
}

impl QuantMatrix {
    /// Quantizes a matrix, panel by panel on all threads of the packer.
    ///
    /// # Errors
    /// There is no memory.
    pub(crate) fn pack(
        matrix: &Matrix,
        kind: QuantKind,
        packer: &mut Packer<'_>,
    ) -> std::io::Result<Self> {
        let mut quantized = Self {
            map: Arc::new(MmapMut::map_anon(1)?.make_read_only()?),
            start: 0,
            numbers_start: 0,
            kind,
            rows: matrix.rows,
            cols: matrix.cols,
        };
        quantized.numbers_start = quantized.data_size();
        let mut memory = MmapMut::map_anon(quantized.size())?;
        #[cfg(target_os = "linux")]
        if memory.len() >= HUGE {
            // A hint; without it everything works, with more misses of the address cache.
            let _ = memory.advise(memmap2::Advice::HugePage);
        }
        packer.pack(matrix, kind, &mut memory);
        quantized.map = Arc::new(memory.make_read_only()?);
        Ok(quantized)
    }

    /// A matrix that lies in a mapped file: its integers and its numbers begin at these places.
    ///
    /// # Panics
    /// The map ends before them, or the numbers are at an odd place.
    pub(crate) fn mapped(
        map: &Arc<Mmap>,
        (start, numbers_start): (usize, usize),
        kind: QuantKind,
        (rows, cols): (usize, usize),
    ) -> Self {
        let matrix = Self {
            map: Arc::clone(map),
            start,
            numbers_start,
            kind,
            rows,
            cols,
        };
        assert!(
            matrix.start + matrix.data_size() <= map.len()
                && matrix.numbers_start + matrix.numbers_size() <= map.len()
                && matrix.numbers_start.is_multiple_of(size_of::<u16>()),
            "the matrix lies in its file"
        );
        matrix
    }

    /// Bits of a weight.
    pub fn kind(&self) -> QuantKind {
        self.kind
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Panels of sixteen outputs.
    pub(crate) fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    /// Groups of 64 inputs.
    pub(crate) fn groups(&self) -> usize {
        self.cols.div_ceil(GROUP)
    }

    /// (panels, groups, 16, 16, 4) bytes, or half of it.
    pub fn data(&self) -> &[u8] {
        &self.map[self.start..][..self.data_size()]
    }

    /// (panels, groups, 16) bf16, scales and then, for four bits, minima; at even addresses.
    pub fn numbers(&self) -> (&[u16], &[u16]) {
        let bytes = &self.map[self.numbers_start..][..self.numbers_size()];
        let numbers = as_words(bytes);
        numbers.split_at(self.panels() * self.groups() * PANEL)
    }

    /// Bytes of everything.
    pub fn size(&self) -> usize {
        self.data_size() + self.numbers_size()
    }

    fn data_size(&self) -> usize {
        self.panels() * self.groups() * self.kind.group_bytes()
    }

    fn numbers_size(&self) -> usize {
        self.panels() * self.groups() * PANEL * self.kind.numbers() * size_of::<u16>()
    }

    /// Writes one row as f32 into `out` (cols): what the kernels multiply with.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        assert!(
            row < self.rows && out.len() == self.cols,
            "row {row} of {} into {}",
            self.rows,
            out.len()
        );
        let (scales, mins) = self.numbers();
        let wide = |bits: u16| f32::from_bits(u32::from(bits) << 16);
        for (group, out) in out.chunks_mut(GROUP).enumerate() {
            let index = row / PANEL * self.groups() + group;
            let data = &self.data()[index * self.kind.group_bytes()..][..self.kind.group_bytes()];
            let number = index * PANEL + row % PANEL;
            let (scale, min) = (
                wide(scales[number]),
                mins.get(number).map_or(0.0, |min| wide(*min)),
            );
            for (k, out) in out.iter_mut().enumerate() {
                let place = |k: usize| k / 4 * GROUP + row % PANEL * 4 + k % 4;
                let q = match self.kind {
                    QuantKind::Int8 => f32::from(data[place(k)].cast_signed()),
                    QuantKind::Int4 => {
                        f32::from(data[place(k % (GROUP / 2))] >> (k / (GROUP / 2) * 4) & 15)
                    }
                };
                *out = q.mul_add(scale, min);
            }
        }
    }
}

/// Size from which large pages are worth asking for.
#[cfg(target_os = "linux")]
const HUGE: usize = 2 << 20;

/// Little-endian 16-bit words.
fn as_words(bytes: &[u8]) -> &[u16] {
    let (before, words, after) = aligned(bytes);
    assert!(
        before.is_empty() && after.is_empty(),
        "words at even addresses"
    );
    words
}

#[expect(unsafe_code, reason = "bytes become words, which any bits are")]
fn aligned(bytes: &[u8]) -> (&[u8], &[u16], &[u8]) {
    // SAFETY: every pair of bytes is a u16.
    unsafe { bytes.align_to::<u16>() }
}
