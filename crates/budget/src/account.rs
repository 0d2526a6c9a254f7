//! A tenant's account: what is used and what is reserved, per window.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::limits::{Ask, Limits, Refusal, WindowLimit};
use crate::reservation::{Consumed, KeyHold, Reservation, SettleError};
use crate::window::{Window, clamp, length_ms, window_start_ms};

/// Length of a rate's window.
const MINUTE_MS: u64 = 60_000;

/// A tenant's account. Empty is a valid account: nothing used, nothing reserved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "crate::stored::Stored", into = "crate::stored::Stored")]
pub struct Account {
    /// By length in seconds and start in milliseconds.
    pub(crate) windows: BTreeMap<(u64, u64), Window>,
    /// Start of the last minute with an accepted run, runs and tokens accepted in it.
    pub(crate) minute: (u64, u64, u64),
    pub(crate) live_runs: u64,
    /// Tokens held by live runs, by pool.
    pub(crate) pools: BTreeMap<String, u64>,
    /// Accounts of keys with limits of their own; inside the tenant's, so that both levels change in one step.
    pub(crate) keys: BTreeMap<String, Account>,
}

impl Account {
    /// The window of this length that contains `now_ms`.
    pub fn window(&self, period_s: u64, now_ms: u64) -> Window {
        let key = (period_s, window_start_ms(period_s, now_ms));
        self.windows.get(&key).copied().unwrap_or_default()
    }

    /// All windows that are still kept: (length in seconds, start in milliseconds, amounts).
    pub fn windows(&self) -> impl Iterator<Item = (u64, u64, Window)> + '_ {
        self.windows
            .iter()
            .map(|((period_s, start_ms), window)| (*period_s, *start_ms, *window))
    }

    /// Reservations that have not ended.
    pub fn live_runs(&self) -> u64 {
        self.live_runs
    }

    /// Runs accepted in the minute that contains `now_ms`, and the tokens they reserved.
    pub fn minute(&self, now_ms: u64) -> (u64, u64) {
        let (_, requests, tokens) = self.minute_at(now_ms);
        (requests, tokens)
    }

    /// The account of a key with limits of its own; none while it has used nothing.
    pub fn key(&self, name: &str) -> Option<&Account> {
        self.keys.get(name)
    }

    /// Tokens that live runs hold in a pool.
    pub fn held_in_pool(&self, pool: &str) -> u64 {
        self.pools.get(pool).copied().unwrap_or(0)
    }

    /// Reserves what a run asks for under the limits of this moment.
    ///
    /// # Errors
    /// The first limit that does not suffice, in the order budget, rate, concurrency, KV share; nothing is changed then.
    pub fn reserve(
        &mut self,
        limits: &Limits,
        ask: &Ask,
        now_ms: u64,
    ) -> Result<Reservation, Refusal> {
        self.check(limits, ask, now_ms)?;
        self.forget_ended_windows(now_ms);
        self.hold(limits, ask, now_ms);
        let key = limits.key.as_deref().map(|key| {
            let account = self.keys.entry(key.name.clone()).or_default();
            account.hold(&key.limits, ask, now_ms);
            KeyHold {
                name: key.name.clone(),
                periods_s: periods(&key.limits),
            }
        });
        Ok(Reservation {
            tokens: ask.tokens(),
            micros: ask.micros,
            pool: ask.pool.clone(),
            accepted_at_ms: now_ms,
            periods_s: periods(limits),
            key,
        })
    }

    /// Counts what was checked, on one level.
    fn hold(&mut self, limits: &Limits, ask: &Ask, now_ms: u64) {
        let tokens = ask.tokens();
        for limit in &limits.windows {
            let window = self.window_mut(limit.period_s, now_ms);
            // Saturation is out of reach for a limited window, and harmless for one that only counts.
            window.reserved_tokens = window.reserved_tokens.saturating_add(tokens);
            window.reserved_micros = window.reserved_micros.saturating_add(ask.micros);
        }
        let (start, requests, minute_tokens) = self.minute_at(now_ms);
        self.minute = (
            start,
            requests.saturating_add(1),
            minute_tokens.saturating_add(tokens),
        );
        self.live_runs = self.live_runs.saturating_add(1);
        let held = self.pools.entry(ask.pool.clone()).or_default();
        *held = held.saturating_add(tokens);
    }

    /// Bills what a run consumed and gives the rest of its reservation back.
    ///
    /// # Errors
    /// When more was consumed than reserved, or the account does not hold the reservation; nothing is changed then.
    #[expect(clippy::needless_pass_by_value, reason = "a reservation ends once")]
    pub fn settle(
        &mut self,
        reservation: Reservation,
        consumed: Consumed,
    ) -> Result<(), SettleError> {
        at_most("tokens", consumed.tokens, reservation.tokens)?;
        at_most("micros", consumed.micros, reservation.micros)?;
        let mut next = self.clone();
        next.let_go(&reservation, &reservation.periods_s, consumed)?;
        if let Some(hold) = &reservation.key {
            let account = next.keys.entry(hold.name.clone()).or_default();
            account.let_go(&reservation, &hold.periods_s, consumed)?;
        }
        *self = next;
        Ok(())
    }

    /// Undoes a hold and bills, on one level. A failure leaves a part of it done.
    fn let_go(
        &mut self,
        reservation: &Reservation,
        periods_s: &[u64],
        consumed: Consumed,
    ) -> Result<(), SettleError> {
        for period_s in periods_s {
            let window = self.window_mut(*period_s, reservation.accepted_at_ms);
            take(
                "a window's tokens",
                &mut window.reserved_tokens,
                reservation.tokens,
            )?;
            take(
                "a window's micros",
                &mut window.reserved_micros,
                reservation.micros,
            )?;
            window.used_tokens = window.used_tokens.saturating_add(consumed.tokens);
            window.used_micros = window.used_micros.saturating_add(consumed.micros);
        }
        take("the live runs", &mut self.live_runs, 1)?;
        let held = self.pools.entry(reservation.pool.clone()).or_default();
        take("a pool", held, reservation.tokens)?;
        if *held == 0 {
            self.pools.remove(&reservation.pool);
        }
        Ok(())
    }

    /// Gives a reservation back whole: the run consumed nothing.
    ///
    /// # Errors
    /// When the account does not hold the reservation; nothing is changed then.
    pub fn release(&mut self, reservation: Reservation) -> Result<(), SettleError> {
        self.settle(reservation, Consumed::default())
    }

    /// The first limit that would refuse this ask now; changes nothing.
    ///
    /// # Errors
    /// That limit.
    pub fn check(&self, limits: &Limits, ask: &Ask, now_ms: u64) -> Result<(), Refusal> {
        self.check_level(limits, ask, now_ms)?;
        let Some(key) = limits.key.as_deref() else {
            return Ok(());
        };
        // A key that has used nothing yet has the account of nobody.
        let unused = Self::default();
        let account = self.keys.get(&key.name).unwrap_or(&unused);
        let checked = account.check_level(&key.limits, ask, now_ms);
        checked.map_err(|refusal| Refusal::Key {
            key: key.name.clone(),
            refusal: Box::new(refusal),
        })
    }

    fn check_level(&self, limits: &Limits, ask: &Ask, now_ms: u64) -> Result<(), Refusal> {
        for limit in &limits.windows {
            self.check_window(limits, limit, ask, now_ms)?;
        }
        let (start, requests, minute_tokens) = self.minute_at(now_ms);
        let retry_after_ms = start.saturating_add(MINUTE_MS).saturating_sub(now_ms);
        if let Some(limit) = limits.requests_per_minute
            && requests >= limit
        {
            return Err(Refusal::RequestRate {
                limit,
                retry_after_ms,
            });
        }
        let needed = ask.tokens();
        if let Some(limit) = limits.tokens_per_minute
            && minute_tokens.saturating_add(needed) > limit
        {
            return Err(Refusal::TokenRate {
                limit,
                available: limit.saturating_sub(minute_tokens),
                needed,
                retry_after_ms,
            });
        }
        if let Some(limit) = limits.concurrent_runs
            && self.live_runs >= limit
        {
            return Err(Refusal::Concurrency { limit });
        }
        let held = self.held_in_pool(&ask.pool);
        match limits.pool_kv_tokens {
            Some(limit) if held.saturating_add(needed) > limit => Err(Refusal::KvShare {
                limit,
                held,
                needed,
            }),
            _ => Ok(()),
        }
    }

    fn check_window(
        &self,
        limits: &Limits,
        limit: &WindowLimit,
        ask: &Ask,
        now_ms: u64,
    ) -> Result<(), Refusal> {
        let period_s = limit.period_s;
        let window = self.window(period_s, now_ms);
        let window_end_ms = window_start_ms(period_s, now_ms).saturating_add(length_ms(period_s));
        let largest_output_tokens = self.largest_output(limits, ask, now_ms);
        if let Some(tokens) = limit.tokens
            && window.tokens_left(tokens) < i128::from(ask.tokens())
        {
            return Err(Refusal::WindowTokens {
                period_s,
                available: clamp(window.tokens_left(tokens)),
                needed: ask.tokens(),
                largest_output_tokens,
                window_end_ms,
            });
        }
        if let Some(micros) = limit.micros
            && window.micros_left(micros) < i128::from(ask.micros)
        {
            return Err(Refusal::WindowMicros {
                period_s,
                available: clamp(window.micros_left(micros)),
                needed: ask.micros,
                largest_output_tokens,
                window_end_ms,
            });
        }
        Ok(())
    }

    /// The largest output ceiling, at most the one asked for, that fits every limit which depends on it; 0 when the prompt alone does not fit.
    pub fn largest_output(&self, limits: &Limits, ask: &Ask, now_ms: u64) -> u64 {
        let own = self.largest_output_of_level(limits, ask, now_ms);
        let Some(key) = limits.key.as_deref() else {
            return own;
        };
        let unused = Self::default();
        let account = self.keys.get(&key.name).unwrap_or(&unused);
        own.min(account.largest_output_of_level(&key.limits, ask, now_ms))
    }

    fn largest_output_of_level(&self, limits: &Limits, ask: &Ask, now_ms: u64) -> u64 {
        let prompt = i128::from(ask.prompt_tokens);
        let output_price = i128::from(ask.output_micros_per_token);
        let output_micros = output_price.saturating_mul(i128::from(ask.output_tokens));
        let prompt_micros = i128::from(ask.micros).saturating_sub(output_micros).max(0);
        let mut largest = i128::from(ask.output_tokens);
        for limit in &limits.windows {
            let window = self.window(limit.period_s, now_ms);
            if let Some(tokens) = limit.tokens {
                largest = largest.min(window.tokens_left(tokens).saturating_sub(prompt));
            }
            if let Some(micros) = limit.micros {
                let left = window.micros_left(micros).saturating_sub(prompt_micros);
                // A free output token fits whatever is left, unless the prompt does not.
                let affordable =
                    left.checked_div(output_price)
                        .unwrap_or(if left < 0 { 0 } else { largest });
                largest = largest.min(if left < 0 { 0 } else { affordable });
            }
        }
        let (_, _, minute_tokens) = self.minute_at(now_ms);
        let held = self.held_in_pool(&ask.pool);
        for (limit, taken) in [
            (limits.tokens_per_minute, minute_tokens),
            (limits.pool_kv_tokens, held),
        ] {
            if let Some(limit) = limit {
                let left = i128::from(limit).saturating_sub(i128::from(taken));
                largest = largest.min(left.saturating_sub(prompt));
            }
        }
        u64::try_from(largest.max(0)).unwrap_or(u64::MAX)
    }

    /// The minute that contains `now_ms`: start, requests and tokens accepted in it.
    fn minute_at(&self, now_ms: u64) -> (u64, u64, u64) {
        let start = window_start_ms(60, now_ms);
        match self.minute {
            (at, requests, tokens) if at == start => (start, requests, tokens),
            _ => (start, 0, 0),
        }
    }

    fn window_mut(&mut self, period_s: u64, at_ms: u64) -> &mut Window {
        let start = window_start_ms(period_s, at_ms);
        self.windows.entry((period_s, start)).or_default()
    }

    /// A window is kept as long as a live run holds a part of it, and for one more period, so that a clock that steps back finds what
    /// was used.
    fn forget_ended_windows(&mut self, now_ms: u64) {
        self.windows.retain(|(period_s, start_ms), window| {
            let length = length_ms(*period_s);
            let kept_until = start_ms.saturating_add(length).saturating_add(length);
            let held = window.reserved_tokens > 0 || window.reserved_micros > 0;
            held || kept_until > now_ms
        });
        // Nor is a key's account: what a new one would say is said without it. Of a revoked key nothing is left in the end.
        self.keys.retain(|_, key| {
            key.forget_ended_windows(now_ms);
            let minute_over = key.minute.0.saturating_add(2 * MINUTE_MS) <= now_ms;
            key.live_runs > 0 || !key.windows.is_empty() || !minute_over
        });
    }
}

fn periods(limits: &Limits) -> Vec<u64> {
    limits.windows.iter().map(|limit| limit.period_s).collect()
}

fn at_most(unit: &'static str, consumed: u64, reserved: u64) -> Result<(), SettleError> {
    if consumed <= reserved {
        Ok(())
    } else {
        Err(SettleError::OverReservation {
            unit,
            consumed,
            reserved,
        })
    }
}

fn take(place: &'static str, counter: &mut u64, amount: u64) -> Result<(), SettleError> {
    *counter = counter
        .checked_sub(amount)
        .ok_or(SettleError::NotHeld { place })?;
    Ok(())
}
