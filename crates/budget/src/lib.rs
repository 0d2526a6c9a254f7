//! The pure core of budgets: reserve, then exactly one of settle, release or expire.
//!
//! It must not see a clock, a file, a thread or a store: time is an argument, and whoever stores an account serialises its changes.
//! Read [`Limits`] and [`Ask`] first.

mod limits;

pub use limits::{Ask, Limits, Refusal, WindowLimit};
