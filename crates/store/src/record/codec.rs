//! Bytes of a record: LEB128 integers, length-prefixed strings, and a checksum over key and value.

/// The record is not what its key promises.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadRecord {
    /// No room for a checksum.
    #[error("a record of {0} bytes is shorter than its checksum")]
    Short(usize),
    /// It was changed.
    #[error("the checksum of a record is {found:08x}, its bytes say {wanted:08x}")]
    Checksum {
        /// As stored.
        found: u32,
        /// As computed.
        wanted: u32,
    },
    /// It is cut off.
    #[error("a record ends where {0} should be")]
    End(&'static str),
    /// It is of a later version, or damaged.
    #[error("{0} in a record has no meaning to this version")]
    Value(&'static str),
    /// It is too long.
    #[error("a record has {0} bytes too many")]
    Trailing(usize),
}

/// Appends the checksum. The key is part of it, so that a value under another key is found out.
pub(crate) fn seal(key: &[u8], mut payload: Vec<u8>) -> Vec<u8> {
    let sum = checksum(key, &payload);
    payload.extend_from_slice(&sum.to_le_bytes());
    payload
}

/// The payload of a sealed record.
pub(crate) fn unseal<'a>(key: &[u8], sealed: &'a [u8]) -> Result<&'a [u8], BadRecord> {
    let (payload, sum) = sealed
        .split_last_chunk::<4>()
        .ok_or(BadRecord::Short(sealed.len()))?;
    let (found, wanted) = (u32::from_le_bytes(*sum), checksum(key, payload));
    if found == wanted {
        Ok(payload)
    } else {
        Err(BadRecord::Checksum { found, wanted })
    }
}

fn checksum(key: &[u8], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key);
    hasher.update(payload);
    hasher.finalize()
}

/// Builds a payload.
#[derive(Default)]
pub(crate) struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(bytes),
        }
    }

    /// Goes on after what is there.
    pub(crate) fn appending(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    pub(crate) fn number(&mut self, mut number: u64) {
        loop {
            let [low, ..] = number.to_le_bytes();
            number >>= 7;
            if number == 0 {
                return self.bytes.push(low & 0x7f);
            }
            self.bytes.push(low | 0x80);
        }
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.raw(bytes);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// One byte for `None`, else 1 and the value.
    pub(crate) fn option<T>(&mut self, value: Option<T>, encode: impl FnOnce(&mut Self, T)) {
        match value {
            None => self.byte(0),
            Some(value) => {
                self.byte(1);
                encode(self, value);
            }
        }
    }
}

/// Takes a payload apart.
pub(crate) struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Every byte must have been read.
    pub(crate) fn finish(self) -> Result<(), BadRecord> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(BadRecord::Trailing(left)),
        }
    }

    pub(crate) fn byte(&mut self, what: &'static str) -> Result<u8, BadRecord> {
        let (first, rest) = self.rest.split_first().ok_or(BadRecord::End(what))?;
        self.rest = rest;
        Ok(*first)
    }

    pub(crate) fn number(&mut self, what: &'static str) -> Result<u64, BadRecord> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(what)?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(BadRecord::Value(what));
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(BadRecord::Value(what))
    }

    pub(crate) fn small(&mut self, what: &'static str) -> Result<u32, BadRecord> {
        u32::try_from(self.number(what)?).map_err(|_| BadRecord::Value(what))
    }

    pub(crate) fn raw<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], BadRecord> {
        let (first, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(BadRecord::End(what))?;
        self.rest = rest;
        Ok(*first)
    }

    pub(crate) fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], BadRecord> {
        let length = self.number(what)?;
        let length = usize::try_from(length).map_err(|_| BadRecord::Value(what))?;
        let (first, rest) = self
            .rest
            .split_at_checked(length)
            .ok_or(BadRecord::End(what))?;
        self.rest = rest;
        Ok(first)
    }

    pub(crate) fn text(&mut self, what: &'static str) -> Result<String, BadRecord> {
        let bytes = self.bytes(what)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| BadRecord::Value(what))
    }

    pub(crate) fn option<T>(
        &mut self,
        what: &'static str,
        decode: impl FnOnce(&mut Self, &'static str) -> Result<T, BadRecord>,
    ) -> Result<Option<T>, BadRecord> {
        match self.byte(what)? {
            0 => Ok(None),
            1 => decode(self, what).map(Some),
            _ => Err(BadRecord::Value(what)),
        }
    }

    /// A length for a list whose items take at least one byte each.
    pub(crate) fn count(&mut self, what: &'static str) -> Result<usize, BadRecord> {
        let count = usize::try_from(self.number(what)?).map_err(|_| BadRecord::Value(what))?;
        if count > self.rest.len() {
            return Err(BadRecord::End(what));
        }
        Ok(count)
    }
}
