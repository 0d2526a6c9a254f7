//! The pure core of budgets: reserve, then exactly one of settle or release.
//!
//! It must not see a clock, a file, a thread or a store: time is an argument, and whoever stores an account serialises its changes.
//! Read [`Limits`] and [`Ask`] first, then [`Account`].
#![deny(clippy::arithmetic_side_effects)]

mod account;
mod limits;
mod rebuild;
mod reservation;
mod stored;
mod window;

pub use account::Account;
pub use limits::{Ask, KeyLimits, Limits, Refusal, WindowLimit};
pub use rebuild::{AccountDifference, Billed, Rebuild};
pub use reservation::{Consumed, KeyHold, Reservation, SettleError};
pub use window::{Window, available, window_start_ms};

#[cfg(test)]
#[expect(clippy::arithmetic_side_effects, reason = "an overflow fails the test")]
mod tests;
