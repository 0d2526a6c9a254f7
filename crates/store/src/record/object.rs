//! An object's record: how often it was written, then its bytes.

use super::run::version as format_version;
use super::{BadRecord, Decoder, Encoder};

pub(crate) fn encode(version: u64, data: &[u8]) -> Vec<u8> {
    let mut to = Encoder::with_capacity(data.len() + 16);
    to.byte(1);
    to.number(version);
    to.bytes(data);
    to.into_bytes()
}

pub(crate) fn decode(payload: &[u8]) -> Result<(u64, &[u8]), BadRecord> {
    let mut from = Decoder::new(payload);
    format_version(&mut from)?;
    let version = from.number("version")?;
    let data = from.bytes("data")?;
    from.finish()?;
    Ok((version, data))
}
