//! What gateways measured: cumulative counts that merge in any order, and the strata that are judged.

mod counts;
mod histogram;
mod ledger;
mod shadow;
mod stratum;

pub use counts::{Counts, Judged};
pub use histogram::{BUCKETS, Histogram, LENGTH_BUCKETS, bucket_of_length, bucket_of_us, edge_us};
pub use ledger::{EntryKey, Ledger, MergeError, Snapshot};
pub use shadow::ShadowLedger;
pub use stratum::{Sign, Stratum, Tally, stratum};

#[cfg(test)]
mod tests;
