//! A frame: one commit as it stands in the log.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | `WLF1` |
//! | 4..8 | CRC-32 over the store's secret and everything below |
//! | 8..16 | number of the segment that it was written for |
//! | 16..24 | sequence of the commit |
//! | 24..28 | length of the payload |
//! | 28..32 | zero |
//! | 32.. | payload: for each key its length and bytes, then 0, or 1 and the value's length and bytes |
//!
//! Numbers of the header are little-endian, lengths in the payload LEB128. A frame begins at a multiple of [`BLOCK`] and the rest of its last
//! block is zero, so that no write touches a block, or a page of the kernel, that holds an earlier commit.
//!
//! Event bytes come from outside. Without the secret somebody could send bytes that look like a frame, and wait for a crash that leaves them
//! where a frame may begin.

use crate::kv::Batch;
use crate::record::{BadRecord, Decoder, Encoder};

/// The unit of writing: the page of the kernel and the physical sector of most devices.
pub(super) const BLOCK: usize = 4096;
const HEADER: usize = 32;
const MAGIC: [u8; 4] = *b"WLF1";

/// Part of every checksum of one store.
pub(super) type Secret = [u8; 16];

/// A frame whose checksum holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame<'a> {
    pub(super) segment: u64,
    pub(super) sequence: u64,
    payload: &'a [u8],
}

/// More than a frame can say the length of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLarge;

/// At least what a batch takes in the log.
pub(super) fn size(batch: &Batch) -> u64 {
    let one = |(key, value): (&Vec<u8>, &Option<Vec<u8>>)| {
        // Two lengths of at most ten bytes, and whether there is a value.
        key.len() as u64 + value.as_ref().map_or(0, |value| value.len() as u64) + 21
    };
    (HEADER as u64 + batch.iter().map(one).sum::<u64>()).next_multiple_of(BLOCK as u64)
}

/// Replaces what is in the buffer.
pub(super) fn encode(
    secret: &Secret,
    segment: u64,
    sequence: u64,
    batch: &Batch,
    mut buffer: Vec<u8>,
) -> Result<Vec<u8>, TooLarge> {
    buffer.clear();
    let mut to = Encoder::appending(buffer);
    to.raw(&[0; HEADER]);
    for (key, value) in batch {
        to.bytes(key);
        to.option(value.as_deref(), Encoder::bytes);
    }
    let mut buffer = to.into_bytes();
    let length = u32::try_from(buffer.len() - HEADER).map_err(|_| TooLarge)?;
    buffer[..4].copy_from_slice(&MAGIC);
    buffer[8..16].copy_from_slice(&segment.to_le_bytes());
    buffer[16..24].copy_from_slice(&sequence.to_le_bytes());
    buffer[24..28].copy_from_slice(&length.to_le_bytes());
    let sum = checksum(secret, &buffer[8..]);
    buffer[4..8].copy_from_slice(&sum.to_le_bytes());
    buffer.resize(buffer.len().next_multiple_of(BLOCK), 0);
    Ok(buffer)
}

/// The frame that begins here, if one does and is whole.
pub(super) fn decode<'a>(secret: &Secret, bytes: &'a [u8]) -> Option<Frame<'a>> {
    let (magic, rest) = bytes.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    if *magic != MAGIC {
        return None;
    }
    let number = |at: usize| Some(u64::from_le_bytes(*rest.get(at..)?.first_chunk()?));
    let (segment, sequence) = (number(0)?, number(8)?);
    let length = u32::from_le_bytes(*rest.get(16..)?.first_chunk()?);
    let length = usize::try_from(length).ok()?;
    let summed = rest.get(..(HEADER - 8).checked_add(length)?)?;
    if checksum(secret, summed) != u32::from_le_bytes(*sum) {
        return None;
    }
    Some(Frame {
        segment,
        sequence,
        payload: summed.get(HEADER - 8..)?,
    })
}

/// Every frame in a file that was written for a segment above `after`, wherever it begins.
pub(super) fn scan<'a>(secret: &Secret, file: &'a [u8], after: u64) -> Vec<Frame<'a>> {
    let mut frames = vec![];
    let mut rest = file;
    while !rest.is_empty() {
        let frame = decode(secret, rest).filter(|frame| frame.segment > after);
        let step = frame.as_ref().map_or(BLOCK, Frame::size);
        frames.extend(frame);
        rest = rest.get(step..).unwrap_or_default();
    }
    frames
}

impl Frame<'_> {
    /// What it takes in the file.
    pub(super) fn size(&self) -> usize {
        (HEADER + self.payload.len()).next_multiple_of(BLOCK)
    }

    /// The commit.
    pub(super) fn batch(&self) -> Result<Batch, BadRecord> {
        let mut batch = Batch::new();
        let mut from = Decoder::new(self.payload);
        while !from.is_empty() {
            let key = from.bytes("key")?.to_vec();
            let value = from.option("value", Decoder::bytes)?;
            batch.insert(key, value.map(<[u8]>::to_vec));
        }
        Ok(batch)
    }
}

fn checksum(secret: &Secret, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(secret);
    hasher.update(bytes);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_batch() -> impl Strategy<Value = Batch> {
        let bytes = |most| proptest::collection::vec(any::<u8>(), 0..most);
        proptest::collection::btree_map(bytes(30), proptest::option::of(bytes(3000)), 0..8)
    }

    proptest! {
        #[test]
        fn a_frame_decodes_to_its_batch_and_is_whole_blocks(batch in any_batch(), numbers in any::<[u64; 2]>(), secret in any::<Secret>()) {
            let bytes = encode(&secret, numbers[0], numbers[1], &batch, vec![7; 9]).unwrap();
            prop_assert!(bytes.len() as u64 <= size(&batch) && bytes.len().is_multiple_of(BLOCK));
            let frame = decode(&secret, &bytes).unwrap();
            prop_assert_eq!((frame.segment, frame.sequence, frame.size()), (numbers[0], numbers[1], bytes.len()));
            prop_assert_eq!(frame.batch().unwrap(), batch);
        }

        #[test]
        fn no_frame_holds_with_a_flipped_bit_a_missing_end_or_another_secret(batch in any_batch(), place in any::<usize>()) {
            let bytes = encode(&[1; 16], 3, 4, &batch, vec![]).unwrap();
            let payload = decode(&[1; 16], &bytes).unwrap().payload.len();
            let mut other = bytes.clone();
            let bit = place % ((HEADER + payload) * 8);
            other[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(decode(&[1; 16], &other), None);
            prop_assert_eq!(decode(&[1; 16], &bytes[..place % (HEADER + payload)]), None);
            prop_assert_eq!(decode(&[2; 16], &bytes), None);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let near = [&MAGIC[..], &bytes].concat();
            prop_assert_eq!(decode(&[0; 16], &near), None);
            let _ = Frame { segment: 1, sequence: 1, payload: &bytes }.batch();
        }
    }
}
