//! The compact form in which an account is stored: lists of numbers, no field names but four letters.

use serde::{Deserialize, Serialize};

use crate::account::Account;
use crate::window::Window;

#[derive(Serialize, Deserialize)]
pub(crate) struct Stored {
    /// Period, start, used tokens, reserved tokens, used micros, reserved micros.
    w: Vec<(u64, u64, u64, u64, u64, u64)>,
    /// Minute start, requests, tokens.
    m: (u64, u64, u64),
    /// Live runs.
    l: u64,
    /// Pool, held tokens.
    p: Vec<(String, u64)>,
    /// Key, its account.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    k: Vec<(String, Account)>,
}

impl From<Account> for Stored {
    fn from(account: Account) -> Self {
        let row = |((period, start), w): ((u64, u64), Window)| {
            (
                period,
                start,
                w.used_tokens,
                w.reserved_tokens,
                w.used_micros,
                w.reserved_micros,
            )
        };
        Self {
            w: account.windows.into_iter().map(row).collect(),
            m: account.minute,
            l: account.live_runs,
            p: account.pools.into_iter().collect(),
            k: account.keys.into_iter().collect(),
        }
    }
}

impl From<Stored> for Account {
    fn from(stored: Stored) -> Self {
        let row = |(period, start, used_tokens, reserved_tokens, used_micros, reserved_micros)| {
            let window = Window {
                used_tokens,
                reserved_tokens,
                used_micros,
                reserved_micros,
            };
            ((period, start), window)
        };
        Self {
            windows: stored.w.into_iter().map(row).collect(),
            minute: stored.m,
            live_runs: stored.l,
            pools: stored.p.into_iter().collect(),
            keys: stored.k.into_iter().collect(),
        }
    }
}
