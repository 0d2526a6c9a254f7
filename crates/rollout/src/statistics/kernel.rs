//! The kernel: two arms under one coin.
//!
//! For a run let Z be 1/w if it is the canary's and bad, -1/(1-w) if it is stable's and bad, else 0. Because of the coin
//! E[Z] is the difference of the two rates, whatever the rates do over time. A stake on "worse by more than the margin" multiplies
//! wealth by 1 + λ(Z - margin); one on "not worse by the margin" by 1 + λ(margin - Z).

use crate::evidence::{Sign, Stratum, Tally};

/// Stakes on *worse*, each half the one before: large ones win early, small ones win against small differences.
const WORSE_BETS: usize = 8;
/// Stakes on *fine*.
const FINE_BETS: usize = 6;
/// The largest stake as a part of the one that could lose everything.
const BOLDNESS: f64 = 0.9;

/// The coin and the margin of a stratum.
#[derive(Clone, Copy)]
struct Odds {
    /// 1/w.
    canary: f64,
    /// 1/(1-w).
    stable: f64,
    margin: f64,
}

impl Odds {
    fn new(weight: u32, margin_ppm: u32) -> Self {
        assert!(
            (1..=99).contains(&weight),
            "a coin has two sides: weight {weight}"
        );
        Self {
            canary: 100.0 / f64::from(weight),
            stable: 100.0 / f64::from(100 - weight),
            margin: f64::from(margin_ppm) / 1e6,
        }
    }

    /// ln of the wealth of each stake on *worse*. One logarithm per outcome, however many runs had it.
    fn log_worse(self, tally: &Tally) -> [f64; WORSE_BETS] {
        let mut stake = BOLDNESS / (self.stable + self.margin);
        [(); WORSE_BETS].map(|()| {
            let wealth = count(tally.canary[0]) * libm::log1p(stake * (self.canary - self.margin))
                + count(tally.stable[0]) * libm::log1p(-stake * (self.stable + self.margin))
                + count(tally.rest()) * libm::log1p(-stake * self.margin);
            stake /= 2.0;
            wealth
        })
    }

    /// ln of the wealth of each stake on *fine*.
    fn log_fine(self, tally: &Tally) -> [f64; FINE_BETS] {
        let mut stake = BOLDNESS / (self.canary - self.margin);
        [(); FINE_BETS].map(|()| {
            let wealth = count(tally.canary[0]) * libm::log1p(-stake * (self.canary - self.margin))
                + count(tally.stable[0]) * libm::log1p(stake * (self.stable + self.margin))
                + count(tally.rest()) * libm::log1p(stake * self.margin);
            stake /= 2.0;
            wealth
        })
    }
}

fn count(runs: u64) -> f64 {
    debug_assert!(runs < 1 << 53, "counts are exact");
    runs as f64
}

/// ln of the evidence that a sign is more often bad under the canary, by more than the margin: the mean over all start steps
/// and stakes. What shows only under more load is found by the later starts. A start that has not come is worth 1.
pub fn worse(strata: &[Stratum], sign: Sign, step_count: u32, margin_ppm: u32) -> f64 {
    worse_of(strata, step_count, margin_ppm, |s| {
        (s.weight, s.tally(sign))
    })
}

fn worse_of(
    strata: &[Stratum],
    step_count: u32,
    margin_ppm: u32,
    arms: impl Fn(&Stratum) -> (u32, Tally),
) -> f64 {
    let logs: Vec<(u32, [f64; WORSE_BETS])> = strata
        .iter()
        .map(|stratum| {
            let (weight, tally) = arms(stratum);
            (
                stratum.step,
                Odds::new(weight, margin_ppm).log_worse(&tally),
            )
        })
        .collect();
    let mut wealths = Vec::new();
    for start in 1..=step_count.max(1) {
        for bet in 0..WORSE_BETS {
            let since = logs.iter().filter(|(step, _)| *step >= start);
            wealths.push(since.map(|(_, logs)| logs[bet]).sum());
        }
    }
    log_mean_exp(&wealths)
}

/// ln of the evidence that a sign is not more often bad under the canary by the margin: the mean over the stakes, from the
/// strata of one step.
pub fn fine<'a>(strata: impl IntoIterator<Item = &'a Stratum>, sign: Sign, margin_ppm: u32) -> f64 {
    let mut wealths = [0.0; FINE_BETS];
    for stratum in strata {
        let odds = Odds::new(stratum.weight, margin_ppm);
        let logs = odds.log_fine(&stratum.tally(sign));
        for (wealth, log) in wealths.iter_mut().zip(logs) {
            *wealth += log;
        }
    }
    log_mean_exp(&wealths)
}

/// How far a share may be off before it counts: a smaller skew moves E[Z] by at most a hundredth of the rate.
const SKEW_MARGIN_PPM: u32 = 10_000;

/// ln of the evidence that the measured share is not the weight, in either direction: the kernel with every run bad.
pub fn routing_skew(strata: &[Stratum], step_count: u32) -> f64 {
    let [upward, downward] = [false, true].map(|swapped| {
        worse_of(strata, step_count, SKEW_MARGIN_PPM, |stratum| {
            let [canary, stable] = stratum.assigned.map(|runs| [runs, runs]);
            if swapped {
                let tally = Tally {
                    canary: stable,
                    stable: canary,
                };
                (100 - stratum.weight, tally)
            } else {
                (stratum.weight, Tally { canary, stable })
            }
        })
    });
    log_mean_exp(&[upward, downward])
}

/// ln of the mean of the exponentials, with the maximum taken out so that nothing overflows.
pub fn log_mean_exp(logs: &[f64]) -> f64 {
    weighted_log_mean_exp(logs.iter().map(|&log| (1, log)))
}

/// ln of the weighted mean of the exponentials.
pub(super) fn weighted_log_mean_exp(terms: impl Iterator<Item = (u32, f64)> + Clone) -> f64 {
    let max = terms
        .clone()
        .map(|(_, log)| log)
        .fold(f64::NEG_INFINITY, f64::max);
    let weights: u32 = terms.clone().map(|(weight, _)| weight).sum();
    let sum: f64 = terms
        .map(|(weight, log)| f64::from(weight) * libm::exp(log - max))
        .sum();
    max + libm::log(sum / f64::from(weights))
}

/// Thousandths of a natural logarithm, rounded down: verdicts are comparisons of integers.
#[expect(
    clippy::cast_possible_truncation,
    reason = "saturates, and 2^63 thousandths is beyond any evidence"
)]
pub fn milli(log: f64) -> i64 {
    libm::floor(1_000.0 * log) as i64
}

/// The evidence at which a probability of error is kept: ln(1/p) in thousandths, rounded up.
#[expect(clippy::cast_possible_truncation, reason = "ln of a million is 14")]
pub fn threshold_milli(probability_ppm: u32) -> i64 {
    let inverse = 1e6 / f64::from(probability_ppm.max(1));
    libm::ceil(1_000.0 * libm::log(inverse)) as i64
}
