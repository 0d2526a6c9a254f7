//! What stands around the text in a stream's chunks: serialized once for each stream.

use bytes::{BufMut, Bytes, BytesMut};

/// The bytes before and after the text.
pub(super) struct Around {
    before: Bytes,
    after: Bytes,
}

impl Around {
    /// Text that no other field of a chunk can be: ids, names and objects are written by us or checked.
    pub(super) const MARK: &'static str = "\u{0}\u{1}text";
    /// As it stands in JSON.
    const QUOTED: &'static [u8] = b"\"\\u0000\\u0001text\"";

    /// Takes a chunk with the mark as its text apart.
    pub(super) fn of(chunk: &[u8]) -> Option<Self> {
        let mut places = chunk.windows(Self::QUOTED.len());
        let at = places.position(|bytes| bytes == Self::QUOTED)?;
        Some(Self {
            before: Bytes::copy_from_slice(&chunk[..at]),
            after: Bytes::copy_from_slice(&chunk[at + Self::QUOTED.len()..]),
        })
    }

    /// A chunk with this JSON text.
    pub(super) fn text(&self, quoted: &[u8]) -> Bytes {
        let size = self.before.len() + quoted.len() + self.after.len();
        let mut out = BytesMut::with_capacity(size);
        out.put_slice(&self.before);
        out.put_slice(quoted);
        out.put_slice(&self.after);
        out.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_set_where_the_mark_was() {
        let chunk =
            |text: &str| serde_json::to_vec(&serde_json::json!({"id": "x", "text": text, "z": 1}));
        let around = Around::of(&chunk(Around::MARK).unwrap()).unwrap();
        for text in ["Red", "\"\\\n", ""] {
            let quoted = serde_json::to_vec(text).unwrap();
            assert_eq!(around.text(&quoted), chunk(text).unwrap());
        }
        assert!(Around::of(b"{}").is_none());
    }
}
