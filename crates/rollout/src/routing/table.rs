//! A table: which version takes which share of new runs, and what makes one newer than another.

use serde::{Deserialize, Serialize};

use crate::VersionId;

/// What makes a table newer. An emergency table comes after the table it overrides and before the next one.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TableOrder {
    /// Counts rebuilt logs.
    pub epoch: u32,
    /// Counts tables.
    pub generation: u64,
    /// Whether it sends everything to the rollback version, without a record.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub emergency: bool,
}

impl TableOrder {
    /// A recorded table's order.
    pub fn new(epoch: u32, generation: u64) -> Self {
        Self {
            epoch,
            generation,
            emergency: false,
        }
    }
}

/// A version's share of new runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Share {
    /// Which version.
    pub id: VersionId,
    /// Its share in percent.
    pub weight: u32,
}

/// Where the shifts of a distribution are measured: bucket indexes of the stable version's quantiles before the step, and
/// the limits that gateways count exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Thresholds {
    /// Time to the first token over which a run is bad.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_limit_ms: Option<u32>,
    /// Gap between tokens over which it counts against the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inter_token_limit_ms: Option<u32>,
    /// Buckets of the median and the 90th percentile of the time to the first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_edges: Option<[u8; 2]>,
    /// The same of the time per token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inter_token_edges: Option<[u8; 2]>,
    /// Buckets of the 10th and the 90th percentile of the output's length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length_edges: Option<[u8; 2]>,
}

/// What gateways do with new runs of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Table {
    /// What makes it newer than another one.
    pub order: TableOrder,
    /// The version that serves.
    pub stable: VersionId,
    /// Where everything goes when a version has no worker, or on an emergency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollback: Option<VersionId>,
    /// Shares that sum to 100; a version without share is absent.
    pub entries: Vec<Share>,
    /// The attempt whose evidence its runs are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<String>,
    /// The step it belongs to, 0 outside the steps.
    pub step: u32,
    /// Key of the coin, 64 hexadecimal digits.
    pub coin_salt: String,
    /// Where shifts are measured.
    pub thresholds: Thresholds,
}

impl Table {
    /// A table that sends everything to `stable`.
    pub fn all_to(order: TableOrder, stable: VersionId) -> Self {
        Self {
            order,
            entries: vec![Share {
                id: stable.clone(),
                weight: 100,
            }],
            stable,
            rollback: None,
            attempt: None,
            step: 0,
            coin_salt: String::new(),
            thresholds: Thresholds::default(),
        }
    }

    /// The share of a digest, 0 when it is not in the table.
    pub fn weight(&self, digest: &str) -> u32 {
        let found = self.entries.iter().find(|entry| entry.id.digest == digest);
        found.map_or(0, |entry| entry.weight)
    }

    /// Checks what every table must keep.
    ///
    /// # Errors
    /// What it breaks.
    pub fn check(&self) -> Result<(), TableError> {
        let sum: u32 = self.entries.iter().map(|entry| entry.weight).sum();
        if sum != 100 {
            return Err(TableError::Sum(sum));
        }
        for (index, entry) in self.entries.iter().enumerate() {
            if entry.weight == 0 {
                return Err(TableError::NoShare(entry.id.version));
            }
            if self.entries[..index]
                .iter()
                .any(|e| e.id.digest == entry.id.digest)
            {
                return Err(TableError::Twice(entry.id.version));
            }
        }
        if self.order.emergency && self.entries.len() != 1 {
            return Err(TableError::Emergency);
        }
        Ok(())
    }

    /// What may be published without a record, when the record cannot be written: everything to the recorded rollback version.
    /// None when there is nothing to return to, or nothing to take away.
    pub fn emergency(&self) -> Option<Self> {
        let rollback = self.rollback.clone()?;
        if self.order.emergency || self.weight(&rollback.digest) == 100 {
            return None;
        }
        Some(Self {
            order: TableOrder {
                emergency: true,
                ..self.order
            },
            entries: vec![Share {
                id: rollback,
                weight: 100,
            }],
            ..self.clone()
        })
    }

    /// Whether a gateway that has `self` may take `other`: only a newer one.
    pub fn may_become(&self, other: &Self) -> bool {
        other.order > self.order
    }
}

/// What a table breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// Weights do not sum to 100.
    #[error("weights sum to {0}: a routing table must give away exactly 100 percent")]
    Sum(u32),
    /// An entry without share.
    #[error("version {0} is listed with weight 0: leave it out")]
    NoShare(u32),
    /// A version twice.
    #[error("version {0} is listed twice: give it one weight")]
    Twice(u32),
    /// An emergency table that splits.
    #[error(
        "an emergency table splits traffic: it may only send everything to the rollback version"
    )]
    Emergency,
}
