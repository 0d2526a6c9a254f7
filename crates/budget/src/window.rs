//! Windows of budgets, and what is left in them.

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

/// The start of the window that contains `now_ms`, aligned to the Unix epoch. A period of 0 counts as 1.
pub fn window_start_ms(period_s: u64, now_ms: u64) -> u64 {
    let length = length_ms(period_s);
    now_ms.saturating_sub(now_ms.checked_rem(length).unwrap_or(0))
}

pub(crate) fn length_ms(period_s: u64) -> u64 {
    period_s.max(1).saturating_mul(1000)
}

impl Window {
    /// Limit less used less reserved; negative after a limit was lowered.
    pub(crate) fn tokens_left(&self, limit: u64) -> i128 {
        left(limit, self.used_tokens, self.reserved_tokens)
    }

    pub(crate) fn micros_left(&self, limit: u64) -> i128 {
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

pub(crate) fn clamp(left: i128) -> i64 {
    i64::try_from(left).unwrap_or(if left < 0 { i64::MIN } else { i64::MAX })
}
