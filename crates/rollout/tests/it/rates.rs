//! How often the judgement is wrong, and how long it takes to be right: measured against what the design states.

use std::collections::BTreeMap;

use weir_rollout::evidence::{Sign, Stratum};
use weir_rollout::record::Kept;
use weir_rollout::statistics::{Judgement, judge};

use crate::random::Random;
use crate::setup::plan;
use crate::simulation::seeds;

/// Two arms under one coin, in one step.
struct Arms {
    random: Random,
    stratum: Stratum,
}

impl Arms {
    fn new(seed: u64, step: u32, weight: u32) -> Self {
        let stratum = Stratum {
            step,
            weight,
            generation: u64::from(step),
            assigned: [0, 0],
            signs: BTreeMap::new(),
        };
        Self {
            random: Random::new(seed),
            stratum,
        }
    }

    fn run(&mut self, canary_ppm: u32, stable_ppm: u32) {
        let is_canary = self.random.below(100) < u64::from(self.stratum.weight);
        let failed = self
            .random
            .ppm(if is_canary { canary_ppm } else { stable_ppm });
        let late = self.random.ppm(10_000);
        self.stratum.assigned[usize::from(!is_canary)] += 1;
        for (sign, is_bad) in [
            (Sign::Errors, failed),
            (Sign::FailedSoFar, failed),
            (Sign::TtftLimit, late),
        ] {
            let tally = self.stratum.signs.entry(sign).or_default();
            let arm = if is_canary {
                &mut tally.canary
            } else {
                &mut tally.stable
            };
            arm[0] += u64::from(is_bad);
            arm[1] += 1;
        }
    }

    fn judge(&self) -> Judgement {
        judge(
            std::slice::from_ref(&self.stratum),
            self.stratum.step,
            &plan(),
            Kept::default(),
        )
    }
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Runs until `is_done`, looked at every `look` runs.
fn runs_until(
    seed: u64,
    weight: u32,
    rates: [u32; 2],
    look: u64,
    is_done: impl Fn(&Judgement) -> bool,
) -> u64 {
    let mut arms = Arms::new(seed, 1, weight);
    for run in 1..200_000 {
        arms.run(rates[0], rates[1]);
        if run % look == 0 && is_done(&arms.judge()) {
            return run;
        }
    }
    200_000
}

/// Rows of the measured table: weight, failures of canary and stable in ppm, runs in both arms until the breach.
#[test]
fn regressions_are_caught_as_fast_as_stated() {
    let rows = [
        (5, 1_000_000, 1_000, 72),
        (25, 1_000_000, 1_000, 32),
        (5, 50_000, 1_000, 2_040),
        (25, 50_000, 1_000, 680),
        (50, 50_000, 1_000, 660),
        (25, 30_000, 10_000, 5_600),
        (50, 30_000, 10_000, 4_400),
    ];
    let mut wrong = Vec::new();
    for (weight, canary, stable, stated) in rows {
        let look = (stated / 40).max(1);
        let until = |seed| runs_until(seed, weight, [canary, stable], look, |j| j.breach.is_some());
        let measured = median((0..41).map(until).collect());
        if measured * 2 > stated * 3 || measured * 3 < stated {
            wrong.push(format!(
                "{weight} percent, {canary} against {stable} ppm: {measured} instead of {stated}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Canary runs until it is fine, at 50 percent and a limit of one percent.
#[test]
fn a_good_version_is_proven_fine_as_fast_as_stated() {
    for (ppm, stated) in [(1_000, 530), (5_000, 1_090)] {
        let until = |seed| runs_until(seed, 50, [ppm, ppm], 20, |j| j.is_fine);
        let measured = median((0..41).map(until).collect()) / 2;
        assert!(
            measured * 2 < stated * 3 && measured * 3 > stated * 2,
            "{ppm} ppm: {measured} instead of {stated}"
        );
    }
}

/// Identical versions under bursts of fifty percent failures and drift, looked at all the time. One-sided 99.9 percent bound
/// of a binomial, by the normal approximation and one more.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small positive number"
)]
fn allowed(trials: u64, ppm: u64) -> u64 {
    let mean = trials as f64 * ppm as f64 / 1e6;
    (mean + 3.1 * mean.sqrt() + 1.0).ceil() as u64
}

#[test]
fn identical_versions_are_seldom_rolled_back_whatever_happens_to_both() {
    let trials = seeds();
    let mut alarms = 0;
    for seed in 0..trials {
        let weight = [5, 25, 50][usize::try_from(seed % 3).unwrap()];
        let mut arms = Arms::new(7_000_000 + seed, 1, weight);
        let mut rate = 2_000;
        let alarmed = (0..60).any(|_| {
            rate = match arms.random.below(10) {
                0 => 500_000,
                1..=6 => 2_000 + u32::try_from(arms.random.below(20_000)).unwrap(),
                _ => rate,
            };
            for _ in 0..100 {
                arms.run(rate, rate);
            }
            arms.judge().breach.is_some()
        });
        alarms += u64::from(alarmed);
    }
    let bound = allowed(trials, 9_000);
    assert!(
        alarms <= bound,
        "{alarms} false alarms in {trials}, {bound} allowed"
    );
}

/// Worse by exactly the margin that *fine* must exclude: proven fine in at most five percent, at any look.
#[test]
fn a_version_worse_by_the_limit_is_seldom_called_fine() {
    let trials = seeds();
    let mut wrong = 0;
    for seed in 0..trials {
        let mut arms = Arms::new(9_000_000 + seed, 3, 50);
        let called_fine = (0..40).any(|_| {
            for _ in 0..100 {
                arms.run(11_000, 1_000);
            }
            arms.judge().is_fine
        });
        wrong += u64::from(called_fine);
    }
    let bound = allowed(trials, 50_000);
    assert!(wrong <= bound, "{wrong} of {trials}, {bound} allowed");
}
