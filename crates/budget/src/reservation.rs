//! What a live run holds of its tenant's account, and how that ends.

use serde::{Deserialize, Serialize};

/// What one live run holds. It ends exactly once, in [`crate::Account::settle`] or [`crate::Account::release`], which is why it cannot be copied; a
/// store that keeps it in a row keeps it as long as the run is live and no longer. A run that expires settles what it consumed.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[must_use = "a reservation that is dropped is never given back"]
pub struct Reservation {
    /// Tokens held.
    pub tokens: u64,
    /// Micro-units held.
    pub micros: u64,
    /// Whose KV memory it counts against.
    pub pool: String,
    /// When it was made: the windows that contain this moment bear it, also after they have ended.
    pub accepted_at_ms: u64,
    /// The lengths of those windows, in seconds.
    pub periods_s: Vec<u64>,
    /// The key that holds it too, where the key has limits of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<KeyHold>,
}

/// A key's part in a reservation: the same tokens and micros, in the key's own windows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyHold {
    /// The key's name.
    pub name: String,
    /// Lengths of its windows, in seconds.
    pub periods_s: Vec<u64>,
}

/// What a run consumed, at most what it reserved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Consumed {
    /// Prompt and output tokens.
    pub tokens: u64,
    /// Their price.
    pub micros: u64,
}

/// A settlement that does not fit its account: the store or its caller is wrong, and nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettleError {
    /// More consumed than reserved.
    #[error("a run consumed {consumed} {unit} and had reserved {reserved}")]
    OverReservation {
        /// `tokens` or `micros`.
        unit: &'static str,
        /// Consumed.
        consumed: u64,
        /// Reserved.
        reserved: u64,
    },
    /// The account does not hold this reservation.
    #[error("the account holds less than the reservation in {place}")]
    NotHeld {
        /// Which counter.
        place: &'static str,
    },
}
