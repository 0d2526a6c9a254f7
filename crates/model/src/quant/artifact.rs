//! Quantized weights in a file: written once by `weir quantize`, mapped by workers as they are.
//!
//! In place of a matrix `NAME`, the file has `NAME.int8` (I8, panels · groups · 1024) or `NAME.int4` (U8, panels · groups · 512), and
//! `NAME.scales` (BF16, scales or scales and minima · panels · groups · 16), laid out as [`crate::quant`] says. The integers come first and begin
//! at a multiple of 64 bytes.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use super::{GROUP, PANEL, QuantKind, QuantMatrix};
use crate::cpu::{CpuError, Level, with_packer};
use crate::files::FileSource;
use crate::weights::{TensorFiles, WeightsError};

/// Where the integers of a file begin.
const ALIGN: usize = 64;

impl QuantKind {
    /// Ending of a tensor's name.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// Name of the format of the integers in a file.
    fn dtype(self) -> &'static str {
        match self {
            Self::Int8 => "I8",
            Self::Int4 => "U8",
        }
    }

    /// Shapes of the integers and of the numbers of a matrix.
    pub(crate) fn shapes(self, rows: usize, cols: usize) -> ([usize; 3], [usize; 4]) {
        let (panels, groups) = (rows.div_ceil(PANEL), cols.div_ceil(GROUP));
        (
            [panels, groups, self.group_bytes()],
            [self.numbers(), panels, groups, PANEL],
        )
    }
}

/// Weights cannot be quantized into a file.
#[derive(Debug, thiserror::Error)]
pub enum QuantizeError {
    /// They cannot be read.
    #[error("cannot read the weights")]
    Weights(#[source] WeightsError),
    /// There is no memory, or threads cannot be started.
    #[error("cannot quantize the weights")]
    Pack(#[source] CpuError),
    /// The file cannot be written.
    #[error("cannot write the quantized weights")]
    Write(#[source] io::Error),
    /// They are quantized already.
    #[error("tensor \"{name}\" is quantized already; quantize the original model")]
    Already {
        /// The tensor.
        name: String,
    },
}

/// Bytes of weights before and after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuantizedSize {
    /// As they were.
    pub before: u64,
    /// As they are written.
    pub after: u64,
}

/// What becomes of a tensor.
enum Part {
    Matrix { name: String, shape: [usize; 2] },
    Kept { name: String },
}

/// Writes a safetensors file with every matrix of `files` quantized and everything else as it is. The same files give the same bytes on
/// every machine.
///
/// # Errors
/// Files are broken or quantized already, or the file cannot be written.
pub fn write_quantized(
    files: &dyn FileSource,
    kind: QuantKind,
    out: &mut dyn Write,
) -> Result<QuantizedSize, QuantizeError> {
    let mut tensors = TensorFiles::open(files).map_err(QuantizeError::Weights)?;
    let parts = parts(&tensors)?;
    let (header, size) = header(&tensors, &parts, kind);
    out.write_all(&header).map_err(QuantizeError::Write)?;
    let before = tensors.bytes();
    // Integers of all matrices come first, so their numbers wait in memory: a thirty-second of the integers, or an eighth.
    let mut numbers: Vec<u8> = Vec::new();
    with_packer(Level::Amx, |packer| -> Result<(), QuantizeError> {
        for part in &parts {
            let Part::Matrix { name, shape } = part else {
                continue;
            };
            let matrix = tensors.take(name, shape).map_err(QuantizeError::Weights)?;
            let packed = QuantMatrix::pack(&matrix, kind, packer)
                .map_err(|error| QuantizeError::Pack(CpuError::Memory(error)))?;
            out.write_all(packed.data()).map_err(QuantizeError::Write)?;
            let (scales, minima) = packed.numbers();
            let bytes = scales.iter().chain(minima).flat_map(|n| n.to_le_bytes());
            numbers.extend(bytes);
        }
        Ok(())
    })
    .map_err(QuantizeError::Pack)??;
    out.write_all(&numbers).map_err(QuantizeError::Write)?;
    for part in &parts {
        if let Part::Kept { name } = part {
            let (_, _, bytes) = tensors.raw(name).expect("it was listed");
            out.write_all(bytes).map_err(QuantizeError::Write)?;
        }
    }
    out.flush().map_err(QuantizeError::Write)?;
    Ok(QuantizedSize {
        before,
        after: size,
    })
}

/// Matrices, then the others, each in the order of their names.
fn parts(tensors: &TensorFiles) -> Result<Vec<Part>, QuantizeError> {
    let (mut matrices, mut others) = (Vec::new(), Vec::new());
    for (name, shape) in tensors.shapes() {
        let name = name.to_owned();
        if [".int8", ".int4"].iter().any(|end| name.ends_with(end)) {
            return Err(QuantizeError::Already { name });
        }
        match *shape {
            [rows, cols] if name.ends_with(".weight") => matrices.push(Part::Matrix {
                name,
                shape: [rows, cols],
            }),
            _ => others.push(Part::Kept { name }),
        }
    }
    matrices.extend(others);
    Ok(matrices)
}

/// The file's header, and the size of what follows.
fn header(tensors: &TensorFiles, parts: &[Part], kind: QuantKind) -> (Vec<u8>, u64) {
    let mut all = Map::new();
    all.insert(
        "__metadata__".to_owned(),
        json!({"format": "pt", "weir.quantization": format!("{}-g{GROUP}", kind.suffix())}),
    );
    let mut at = 0;
    let mut add = |name: String, dtype: &str, shape: &[usize], size: usize| {
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]});
        all.insert(name, entry);
        at += size;
    };
    for part in parts {
        if let Part::Matrix { name, shape } = part {
            let (integers, _) = kind.shapes(shape[0], shape[1]);
            let size = integers.iter().product();
            let name = format!("{name}.{}", kind.suffix());
            add(name, kind.dtype(), &integers, size);
        }
    }
    for part in parts {
        if let Part::Matrix { name, shape } = part {
            let (_, numbers) = kind.shapes(shape[0], shape[1]);
            let size = numbers.iter().product::<usize>() * size_of::<u16>();
            add(format!("{name}.scales"), "BF16", &numbers, size);
        }
    }
    for part in parts {
        if let Part::Kept { name } = part {
            let (dtype, shape, bytes) = tensors.raw(name).expect("it was listed");
            add(name.clone(), &dtype, shape, bytes.len());
        }
    }
    let mut text = Value::Object(all).to_string().into_bytes();
    let length = (text.len() + size_of::<u64>()).next_multiple_of(ALIGN) - size_of::<u64>();
    text.resize(length, b' ');
    let mut bytes = (length as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    (bytes, at as u64)
}
