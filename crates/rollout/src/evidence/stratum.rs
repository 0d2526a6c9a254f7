//! What is judged: two arms under one coin, as integers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::evidence::{Counts, Histogram, Judged};
use crate::routing::{Table, Thresholds};

/// What can be bad about a run, each judged on its own counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Sign {
    /// It failed.
    Errors,
    /// Its first token came after the limit.
    TtftLimit,
    /// Too many gaps between its tokens were over the limit.
    InterTokenLimit,
    /// Its first token came later than stable's median.
    TtftMedian,
    /// Its first token came later than stable's 90th percentile.
    TtftTail,
    /// Its tokens came slower than stable's median.
    InterTokenMedian,
    /// Its tokens came slower than stable's 90th percentile.
    InterTokenTail,
    /// Its output was empty, endless or looping.
    Output,
    /// Its output was far longer or shorter than stable's.
    Length,
    /// The model refused.
    Refusal,
    /// It failed, counted at once: the hard path. Not a share of the composite.
    FailedSoFar,
}

/// Counts of both arms: bad and judged runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tally {
    /// Canary: bad, judged.
    #[serde(rename = "c")]
    pub canary: [u64; 2],
    /// Stable: bad, judged.
    #[serde(rename = "s")]
    pub stable: [u64; 2],
}

impl Tally {
    /// Adds counts of the same stakes.
    pub fn add(&mut self, other: &Self) {
        for index in 0..2 {
            self.canary[index] += other.canary[index];
            self.stable[index] += other.stable[index];
        }
    }

    /// Judged runs that are not bad, of both arms.
    pub fn rest(&self) -> u64 {
        let good = |arm: [u64; 2]| arm[1].saturating_sub(arm[0]);
        good(self.canary) + good(self.stable)
    }

    fn of(canary: Judged, stable: Judged) -> Self {
        Self {
            canary: [canary.bad, canary.runs],
            stable: [stable.bad, stable.runs],
        }
    }
}

/// The evidence of one table: every run in it was assigned by the same coin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Stratum {
    /// The step, from 1.
    pub step: u32,
    /// The canary's share in percent, 1 to 99.
    pub weight: u32,
    /// The last table it was counted under.
    pub generation: u64,
    /// Runs that the coin gave to canary and stable.
    pub assigned: [u64; 2],
    /// What was bad.
    pub signs: BTreeMap<Sign, Tally>,
}

impl Stratum {
    /// The counts of a sign; none are zeros.
    pub fn tally(&self, sign: Sign) -> Tally {
        self.signs.get(&sign).copied().unwrap_or_default()
    }

    /// Whether no run was assigned.
    pub fn is_empty(&self) -> bool {
        self.assigned == [0, 0]
    }

    /// Adds evidence of the same step and weight.
    pub fn add(&mut self, other: &Self) {
        debug_assert!(self.step == other.step && self.weight == other.weight);
        self.generation = self.generation.max(other.generation);
        self.assigned[0] += other.assigned[0];
        self.assigned[1] += other.assigned[1];
        for (&sign, tally) in &other.signs {
            self.signs.entry(sign).or_default().add(tally);
        }
    }
}

/// The stratum of a table, from the counts of canary and stable. None where no coin decides: below 1 and above 99 percent.
pub fn stratum(table: &Table, target: &str, canary: &Counts, stable: &Counts) -> Option<Stratum> {
    let weight = table.weight(target);
    if !(1..=99).contains(&weight) || table.step == 0 {
        return None;
    }
    Some(Stratum {
        step: table.step,
        weight,
        generation: table.order.generation,
        assigned: [canary.assigned, stable.assigned],
        signs: signs(&table.thresholds, canary, stable),
    })
}

fn signs(thresholds: &Thresholds, canary: &Counts, stable: &Counts) -> BTreeMap<Sign, Tally> {
    let mut signs = BTreeMap::from([
        (Sign::Errors, Tally::of(canary.errors, stable.errors)),
        (Sign::Output, Tally::of(canary.output, stable.output)),
        (Sign::Refusal, Tally::of(canary.refusal, stable.refusal)),
        (
            Sign::FailedSoFar,
            Tally {
                canary: [canary.failed_so_far, canary.assigned],
                stable: [stable.failed_so_far, stable.assigned],
            },
        ),
    ]);
    if thresholds.ttft_limit_ms.is_some() {
        let tally = Tally::of(canary.ttft_limit, stable.ttft_limit);
        signs.insert(Sign::TtftLimit, tally);
    }
    if thresholds.inter_token_limit_ms.is_some() {
        let tally = Tally::of(canary.inter_token_limit, stable.inter_token_limit);
        signs.insert(Sign::InterTokenLimit, tally);
    }
    if let Some([median, tail]) = thresholds.ttft_edges {
        signs.insert(Sign::TtftMedian, shift(&canary.ttft, &stable.ttft, median));
        signs.insert(Sign::TtftTail, shift(&canary.ttft, &stable.ttft, tail));
    }
    if let Some([median, tail]) = thresholds.inter_token_edges {
        let (canary, stable) = (&canary.inter_token, &stable.inter_token);
        signs.insert(Sign::InterTokenMedian, shift(canary, stable, median));
        signs.insert(Sign::InterTokenTail, shift(canary, stable, tail));
    }
    if let Some(edges) = thresholds.length_edges {
        let tally = Tally {
            canary: odd_lengths(&canary.length, edges),
            stable: odd_lengths(&stable.length, edges),
        };
        signs.insert(Sign::Length, tally);
    }
    signs
}

/// The margin is two whole buckets, a factor of 1.41 in time: the canary is bad beyond it, stable beyond the edge itself.
fn shift(canary: &Histogram, stable: &Histogram, edge: u8) -> Tally {
    Tally {
        canary: [canary.above(edge.saturating_add(2)), canary.total()],
        stable: [stable.above(edge), stable.total()],
    }
}

/// Beyond twice the 90th percentile or below half the 10th: one bucket is a factor of two. One rule for both arms.
fn odd_lengths(lengths: &Histogram, [low, high]: [u8; 2]) -> [u64; 2] {
    let odd = lengths.above(high.saturating_add(1)) + lengths.below(low.saturating_sub(1));
    [odd, lengths.total()]
}
