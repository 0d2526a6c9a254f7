//! The pure core of budgets: reserve, then exactly one of settle or release.
//!
//! It must not see a clock, a file, a thread or a store: time is an argument, and whoever stores an account serialises its changes.
//! Read [`Limits`] and [`Ask`] first, then [`Account`].
#![deny(clippy::arithmetic_side_effects)]

mod account;
mod limits;
mod stored;

pub use account::{
    Account, Consumed, Reservation, SettleError, Window, available, window_start_ms,
};
pub use limits::{Ask, Limits, Refusal, WindowLimit};

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "an overflow fails the test")]
mod tests;
