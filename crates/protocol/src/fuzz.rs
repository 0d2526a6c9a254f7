//! What hostile bytes are given to, for fuzzing. It must not panic or take memory out of proportion, whatever the bytes.

use prost::Message;

use crate::worker::{GatewayFrame, WorkerFrame};

/// A frame of either direction: what is read is written again the same.
///
/// # Panics
/// A frame changes when it is written and read again.
pub fn frames(bytes: &[u8]) {
    round_trip::<GatewayFrame>(bytes);
    round_trip::<WorkerFrame>(bytes);
}

fn round_trip<M: Message + Default>(bytes: &[u8]) {
    let Ok(frame) = M::decode(bytes) else { return };
    let written = frame.encode_to_vec();
    let again = M::decode(written.as_slice()).map(|frame| frame.encode_to_vec());
    assert_eq!(again.ok(), Some(written), "a frame changed on the way");
}
