//! How counts are judged: wealth of bets that nobody can win in expectation unless one version is worse.
//!
//! Everything is a function of integers and gives integers; logarithms come from `libm`, so the bits are the same everywhere.
//! The formulas are derived in Howard et al. (Annals of Statistics 49(2), 2021) and Waudby-Smith, Ramdas (arXiv 2010.09686).

mod judgement;
mod kernel;
mod one_sample;
mod paired;
mod rules;
mod sample;

pub use judgement::{Breach, GuardrailEvidence, Judgement, Verdict, judge};
pub use kernel::{fine, log_mean_exp, milli, routing_skew, threshold_milli, worse};
pub use one_sample::{after_promotion, exceeds};
pub use paired::{ShadowCounts, ShadowVerdict, judge_shadow, paired};
pub use rules::{Guardrail, Rule, rules};
pub use sample::minimum_sample_in_ms;

#[cfg(test)]
#[allow(clippy::too_many_lines, reason = "tables: one row is read at a time")]
mod tests;
