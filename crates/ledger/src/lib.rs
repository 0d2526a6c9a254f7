//! The pure core of logs that nobody can rewrite unseen: the usage ledger of each tenant, and the audit log.
//!
//! It must not see a store, a clock or a file: whoever stores a log serialises its growth and gives the time. A log is a [`Chain`] of
//! [`Link`]s; each link's hash covers its number, its UTC day, its bytes and the hash before it, so that the last hash of a day (its *root*)
//! stands for everything up to then. Read [`Head::extend`] first, then [`Verifier`].
//!
//! # The hash
//!
//! `SHA-256(previous ‖ number ‖ day ‖ body)`: the 32 bytes of the hash before, the number as 8 and the day (since 1970-01-01) as 4 bytes
//! big-endian, and the body as it is stored, which is one line of JSON. Numbers count from 1 over the whole chain, days never go back (a
//! clock that does leaves the day where it was). The hash before number 1 is `SHA-256("weir chain 1\n" ‖ name)`, with the name
//! `ledger/TENANT` or `audit`, so that one chain cannot be shown for another. SHA-256 rather than BLAKE3, because every language has
//! it, and so do the databases.

mod audit;
mod chain;
mod export;
mod record;
mod time;

pub use audit::{Actor, AuditLine, Change, diff};
pub use chain::{Broken, Chain, Day, Hash, Head, Link, NotAHash, Verifier};
pub use export::{BadLine, Line, Page, encode_link, parse_line};
pub use record::UsageRecord;
pub use time::rfc3339;

#[cfg(test)]
mod tests;
