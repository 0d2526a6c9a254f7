//! A record as bytes: compact JSON with fields in the order of the type, so that equal records are equal bytes.

use serde::Deserialize;

use super::{Broken, Record};
use crate::Stamp;

/// Version of the format that this code writes.
pub const SCHEMA: u32 = 1;
/// An API server accepts far more; a record this small can be read by a person and copied in a message.
pub const MAX_BYTES: usize = 16 * 1024;

/// Encodes a record; what is least needed is forgotten first where it would be too large.
///
/// # Errors
/// [`RecordError::TooLarge`] when even the needed part is, [`RecordError::Broken`] when it breaks a rule of records.
pub fn encode(record: &Record) -> Result<Vec<u8>, RecordError> {
    record.check().map_err(RecordError::Broken)?;
    let mut record = record.clone();
    record.bound();
    loop {
        let bytes = serde_json::to_vec(&record).map_err(RecordError::Encode)?;
        if bytes.len() <= MAX_BYTES {
            return Ok(bytes);
        }
        // History is for people, the oldest rejections for versions that are long replaced.
        if !record.history.is_empty() {
            record.history.remove(0);
        } else if record.rejected.len() > 1 {
            record.rejected.remove(0);
        } else {
            return Err(RecordError::TooLarge(bytes.len()));
        }
    }
}

/// Decodes a record; the order of fields does not matter, for an API server sorts them.
///
/// # Errors
/// A newer format, bytes that are no record, or a record that breaks a rule.
pub fn decode(bytes: &[u8]) -> Result<Record, RecordError> {
    #[derive(Deserialize)]
    struct Head {
        schema: u32,
    }
    if bytes.len() > 2 * MAX_BYTES {
        return Err(RecordError::TooLarge(bytes.len()));
    }
    let head: Head = serde_json::from_slice(bytes).map_err(RecordError::Decode)?;
    if head.schema > SCHEMA {
        return Err(RecordError::Newer(head.schema));
    }
    let record: Record = serde_json::from_slice(bytes).map_err(RecordError::Decode)?;
    record.check().map_err(RecordError::Broken)?;
    Ok(record)
}

/// The name of a record's object: creating it is the compare-and-swap, so it depends on nothing but model and place.
pub fn name(model: &str, stamp: Stamp) -> String {
    let hash = blake3::hash(model.as_bytes()).to_hex();
    format!("weir-{}-{}-{}", &hash[..16], stamp.epoch, stamp.revision)
}

/// Why a record cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Larger than allowed.
    #[error(
        "record has {0} bytes, more than {MAX_BYTES} even without its history: shorten the plan"
    )]
    TooLarge(usize),
    /// A later version of Weir wrote it.
    #[error(
        "record has schema {0}, this program knows up to {SCHEMA}: run the version that wrote it, or a later one"
    )]
    Newer(u32),
    /// Its content contradicts itself.
    #[error("record contradicts itself: do not use it, let the log be rebuilt")]
    Broken(#[source] Broken),
    /// It cannot be written as JSON.
    #[error("cannot encode record")]
    Encode(#[source] serde_json::Error),
    /// It is no record.
    #[error("cannot decode record: let the log be rebuilt")]
    Decode(#[source] serde_json::Error),
}
