//! Real processes under test: a directory of manifests and models ([`Site`]), a running `weir up` ([`Weir`]) and a client that
//! remembers nothing ([`Client`]).
//!
//! It must not link any crate of Weir: what is tested is what people run.

#![allow(
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    reason = "a test talks to whoever reads its output, and runs on 64-bit machines"
)]

pub mod browser;
pub mod checker;
mod client;
pub mod cluster;
pub mod documents;
pub mod identity;
pub mod load;
mod model;
pub mod postgres;
pub mod preload;
pub mod processes;
pub mod prometheus;
pub mod proxy;
pub mod scrape;
mod site;
pub mod splitmix;
mod weir;

pub use client::{Client, Event, EventStream, Reply};
pub use model::{
    RandomModel, reference_lines, write_other_weights, write_random_adapter, write_random_model,
};
pub use rustix::process::Signal;
pub use site::{Site, Tenant};
pub use weir::{Weir, repository, send, weir_command};

/// Waits until `check` answers, or fails with `what` after `seconds`.
///
/// # Errors
/// The time is over.
pub fn wait_for<T>(
    what: &str,
    seconds: u64,
    mut check: impl FnMut() -> Option<T>,
) -> anyhow::Result<T> {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(seconds);
    loop {
        if let Some(found) = check() {
            return Ok(found);
        }
        anyhow::ensure!(
            std::time::Instant::now() < deadline,
            "waited {seconds} s in vain for {what}"
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// A seeded source of numbers (`SplitMix64`), so that a failing test can be repeated.
#[derive(Debug)]
pub struct Seeded(pub u64);

impl Seeded {
    /// From the environment variable `WEIR_SEED`, else from the clock; printed, so that a failure names it.
    pub fn announced(test: &str) -> Self {
        let seed = std::env::var("WEIR_SEED")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(|| {
                std::time::SystemTime::UNIX_EPOCH
                    .elapsed()
                    .map_or(1, |time| time.as_nanos() as u64)
            });
        eprintln!("{test}: WEIR_SEED={seed}");
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        splitmix::next(&mut self.0)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }
}
