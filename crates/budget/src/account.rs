//! A tenant's account: what is used and what is reserved, per window.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::limits::{Ask, Limits, Refusal, WindowLimit};

/// Length of a rate's window.
const MINUTE_MS: u64 = 60_000;

/// Settled and reserved amounts of one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Tokens settled.
    pub used_tokens: u64,
    /// Tokens of live runs.
    pub reserved_tokens: u64,
    /// Micro-units settled.
    pub used_micros: u64,
    /// Micro-units of live runs.
    pub reserved_micros: u64,
}

/// What one live run holds. It ends exactly once, in [`Account::settle`] or [`Account::release`], which is why it cannot be copied; a
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
}

/// The start of the window that contains `now_ms`, aligned to the Unix epoch. A period of 0 counts as 1.
pub fn window_start_ms(period_s: u64, now_ms: u64) -> u64 {
    let length = length_ms(period_s);
    now_ms.saturating_sub(now_ms.checked_rem(length).unwrap_or(0))
}

fn length_ms(period_s: u64) -> u64 {
    period_s.max(1).saturating_mul(1000)
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
        let tokens = ask.tokens();
        self.forget_ended_windows(now_ms);
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
        Ok(Reservation {
            tokens,
            micros: ask.micros,
            pool: ask.pool.clone(),
            accepted_at_ms: now_ms,
            periods_s: limits.windows.iter().map(|limit| limit.period_s).collect(),
        })
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
        for period_s in &reservation.periods_s {
            let window = next.window_mut(*period_s, reservation.accepted_at_ms);
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
        take("the live runs", &mut next.live_runs, 1)?;
        let held = next.pools.entry(reservation.pool.clone()).or_default();
        take("a pool", held, reservation.tokens)?;
        if *held == 0 {
            next.pools.remove(&reservation.pool);
        }
        *self = next;
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
    }
}

impl Window {
    /// Limit less used less reserved; negative after a limit was lowered.
    fn tokens_left(&self, limit: u64) -> i128 {
        left(limit, self.used_tokens, self.reserved_tokens)
    }

    fn micros_left(&self, limit: u64) -> i128 {
        left(limit, self.used_micros, self.reserved_micros)
    }
}

/// What is left of a limit: limit = available + reserved + used.
pub fn available(limit: u64, used: u64, reserved: u64) -> i64 {
    clamp(left(limit, used, reserved))
}

fn left(limit: u64, used: u64, reserved: u64) -> i128 {
    i128::from(limit)
        .saturating_sub(i128::from(used))
        .saturating_sub(i128::from(reserved))
}

fn clamp(left: i128) -> i64 {
    i64::try_from(left).unwrap_or(if left < 0 { i64::MIN } else { i64::MAX })
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
