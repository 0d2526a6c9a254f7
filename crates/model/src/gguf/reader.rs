//! Bounded reading of a header, with errors that say where.

use super::{GgufError, NAME_BYTES_MAX};

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any integer without a sign, of 8 to 64 bits.
    Unsigned(u64),
    /// Any integer with a sign.
    Signed(i64),
    /// Of 32 or 64 bits.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// Text.
    String(String),
    /// Texts.
    Strings(Vec<String>),
    /// Integers of any size.
    Integers(Vec<i64>),
    /// Numbers.
    Floats(Vec<f32>),
}

impl Value {
    /// An integer that is not negative.
    pub fn unsigned(&self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(*value),
            Self::Signed(value) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// A number.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            _ => self.unsigned().map(|value| value as f64),
        }
    }

    /// Text.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::String(text) => Some(text),
            _ => None,
        }
    }

    /// True or false.
    pub fn flag(&self) -> Option<bool> {
        match self {
            Self::Bool(flag) => Some(*flag),
            _ => None,
        }
    }
}

/// Kinds of values, as files number them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unsigned(usize),
    Signed(usize),
    Float(usize),
    Bool,
    String,
    Array,
}

impl Kind {
    fn of(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Unsigned(1),
            1 => Self::Signed(1),
            2 => Self::Unsigned(2),
            3 => Self::Signed(2),
            4 => Self::Unsigned(4),
            5 => Self::Signed(4),
            6 => Self::Float(4),
            7 => Self::Bool,
            8 => Self::String,
            9 => Self::Array,
            10 => Self::Unsigned(8),
            11 => Self::Signed(8),
            12 => Self::Float(8),
            _ => return None,
        })
    }

    /// Fewest bytes of one in a file.
    fn least(self) -> u64 {
        match self {
            Self::Unsigned(size) | Self::Signed(size) | Self::Float(size) => size as u64,
            Self::Bool => 1,
            Self::String => 8,
            Self::Array => 12,
        }
    }
}

/// Reads from the front of a file.
pub(super) struct Reader<'a> {
    file: &'a str,
    all: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a str, all: &'a [u8]) -> Self {
        Self { file, all, at: 0 }
    }

    pub(super) fn offset(&self) -> usize {
        self.at
    }

    pub(super) fn format(&self, what: String) -> GgufError {
        GgufError::Format {
            file: self.file.to_owned(),
            what,
        }
    }

    pub(super) fn broken(&self, place: &str, what: String) -> GgufError {
        GgufError::Broken {
            file: self.file.to_owned(),
            at: self.at,
            place: place.to_owned(),
            what,
        }
    }

    pub(super) fn bytes(&mut self, count: usize, place: &str) -> Result<&'a [u8], GgufError> {
        let left = self.all.get(self.at..).unwrap_or_default();
        let Some(bytes) = left.get(..count) else {
            let what = format!("{count} bytes are needed and {} are left", left.len());
            return Err(self.broken(place, what));
        };
        self.at += count;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, place: &str) -> Result<u32, GgufError> {
        Ok(u32::try_from(self.integer(4, place)?).expect("four bytes"))
    }

    pub(super) fn u64(&mut self, place: &str) -> Result<u64, GgufError> {
        self.integer(8, place)
    }

    /// A count must not promise more than the rest of the file can hold.
    pub(super) fn check_count(
        &self,
        count: u64,
        least_bytes: u64,
        place: &str,
    ) -> Result<(), GgufError> {
        let left = (self.all.len() - self.at) as u64;
        if count.saturating_mul(least_bytes) > left {
            let what = format!("{count} of them cannot be in the {left} bytes that are left");
            return Err(self.broken(place, what));
        }
        Ok(())
    }

    /// The name of a key or a tensor.
    pub(super) fn name(&mut self, place: &str) -> Result<String, GgufError> {
        let name = self.string(place)?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            let what = format!(
                "a name of {} bytes is not 1 to {NAME_BYTES_MAX}",
                name.len()
            );
            return Err(self.broken(place, what));
        }
        Ok(name)
    }

    pub(super) fn value(&mut self, place: &str) -> Result<Value, GgufError> {
        let kind = self.kind(place)?;
        Ok(match kind {
            Kind::Unsigned(size) => Value::Unsigned(self.integer(size, place)?),
            Kind::Signed(size) => Value::Signed(self.signed(size, place)?),
            Kind::Float(size) => Value::Float(self.float(size, place)?),
            Kind::Bool => Value::Bool(self.integer(1, place)? != 0),
            Kind::String => Value::String(self.string(place)?),
            Kind::Array => self.array(place)?,
        })
    }

    fn array(&mut self, place: &str) -> Result<Value, GgufError> {
        let kind = self.kind(place)?;
        let count = self.u64(place)?;
        self.check_count(count, kind.least(), place)?;
        let count = 0..count;
        Ok(match kind {
            Kind::Unsigned(size) => {
                let read = |_| self.integer(size, place).map(u64::cast_signed);
                Value::Integers(count.map(read).collect::<Result<_, _>>()?)
            }
            Kind::Signed(size) => {
                let read = |_| self.signed(size, place);
                Value::Integers(count.map(read).collect::<Result<_, _>>()?)
            }
            Kind::Bool => {
                let read = |_| self.signed(1, place);
                Value::Integers(count.map(read).collect::<Result<_, _>>()?)
            }
            Kind::Float(size) => {
                #[expect(clippy::cast_possible_truncation, reason = "scores are f32")]
                let read = |_| self.float(size, place).map(|value| value as f32);
                Value::Floats(count.map(read).collect::<Result<_, _>>()?)
            }
            Kind::String => {
                let read = |_| self.string(place);
                Value::Strings(count.map(read).collect::<Result<_, _>>()?)
            }
            Kind::Array => {
                return Err(self.broken(place, "a list of lists, which no model needs".to_owned()));
            }
        })
    }

    fn kind(&mut self, place: &str) -> Result<Kind, GgufError> {
        let number = self.u32(place)?;
        Kind::of(number).ok_or_else(|| self.broken(place, format!("type {number} is unknown")))
    }

    /// Text; what is not UTF-8 in it becomes replacement characters, as in tokens that are no text.
    fn string(&mut self, place: &str) -> Result<String, GgufError> {
        let length = self.u64(place)?;
        self.check_count(length, 1, place)?;
        let length = usize::try_from(length).expect("bounded by the file");
        let bytes = self.bytes(length, place)?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    fn integer(&mut self, size: usize, place: &str) -> Result<u64, GgufError> {
        let mut wide = [0; 8];
        wide[..size].copy_from_slice(self.bytes(size, place)?);
        Ok(u64::from_le_bytes(wide))
    }

    fn signed(&mut self, size: usize, place: &str) -> Result<i64, GgufError> {
        let unused = 64 - 8 * u32::try_from(size).expect("at most eight bytes");
        // Up to the sign bit and back carries the sign down.
        Ok((self.integer(size, place)? << unused).cast_signed() >> unused)
    }

    fn float(&mut self, size: usize, place: &str) -> Result<f64, GgufError> {
        let bits = self.integer(size, place)?;
        Ok(match u32::try_from(bits) {
            Ok(bits) if size == 4 => f64::from(f32::from_bits(bits)),
            _ => f64::from_bits(bits),
        })
    }
}
