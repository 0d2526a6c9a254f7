//! Files of tenants: pieces in the store, within a quota that every replica sees the same.
//!
//! A file is a document (space `file`) and pieces (space `blob`), written before the document. A marker (space `sweep`) is written with the
//! first piece and says when to look again: what has no document by then, or one that is over, is taken away. So nothing is left behind,
//! whatever process dies when.

mod meta;
mod multipart;
mod pieces;
mod serve;
mod sweep;
mod upload;

pub(crate) use meta::{FileMeta, Purpose, find, new_id, read, to_bytes};
pub(crate) use pieces::{LineReader, PieceWriter, remove_pieces};
pub(crate) use serve::{content, delete, forget, list, retrieve};
pub(crate) use sweep::{KEYS, Marker, keep_swept};
pub(crate) use upload::{DEFAULT_LIFE_S, LIFE_S, upload};
