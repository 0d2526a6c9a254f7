//! An account told anew by what it was made of: the ledger and the live runs.

use std::collections::BTreeSet;

use crate::account::Account;
use crate::reservation::{KeyHold, Reservation};
use crate::window::{Window, length_ms, window_start_ms};

/// What one run was billed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Billed {
    /// When it was accepted: the windows of this moment bear it.
    pub accepted_at_ms: u64,
    /// The lengths of those windows, in seconds.
    pub periods_s: Vec<u64>,
    /// The key that bears it too, where the key has limits of its own.
    pub key: Option<KeyHold>,
    /// Prompt and output.
    pub tokens: u64,
    /// Their price.
    pub micros: u64,
}

/// A field in which two accounts differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountDifference {
    /// The key whose account it is in; `None` for the tenant's own.
    pub key: Option<String>,
    /// The window's length in seconds and start in milliseconds; `None` for what belongs to no window.
    pub window: Option<(u64, u64)>,
    /// `usedTokens`, `reservedTokens`, `usedMicros`, `reservedMicros`, `liveRuns`, or `heldTokens.POOL`.
    pub field: String,
    /// Here.
    pub here: u64,
    /// In the other.
    pub there: u64,
}

impl Account {
    /// Begins to tell this account anew. It will have the windows that this one has, and those that contain `now_ms`.
    pub fn rebuild(&self, now_ms: u64) -> Rebuild<'_> {
        Rebuild {
            old: self,
            now_ms,
            new: emptied(self),
        }
    }

    /// Where another account differs from this one.
    pub fn differences(&self, other: &Self) -> Vec<AccountDifference> {
        let mut all = Vec::new();
        self.compare(other, None, &mut all);
        let names: BTreeSet<&String> = self.keys.keys().chain(other.keys.keys()).collect();
        let nothing = Self::default();
        for name in names {
            let of = |account: &'_ Self| account.keys.get(name).cloned();
            let here = of(self).unwrap_or_default();
            let there = of(other).unwrap_or_else(|| nothing.clone());
            here.compare(&there, Some(name), &mut all);
        }
        all
    }

    fn compare(&self, other: &Self, key: Option<&str>, all: &mut Vec<AccountDifference>) {
        let mut compare = |window, field: String, here: u64, there: u64| {
            if here != there {
                all.push(AccountDifference {
                    key: key.map(str::to_owned),
                    window,
                    field,
                    here,
                    there,
                });
            }
        };
        let windows: BTreeSet<_> = self.windows.keys().chain(other.windows.keys()).collect();
        for window in windows {
            let at = |account: &Self| account.windows.get(window).copied().unwrap_or_default();
            let (here, there) = (at(self), at(other));
            for (field, here, there) in [
                ("usedTokens", here.used_tokens, there.used_tokens),
                (
                    "reservedTokens",
                    here.reserved_tokens,
                    there.reserved_tokens,
                ),
                ("usedMicros", here.used_micros, there.used_micros),
                (
                    "reservedMicros",
                    here.reserved_micros,
                    there.reserved_micros,
                ),
            ] {
                compare(Some(*window), field.to_owned(), here, there);
            }
        }
        compare(None, "liveRuns".to_owned(), self.live_runs, other.live_runs);
        let pools: BTreeSet<_> = self.pools.keys().chain(other.pools.keys()).collect();
        for pool in pools {
            let (here, there) = (self.held_in_pool(pool), other.held_in_pool(pool));
            compare(None, format!("heldTokens.{pool}"), here, there);
        }
    }
}

/// The same windows and minutes, with nothing used and nothing held.
fn emptied(account: &Account) -> Account {
    let empty = |key: &(u64, u64)| (*key, Window::default());
    Account {
        windows: account.windows.keys().map(empty).collect(),
        minute: account.minute,
        keys: account
            .keys
            .iter()
            .map(|(name, account)| (name.clone(), emptied(account)))
            .collect(),
        ..Account::default()
    }
}

/// An account in the making.
#[derive(Debug)]
pub struct Rebuild<'a> {
    old: &'a Account,
    now_ms: u64,
    new: Account,
}

impl Rebuild<'_> {
    /// What was billed to a run that has ended.
    pub fn billed(&mut self, billed: &Billed) {
        let nothing = Account::default();
        bill(
            &mut self.new,
            self.old,
            billed,
            &billed.periods_s,
            self.now_ms,
        );
        if let Some(hold) = &billed.key {
            let old = self.old.keys.get(&hold.name).unwrap_or(&nothing);
            let new = self.new.keys.entry(hold.name.clone()).or_default();
            bill(new, old, billed, &hold.periods_s, self.now_ms);
        }
    }

    /// What a live run holds.
    pub fn reserved(&mut self, reservation: &Reservation) {
        hold(&mut self.new, reservation, &reservation.periods_s);
        if let Some(key) = &reservation.key {
            let new = self.new.keys.entry(key.name.clone()).or_default();
            hold(new, reservation, &key.periods_s);
        }
    }

    /// The account as it should be.
    pub fn finish(self) -> Account {
        self.new
    }
}

fn bill(new: &mut Account, old: &Account, billed: &Billed, periods_s: &[u64], now_ms: u64) {
    for period_s in periods_s {
        let start_ms = window_start_ms(*period_s, billed.accepted_at_ms);
        let end_ms = start_ms.saturating_add(length_ms(*period_s));
        let key = (*period_s, start_ms);
        if old.windows.contains_key(&key) || (start_ms <= now_ms && now_ms < end_ms) {
            let window = new.windows.entry(key).or_default();
            window.used_tokens = window.used_tokens.saturating_add(billed.tokens);
            window.used_micros = window.used_micros.saturating_add(billed.micros);
        }
    }
}

/// A window is kept as long as a live run holds a part of it.
fn hold(new: &mut Account, reservation: &Reservation, periods_s: &[u64]) {
    for period_s in periods_s {
        let start_ms = window_start_ms(*period_s, reservation.accepted_at_ms);
        let window = new.windows.entry((*period_s, start_ms)).or_default();
        window.reserved_tokens = window.reserved_tokens.saturating_add(reservation.tokens);
        window.reserved_micros = window.reserved_micros.saturating_add(reservation.micros);
    }
    new.live_runs = new.live_runs.saturating_add(1);
    let held = new.pools.entry(reservation.pool.clone()).or_default();
    *held = held.saturating_add(reservation.tokens);
}
