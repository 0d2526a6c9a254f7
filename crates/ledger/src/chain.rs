//! A chain of hashes over lines.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

const DAY_MS: u64 = 86_400_000;

/// Which log.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Chain {
    /// The usage ledger of a tenant.
    Ledger(String),
    /// Who changed what.
    Audit,
}

impl Chain {
    /// The name that its first hash covers.
    pub fn name(&self) -> String {
        match self {
            Self::Ledger(tenant) => format!("ledger/{tenant}"),
            Self::Audit => "audit".to_owned(),
        }
    }

    /// The hash before number 1.
    pub fn genesis(&self) -> Hash {
        let mut hasher = Sha256::new();
        hasher.update(b"weir chain 1\n");
        hasher.update(self.name().as_bytes());
        Hash(hasher.finalize().into())
    }
}

/// A SHA-256, shown as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Hash(pub [u8; 32]);

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is no hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a hash: expected 64 hexadecimal digits")]
pub struct NotAHash;

impl FromStr for Hash {
    type Err = NotAHash;

    fn from_str(text: &str) -> Result<Self, NotAHash> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != 32 || !rest.is_empty() {
            return Err(NotAHash);
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or(NotAHash);
        let mut bytes = [0; 32];
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            let value = digit(*high)? * 16 + digit(*low)?;
            *byte = u8::try_from(value).map_err(|_| NotAHash)?;
        }
        Ok(Self(bytes))
    }
}

/// A UTC day, counted from 1970-01-01; shown as `2026-11-29`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(pub u32);

impl Day {
    /// The day of a moment.
    pub fn of(unix_ms: u64) -> Self {
        Self(u32::try_from(unix_ms / DAY_MS).unwrap_or(u32::MAX))
    }

    /// Its first moment.
    pub fn start_ms(self) -> u64 {
        u64::from(self.0) * DAY_MS
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            crate::rfc3339(self.start_ms())
                .split('T')
                .next()
                .unwrap_or(""),
        )
    }
}

impl FromStr for Day {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no day; write one like 2026-11-29");
        let date: jiff::civil::Date = text.parse().map_err(|_| wrong())?;
        let start = date
            .to_zoned(jiff::tz::TimeZone::UTC)
            .map_err(|_| wrong())?
            .timestamp();
        u64::try_from(start.as_millisecond())
            .map(Self::of)
            .map_err(|_| wrong())
    }
}

/// The end of a chain: all that its growth needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Links so far.
    pub number: u64,
    /// The day of the last one.
    pub day: Day,
    /// Its hash; the genesis when there is none.
    pub hash: Hash,
}

/// One line and its place in the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// From 1, without gaps.
    pub number: u64,
    /// The UTC day it belongs to.
    pub day: Day,
    /// The hash before it.
    pub previous: Hash,
    /// Its own.
    pub hash: Hash,
    /// One line of JSON.
    pub body: Vec<u8>,
}

impl Head {
    /// Of a chain without links.
    pub fn empty(chain: &Chain) -> Self {
        Self {
            number: 0,
            day: Day(0),
            hash: chain.genesis(),
        }
    }

    /// Adds a line.
    pub fn extend(&mut self, now_ms: u64, body: Vec<u8>) -> Link {
        let number = self.number.saturating_add(1);
        let day = self.day.max(Day::of(now_ms));
        let hash = hash(self.hash, number, day, &body);
        let link = Link {
            number,
            day,
            previous: self.hash,
            hash,
            body,
        };
        *self = Self { number, day, hash };
        link
    }
}

fn hash(previous: Hash, number: u64, day: Day, body: &[u8]) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update(previous.0);
    hasher.update(number.to_be_bytes());
    hasher.update(day.0.to_be_bytes());
    hasher.update(body);
    Hash(hasher.finalize().into())
}

/// Why a link does not continue its chain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A link is missing, or there twice.
    #[error("expected record {expected}, found {found}: one is missing or doubled")]
    Number {
        /// The next number.
        expected: u64,
        /// The one found.
        found: u64,
    },
    /// Days went back.
    #[error("record {number} is of {day}, the one before of {before}")]
    Day {
        /// Of the link.
        number: u64,
        /// Its day.
        day: Day,
        /// The day before.
        before: Day,
    },
    /// It was made to follow something else.
    #[error(
        "record {number} follows {found}, but the one before it has {expected}: what was before it was changed"
    )]
    Previous {
        /// Of the link.
        number: u64,
        /// What the chain has.
        expected: Hash,
        /// What the link says.
        found: Hash,
    },
    /// Its bytes are not those that were hashed.
    #[error("record {number} has {found}, its bytes give {expected}: it was changed")]
    Hash {
        /// Of the link.
        number: u64,
        /// What the bytes give.
        expected: Hash,
        /// What the link says.
        found: Hash,
    },
}

/// Follows a chain and finds the first link that does not belong.
#[derive(Clone, Debug)]
pub struct Verifier {
    head: Head,
}

impl Verifier {
    /// From the beginning of a chain.
    pub fn new(chain: &Chain) -> Self {
        Self::from(Head::empty(chain))
    }

    /// From a point that is trusted: a root that was exported before.
    pub fn from(head: Head) -> Self {
        Self { head }
    }

    /// How far it has come.
    pub fn head(&self) -> Head {
        self.head
    }

    /// Takes the next link.
    ///
    /// # Errors
    /// It does not continue the chain; nothing after it says anything then.
    pub fn follow(&mut self, link: &Link) -> Result<(), Broken> {
        let number = link.number;
        let expected = self.head.number.saturating_add(1);
        if number != expected {
            return Err(Broken::Number {
                expected,
                found: number,
            });
        }
        if link.day < self.head.day {
            return Err(Broken::Day {
                number,
                day: link.day,
                before: self.head.day,
            });
        }
        if link.previous != self.head.hash {
            return Err(Broken::Previous {
                number,
                expected: self.head.hash,
                found: link.previous,
            });
        }
        let expected = hash(link.previous, number, link.day, &link.body);
        if link.hash != expected {
            return Err(Broken::Hash {
                number,
                expected,
                found: link.hash,
            });
        }
        self.head = Head {
            number,
            day: link.day,
            hash: link.hash,
        };
        Ok(())
    }
}
