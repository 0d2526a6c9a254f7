//! The guardrails: what is judged, with which margin, and for which share of the evidence.

use serde::{Deserialize, Serialize};

use crate::Limits;
use crate::evidence::Sign;

/// A way in which a version can be worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Guardrail {
    /// More runs fail.
    Errors,
    /// More first tokens come after the limit.
    TtftLimit,
    /// More runs have gaps over the limit.
    InterTokenLimit,
    /// First tokens come later than stable's.
    TtftShift,
    /// Tokens come slower than stable's.
    InterTokenShift,
    /// More outputs are empty, endless or looping.
    Output,
    /// Outputs are far longer or shorter than stable's.
    LengthShift,
    /// The model refuses more.
    Refusal,
}

impl Guardrail {
    /// The word in status and events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Errors => "errors",
            Self::TtftLimit => "ttftLimit",
            Self::InterTokenLimit => "interTokenLimit",
            Self::TtftShift => "ttftShift",
            Self::InterTokenShift => "interTokenShift",
            Self::Output => "output",
            Self::LengthShift => "lengthShift",
            Self::Refusal => "refusal",
        }
    }
}

/// How one sign is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The guardrail it belongs to.
    pub guardrail: Guardrail,
    /// What it counts.
    pub sign: Sign,
    /// How much worse is still the same.
    pub margin_ppm: u32,
    /// How much worse must be excluded before a promotion, if it is required for one.
    pub fine_margin_ppm: Option<u32>,
    /// The limit itself, where there is one: a share of the runs.
    pub limit_ppm: Option<u32>,
    /// Its part of the composite, in thousandths of the parts of all rules together.
    pub share: u32,
}

/// "The 95th percentile keeps the limit" is "at most 5 percent of the runs are over it".
const TAIL_PPM: u32 = 50_000;

/// The rules of a plan's limits. Which there are depends on the plan alone, so that no data can choose among them; a shift
/// without data is worth 1.
pub fn rules(limits: &Limits) -> Vec<Rule> {
    let limit = |guardrail, sign, limit_ppm: u32, share| Rule {
        guardrail,
        sign,
        margin_ppm: limit_ppm / 4,
        fine_margin_ppm: Some(limit_ppm),
        limit_ppm: Some(limit_ppm),
        share,
    };
    let shift = |guardrail, sign, share| Rule {
        guardrail,
        sign,
        margin_ppm: 10_000,
        fine_margin_ppm: None,
        limit_ppm: None,
        share,
    };
    let mut rules = vec![limit(
        Guardrail::Errors,
        Sign::Errors,
        limits.error_rate_ppm,
        300,
    )];
    if limits.ttft_p95_ms.is_some() {
        rules.push(limit(Guardrail::TtftLimit, Sign::TtftLimit, TAIL_PPM, 150));
    }
    if limits.inter_token_p95_ms.is_some() {
        let sign = Sign::InterTokenLimit;
        rules.push(limit(Guardrail::InterTokenLimit, sign, TAIL_PPM, 150));
    }
    rules.extend([
        shift(Guardrail::TtftShift, Sign::TtftMedian, 50),
        shift(Guardrail::TtftShift, Sign::TtftTail, 50),
        shift(Guardrail::InterTokenShift, Sign::InterTokenMedian, 25),
        shift(Guardrail::InterTokenShift, Sign::InterTokenTail, 25),
        shift(Guardrail::Output, Sign::Output, 100),
        shift(Guardrail::LengthShift, Sign::Length, 50),
        shift(Guardrail::Refusal, Sign::Refusal, 100),
    ]);
    rules
}
