//! Tensors of a GGUF file, under the network's names.

use std::sync::Arc;

use memmap2::{Mmap, MmapMut};
use safetensors::Dtype;

use super::{Place, TensorFiles, WeightsError, map_file};
use crate::files::FileSource;
use crate::gguf::{BlockType, Gguf, interleaved, named};

/// Factors of rotary frequencies, which are part of the configuration.
const IGNORED: [&str; 1] = ["rope_freqs.weight"];

impl TensorFiles {
    pub(super) fn add_gguf(
        &mut self,
        files: &dyn FileSource,
        file: &str,
    ) -> Result<(), WeightsError> {
        self.add_gguf_map(file, map_file(files, file)?)
    }

    pub(super) fn add_gguf_map(&mut self, file: &str, map: Arc<Mmap>) -> Result<(), WeightsError> {
        let gguf = Gguf::parse(file, &map).map_err(WeightsError::Gguf)?;
        let architecture = gguf.architecture().map_err(WeightsError::Gguf)?;
        let head_dim = gguf.head_dim().map_err(WeightsError::Gguf)?;
        for (name, place) in gguf.tensors() {
            if IGNORED.contains(&name.as_str()) {
                continue;
            }
            let refuse = |why: &str| WeightsError::Gguf(gguf.tensor_error(name, why.to_owned()));
            let (dtype, block) = match place.block {
                BlockType::F32 => (Dtype::F32, None),
                BlockType::F16 => (Dtype::F16, None),
                BlockType::Bf16 => (Dtype::BF16, None),
                block => (Dtype::U8, Some(block)),
            };
            if block.is_some() && place.shape.len() != 2 {
                return Err(refuse("is no matrix and must be F32, F16 or BF16"));
            }
            let known = named(architecture, name);
            let interleaved = known.as_ref().and_then(|known| known.heads);
            if interleaved.is_some()
                && (head_dim < 2 || !place.shape[0].is_multiple_of(head_dim) || head_dim % 2 == 1)
            {
                return Err(refuse("has rows that are not whole heads"));
            }
            // A name the network has no place for stays, and is refused as one too many.
            let known = known.map_or_else(|| name.clone(), |known| known.name);
            let place = Place {
                shard: self.shards.len(),
                dtype,
                block,
                head_dim: interleaved.map(|_| head_dim),
                shape: place.shape.clone(),
                start: place.bytes.start,
                end: place.bytes.end,
            };
            if self.tensors.insert(known.clone(), place).is_some() {
                return Err(refuse(&format!("is \"{known}\", which is there twice")));
            }
        }
        self.shards.push((file.to_owned(), map));
        Ok(())
    }
}

/// A copy of interleaved rows in the order of the network. They are few: queries and keys.
pub(super) fn in_order(
    bytes: &[u8],
    (rows, head_dim): (usize, usize),
) -> std::io::Result<Arc<Mmap>> {
    let size = bytes.len() / rows;
    let mut copy = MmapMut::map_anon(bytes.len())?;
    for (row, to) in copy.chunks_exact_mut(size).enumerate() {
        to.copy_from_slice(&bytes[interleaved(row, head_dim) * size..][..size]);
    }
    Ok(Arc::new(copy.make_read_only()?))
}
