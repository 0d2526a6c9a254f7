//! Stored records: keys, and the bytes under them. Format version 1 throughout; every value ends with a checksum over key and value.

pub(crate) mod chain;
pub(crate) mod chunk;
pub(crate) mod codec;
pub mod key;
pub(crate) mod ledger;
pub(crate) mod object;
pub(crate) mod run;

pub(crate) use codec::{BadRecord, Decoder, Encoder, seal, unseal};

#[cfg(test)]
mod tests;
