//! Tensors as they are in a file, and matrices that a file holds quantized.

use std::sync::Arc;

use memmap2::Mmap;
use safetensors::Dtype;

use super::{Matrix, TensorFiles, WeightType, WeightsError};
use crate::quant::{QuantKind, QuantMatrix};

impl Matrix {
    /// All of a map.
    pub(crate) fn of_map(map: Mmap, dtype: WeightType, [rows, cols]: [usize; 2]) -> Self {
        assert_eq!(map.len(), dtype.bytes_of(rows * cols), "a map of this size");
        let map = Arc::new(map);
        Self {
            map,
            start: 0,
            dtype,
            rows,
            cols,
        }
    }
}

impl TensorFiles {
    /// Takes a matrix that the file holds quantized (see [`crate::quant`]); `None` where it holds none of this name.
    ///
    /// # Errors
    /// A part is missing, or has another shape or type.
    pub(crate) fn take_quantized(
        &mut self,
        name: &str,
        shape: [usize; 2],
    ) -> Result<Option<QuantMatrix>, WeightsError> {
        for kind in [QuantKind::Int8, QuantKind::Int4] {
            let integers = format!("{name}.{}", kind.suffix());
            if !self.tensors.contains_key(&integers) {
                continue;
            }
            let dtype = match kind {
                QuantKind::Int8 => Dtype::I8,
                QuantKind::Int4 => Dtype::U8,
            };
            let (integer_shape, number_shape) = kind.shapes(shape[0], shape[1]);
            let (shard, start) = self.place(&integers, &integer_shape, dtype)?;
            let scales = format!("{name}.scales");
            let (other, numbers) = self.place(&scales, &number_shape, Dtype::BF16)?;
            let (file, map) = &self.shards[shard];
            if other != shard || !numbers.is_multiple_of(2) {
                return Err(WeightsError::Split {
                    name: scales,
                    file: file.clone(),
                });
            }
            let matrix = QuantMatrix::mapped(map, (start, numbers), kind, (shape[0], shape[1]));
            self.taken.insert(integers);
            self.taken.insert(scales);
            return Ok(Some(matrix));
        }
        Ok(None)
    }

    /// Shard and first byte of a tensor of exactly this shape and type.
    fn place(
        &self,
        name: &str,
        shape: &[usize],
        dtype: Dtype,
    ) -> Result<(usize, usize), WeightsError> {
        let Some(place) = self.tensors.get(name) else {
            return Err(WeightsError::Missing {
                name: name.to_owned(),
                shape: shape.to_vec(),
            });
        };
        let file = &self.shards[place.shard].0;
        if place.shape != shape {
            return Err(WeightsError::Shape {
                name: name.to_owned(),
                file: file.clone(),
                shape: place.shape.clone(),
                want: shape.to_vec(),
            });
        }
        if place.dtype != dtype {
            return Err(WeightsError::Type {
                name: name.to_owned(),
                file: file.clone(),
                dtype: format!("{:?}", place.dtype),
            });
        }
        Ok((place.shard, place.start))
    }

    /// Every tensor's name and shape, in the order of the names.
    pub(crate) fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        let each = self.tensors.iter();
        each.map(|(name, place)| (name.as_str(), place.shape.as_slice()))
    }

    /// A tensor's type, as files write it, its shape and its bytes.
    pub(crate) fn raw(&self, name: &str) -> Option<(String, &[usize], &[u8])> {
        let place = self.tensors.get(name)?;
        let bytes = &self.shards[place.shard].1[place.start..place.end];
        Some((format!("{:?}", place.dtype), &place.shape, bytes))
    }

    /// Bytes of all tensors.
    pub(crate) fn bytes(&self) -> u64 {
        self.tensors
            .values()
            .map(|place| (place.end - place.start) as u64)
            .sum()
    }
}
