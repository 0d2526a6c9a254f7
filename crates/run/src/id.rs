//! Names of runs, of their events, and of who may write to them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A run's identity: a ULID (48 bits of milliseconds, 80 random bits), shown as `run_` and 26 characters of Crockford base 32.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(u128);

/// A run's writer: grows with every gateway that takes the run over. Rows and appends of an older epoch are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

/// An event's number within its run: from 1, without gaps.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Sequence(pub u64);

/// Crockford's alphabet: no I, L, O, U.
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

impl RunId {
    /// From a time (milliseconds since the Unix epoch) and 80 random bits (the low bits of `random`).
    pub fn new(unix_ms: u64, random: u128) -> Self {
        Self((u128::from(unix_ms) << 80) | (random & ((1 << 80) - 1)))
    }

    /// From the 16 bytes of [`RunId::to_bytes`].
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    /// Big-endian, so that bytes sort as ids do: by time.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// When the id was made, in milliseconds since the Unix epoch.
    pub fn unix_ms(self) -> u64 {
        (self.0 >> 80) as u64
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [0_u8; 26];
        for (place, letter) in text.iter_mut().rev().enumerate() {
            *letter = ALPHABET[((self.0 >> (5 * place)) & 31) as usize];
        }
        f.write_str("run_")?;
        f.write_str(std::str::from_utf8(&text).expect("the alphabet is ASCII"))
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a run id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a run id: expected \"run_\" and 26 characters of Crockford base 32")]
pub struct ParseRunIdError;

impl FromStr for RunId {
    type Err = ParseRunIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let letters = text.strip_prefix("run_").ok_or(ParseRunIdError)?.as_bytes();
        // 26 letters hold 130 bits: the first may only be 0 to 7.
        if letters.len() != 26 || letters[0] > b'7' {
            return Err(ParseRunIdError);
        }
        let mut value = 0_u128;
        for letter in letters {
            let digit = ALPHABET
                .iter()
                .position(|a| a == letter)
                .ok_or(ParseRunIdError)?;
            value = (value << 5) | digit as u128;
        }
        Ok(Self(value))
    }
}

impl Serialize for RunId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RunId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
