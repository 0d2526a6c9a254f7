//! Golden rows, exhaustive coins, monotony, and verdicts from counts.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::evidence::{Judged, Sign, Stratum, Tally};
use crate::record::Kept;
use crate::{Limits, OnBreach, Plan, Policy, Promote, Reserve, ShadowMode, ShadowPlan, StepPlan};

fn stratum(step: u32, weight: u32, sign: Sign, canary: [u64; 2], stable: [u64; 2]) -> Stratum {
    Stratum {
        step,
        weight,
        generation: u64::from(step),
        assigned: [canary[1], stable[1]],
        signs: BTreeMap::from([(sign, Tally { canary, stable })]),
    }
}

fn plan() -> Plan {
    let step = |weight_percent| StepPlan {
        weight_percent,
        bake_ms: 60_000,
        max_wait_ms: 1_800_000,
    };
    Plan {
        shadow: None,
        steps: [5, 25, 50].map(step).into(),
        limits: Limits {
            error_rate_ppm: 10_000,
            ttft_p95_ms: Some(500),
            inter_token_p95_ms: None,
            min_requests: 50,
            false_alarm_ppm: 10_000,
            promote_risk_ppm: 50_000,
        },
        on_no_data: Policy::Hold,
        on_inconclusive: Policy::Hold,
        on_breach: OnBreach::Rollback,
        promote: Promote::Fine,
        final_bake_ms: 60_000,
        reserve: Reserve::FullThenOne,
        downtime: false,
        progress_deadline_ms: 600_000,
    }
}

/// Rows of a script that knows the formulas only, in 60 decimal digits.
#[test]
fn golden_rows_of_an_independent_script() {
    let rows = include_str!("../../tests/golden/kernel.txt");
    let mut wrong = Vec::new();
    for row in rows.lines() {
        let fields: Vec<&str> = row.split(' ').collect();
        let [kind, steps, margin, strata @ .., want] = fields.as_slice() else {
            panic!("{row}");
        };
        let strata: Vec<Stratum> = strata.iter().map(|text| parse(text)).collect();
        let margin = margin.parse().unwrap();
        let log = match *kind {
            "worse" => worse(&strata, Sign::Errors, steps.parse().unwrap(), margin),
            _ => fine(&strata, Sign::Errors, margin),
        };
        if milli(log) != want.parse::<i64>().unwrap() {
            wrong.push(format!("{row}: {}", milli(log)));
        }
    }
    assert_eq!(rows.lines().count(), 120);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn parse(text: &str) -> Stratum {
    let n: Vec<u64> = text.split(':').map(|n| n.parse().unwrap()).collect();
    let [step, weight] = [n[0], n[1]].map(|n| u32::try_from(n).unwrap());
    stratum(step, weight, Sign::Errors, [n[2], n[3]], [n[4], n[5]])
}

/// A run of two identical versions, in a step; its outcome does not depend on the coin.
type Outcome = (u32, bool);

fn tallied(runs: &[Outcome], coins: u32, weights: &[u32]) -> Vec<Stratum> {
    let mut strata: Vec<Stratum> = weights
        .iter()
        .zip(1..)
        .map(|(&weight, step)| stratum(step, weight, Sign::Errors, [0, 0], [0, 0]))
        .collect();
    for (index, &(step, is_bad)) in runs.iter().enumerate() {
        let stratum = &mut strata[step as usize - 1];
        let arm = usize::from(coins >> index & 1 == 0);
        let tally = stratum.signs.get_mut(&Sign::Errors).unwrap();
        let counts = if arm == 0 {
            &mut tally.canary
        } else {
            &mut tally.stable
        };
        counts[0] += u64::from(is_bad);
        counts[1] += 1;
        stratum.assigned[arm] += 1;
    }
    strata
}

fn probability(runs: &[Outcome], coins: u32, weights: &[u32]) -> f64 {
    let side = |(index, &(step, _)): (usize, &Outcome)| {
        let share = f64::from(weights[step as usize - 1]) / 100.0;
        if coins >> index & 1 == 1 {
            share
        } else {
            1.0 - share
        }
    };
    runs.iter().enumerate().map(side).product()
}

/// Mean wealth over every coin sequence; with `stop`, each sequence is stopped when it first crosses.
fn mean_wealth(
    runs: &[Outcome],
    weights: &[u32],
    stop: Option<f64>,
    log: &dyn Fn(&[Stratum]) -> f64,
) -> f64 {
    let mut mean = 0.0;
    for coins in 0..1_u32 << runs.len() {
        let prefix = |len: usize| log(&tallied(&runs[..len], coins, weights));
        let crossed =
            stop.and_then(|level| (1..=runs.len()).map(prefix).find(|wealth| *wealth >= level));
        let wealth = crossed.unwrap_or_else(|| prefix(runs.len()));
        mean += probability(runs, coins, weights) * wealth.exp();
    }
    mean
}

/// Which runs are bad matters only by their number when all are in one step.
#[test]
fn identical_versions_win_nothing_over_all_coins_of_twelve_runs() {
    for weight in [1, 5, 25, 50, 99] {
        for margin in [0, 2_500, 50_000] {
            for bad in [0, 1, 4, 12] {
                let runs: Vec<Outcome> = (0..12).map(|run| (1, run < bad)).collect();
                let weights = [weight];
                let worse = mean_wealth(&runs, &weights, None, &|s| {
                    worse(s, Sign::Errors, 3, margin)
                });
                let fine = mean_wealth(&runs, &weights, None, &|s| fine(s, Sign::Errors, 0));
                let name = format!("w {weight}, margin {margin}, bad {bad}: {worse} {fine}");
                assert!(worse <= 1.0 + 1e-9, "{name}");
                assert!((fine - 1.0).abs() < 1e-9, "{name}");
                assert!(margin > 0 || (worse - 1.0).abs() < 1e-9, "{name}");
            }
        }
    }
}

#[test]
fn identical_versions_win_nothing_when_stopped_at_the_first_crossing() {
    for outcomes in [0b1111_1111_u32, 0b1010_0101, 0b0000_1111, 0b1100_0000] {
        // The first three runs in step 1, the rest in step 2.
        let run = |run: u32| (1 + u32::from(run > 2), outcomes >> run & 1 == 1);
        let runs: Vec<Outcome> = (0..8).map(run).collect();
        for level in [0.1, 0.7, 1.5] {
            for margin in [0, 2_500] {
                let mean = mean_wealth(&runs, &[5, 50], Some(level), &|s| {
                    worse(s, Sign::Errors, 2, margin)
                });
                assert!(mean <= 1.0 + 1e-9, "{outcomes:b} {level} {margin}: {mean}");
            }
        }
    }
}

/// A version that fails exactly as much more often as the margin allows cannot be proven fine.
#[test]
fn a_version_worse_by_the_margin_wins_nothing_on_fine() {
    let margin = 0.05;
    for weight in [5_u32, 25, 50] {
        let share = f64::from(weight) / 100.0;
        // Ten runs, stable's failure rate 0: canary runs fail with probability 5 percent, all cases enumerated.
        let mut mean = 0.0;
        for canary in 0..=10_u64 {
            for bad in 0..=canary {
                let ways = choose(10, canary) * choose(canary, bad);
                let chance = share.powf(canary as f64) * (1.0 - share).powf((10 - canary) as f64);
                let failing =
                    f64::powf(margin, bad as f64) * f64::powf(1.0 - margin, (canary - bad) as f64);
                let counts = stratum(1, weight, Sign::Errors, [bad, canary], [0, 10 - canary]);
                mean += ways * chance * failing * fine(&[counts], Sign::Errors, 50_000).exp();
            }
        }
        assert!((mean - 1.0).abs() < 1e-9, "{weight}: {mean}");
    }
}

fn choose(n: u64, k: u64) -> f64 {
    (0..k).map(|i| (n - i) as f64 / (i + 1) as f64).product()
}

/// The first column of the table of measured delays: every answer fails.
#[test]
fn a_canary_that_fails_everything_is_caught_by_its_fourth_eighth_or_sixteenth_victim() {
    for (weight, want) in [(5, 4), (25, 8), (50, 16)] {
        let caught = (1..100_u64).find(|&bad| {
            let good = bad * (100 - u64::from(weight)) / u64::from(weight);
            let counts = stratum(1, weight, Sign::FailedSoFar, [bad, bad], [0, good]);
            judge(&[counts], 1, &plan(), Kept::default())
                .breach
                .is_some()
        });
        assert_eq!(caught, Some(want), "{weight} percent");
    }
}

struct Case {
    name: &'static str,
    strata: Vec<Stratum>,
    /// Breached guardrail, suspect, fine, keeps limits, interferes.
    want: (Option<Guardrail>, bool, bool, bool, bool),
}

#[test]
fn verdicts_from_counts() {
    let errors = |step, weight, canary, stable| stratum(step, weight, Sign::Errors, canary, stable);
    let with_ttft = |mut stratum: Stratum, canary, stable| {
        stratum
            .signs
            .insert(Sign::TtftLimit, Tally { canary, stable });
        stratum
    };
    let cases = [
        Case {
            name: "no data is not fine",
            strata: vec![],
            want: (None, false, false, true, false),
        },
        Case {
            name: "zero errors are data",
            strata: vec![with_ttft(
                errors(3, 50, [0, 900], [0, 900]),
                [20, 900],
                [20, 900],
            )],
            want: (None, false, true, true, false),
        },
        Case {
            name: "fine on one guardrail only is not fine",
            strata: vec![errors(3, 50, [0, 900], [0, 900])],
            want: (None, false, false, true, false),
        },
        Case {
            name: "fine counts the present step only",
            strata: vec![with_ttft(
                errors(2, 50, [0, 900], [0, 900]),
                [20, 900],
                [20, 900],
            )],
            want: (None, false, false, true, false),
        },
        Case {
            name: "ten times the errors",
            strata: vec![errors(3, 50, [40, 800], [4, 800])],
            want: (Some(Guardrail::Errors), true, false, false, false),
        },
        Case {
            name: "both are bad: no difference, but stable kept the limit before",
            strata: vec![errors(3, 50, [60, 1_200], [60, 1_200])],
            want: (None, false, false, true, true),
        },
        Case {
            name: "over the limit and over stable, not proven",
            strata: vec![errors(3, 50, [4, 100], [1, 100])],
            want: (None, false, false, false, false),
        },
        Case {
            name: "first tokens over the limit",
            strata: vec![with_ttft(
                errors(3, 50, [0, 900], [0, 900]),
                [200, 900],
                [45, 900],
            )],
            want: (Some(Guardrail::TtftLimit), true, false, false, false),
        },
    ];
    let kept = Kept {
        errors: true,
        ..Kept::default()
    };
    for Case { name, strata, want } in cases {
        let got = judge(&strata, 3, &plan(), kept);
        let breach = got.breach.map(|b| b.guardrail);
        let got = (
            breach,
            got.is_suspect,
            got.is_fine,
            got.keeps_limits,
            got.interferes,
        );
        assert_eq!(got, want, "{name}");
    }
}

/// ln 125 is 4.8283: the comparison has 0.8 of the one percent that the plan allows.
#[test]
fn a_breach_is_where_the_stated_probability_of_error_is() {
    let judged = |bad: u64| {
        let counts = stratum(2, 25, Sign::Errors, [bad, 300], [1, 900]);
        judge(&[counts], 2, &plan(), Kept::default())
    };
    assert_eq!(threshold_milli(8_000), 4_829);
    let first = (1..100).find(|&bad| judged(bad).breach.is_some()).unwrap();
    assert!(judged(first).log_evidence_milli >= 4_829);
    assert!((1_610..4_829).contains(&judged(first - 1).log_evidence_milli));
    assert!(judged(first - 1).is_suspect);
}

/// Simpson: in each step the canary is as stable, but it had more of its runs in the bad hour.
#[test]
fn rates_are_not_pooled_over_steps_of_different_weight() {
    let strata = [
        stratum(1, 5, Sign::Errors, [0, 50], [0, 950]),
        stratum(2, 50, Sign::Errors, [50, 1_000], [50, 1_000]),
    ];
    let got = judge(&strata, 2, &plan(), Kept::default());
    assert_eq!(
        (got.breach, got.is_suspect, got.keeps_limits),
        (None, false, true)
    );
}

#[test]
fn a_share_that_is_not_the_weight_is_noticed_in_both_directions() {
    let cases = [
        ("exact", [250, 750], false),
        ("within chance", [275, 725], false),
        ("stuck at the old table", [20, 980], true),
        ("twice the weight", [500, 500], true),
        ("no canary run at all", [0, 1_000], true),
    ];
    for (name, assigned, want) in cases {
        let stratum = Stratum {
            assigned,
            ..stratum(2, 25, Sign::Output, [0, 0], [0, 0])
        };
        let got = judge(&[stratum], 2, &plan(), Kept::default());
        assert_eq!(got.is_skewed, want, "{name}");
    }
}

#[test]
fn at_full_weight_only_what_is_gross_counts() {
    let blocks = |good: u64, bad_level: usize, bad: u64| {
        let mut blocks = [0; 17];
        blocks[0] = good;
        blocks[bad_level] = bad;
        blocks
    };
    let cases = [
        ("nothing seen", blocks(0, 16, 0), false),
        ("healthy", blocks(1_000, 16, 0), false),
        ("one block failed", blocks(50, 16, 1), false),
        ("everything fails", blocks(0, 16, 5), true),
        ("a quarter fails", blocks(0, 4, 30), true),
    ];
    for (name, blocks, want) in cases {
        assert_eq!(after_promotion(&blocks, 10_000), want, "{name}");
    }
    assert!(
        !after_promotion(&blocks(0, 16, 50), 500_000),
        "twice the limit is everything"
    );
}

#[test]
fn verdicts_of_the_shadow() {
    let shadow = ShadowPlan {
        percent: 10,
        min_requests: 50,
        mode: ShadowMode::Generate,
        max_tokens_per_second: 2_000,
        agreement_ppm: Some(900_000),
        score_milli_nats: Some(50),
    };
    let enough = ShadowCounts {
        pairs: 60,
        disagreement: Judged { runs: 60, bad: 3 },
        scored: 60,
        score_sum_milli_nats: 600,
        ..ShadowCounts::default()
    };
    let differs = ShadowCounts {
        disagreement: Judged { runs: 60, bad: 40 },
        ..enough.clone()
    };
    let cases = [
        ("nothing", ShadowCounts::default(), "few"),
        ("enough and alike", enough.clone(), "passed"),
        ("greedy answers differ", differs.clone(), "agreement"),
        (
            "they differ, but the references are right",
            ShadowCounts {
                reference_pairs: 63,
                references: [1, 4],
                ..differs.clone()
            },
            "passed",
        ),
        (
            "stable does not agree with itself either",
            ShadowCounts {
                self_disagreement: Judged { runs: 60, bad: 38 },
                ..differs
            },
            "passed",
        ),
        (
            "scores differ",
            ShadowCounts {
                score_sum_milli_nats: 60 * 51,
                ..enough.clone()
            },
            "score",
        ),
        (
            "scores differ, and right references do not lift that",
            ShadowCounts {
                score_sum_milli_nats: 60 * 51,
                reference_pairs: 63,
                ..enough.clone()
            },
            "score",
        ),
        (
            "a claim that too few answers were scored for",
            ShadowCounts {
                scored: 49,
                reference_pairs: 63,
                ..enough.clone()
            },
            "few",
        ),
        (
            "refuses where stable answers, long before the sample is full",
            ShadowCounts {
                pairs: 30,
                refusal: [25, 0],
                ..ShadowCounts::default()
            },
            "refusal",
        ),
        (
            "wrong where stable is right",
            ShadowCounts {
                references: [25, 1],
                ..enough.clone()
            },
            "references",
        ),
        (
            "garbage",
            ShadowCounts {
                implausible: Judged { runs: 20, bad: 18 },
                ..enough
            },
            "reverseScore",
        ),
    ];
    for (name, counts, want) in cases {
        let got = match judge_shadow(&counts, &shadow, &plan()) {
            ShadowVerdict::Harm(proof) => proof.guardrail,
            ShadowVerdict::TooFew => "few".to_owned(),
            ShadowVerdict::Differs(what) => what.to_owned(),
            ShadowVerdict::Passed => "passed".to_owned(),
        };
        assert_eq!(got, want, "{name}");
    }
}

#[test]
fn paired_bets_are_fair_when_neither_direction_is_favoured() {
    for pairs in 0..=14_u64 {
        let mean: f64 = (0..=pairs)
            .map(|x| choose(pairs, x) * 0.5_f64.powf(pairs as f64) * paired([x, pairs - x]).exp())
            .sum();
        assert!((mean - 1.0).abs() < 1e-9, "{pairs}: {mean}");
    }
}

#[test]
fn the_wait_for_a_sample_follows_the_rate() {
    let cases = [
        ((50, 50, 10), Some(0)),
        ((0, 50, 10_000), None),
        ((10, 50, 1_000), Some(4_000)),
        ((3, 50, 1_000), Some(15_667)),
    ];
    for ((settled, needed, age), want) in cases {
        assert_eq!(minimum_sample_in_ms(settled, needed, age), want);
    }
}

fn tallies() -> impl Strategy<Value = (u32, u64, u64, u64, u64)> {
    (1_u32..100, 0_u64..50, 0_u64..500, 0_u64..50, 0_u64..5_000)
}

proptest! {
    #[test]
    fn evidence_rises_with_canary_failures_and_falls_with_stables(
        (weight, a, good_a, b, good_b) in tallies()
    ) {
        let log = |a, b| {
            let counts = stratum(1, weight, Sign::Errors, [a, a + good_a], [b, b + good_b]);
            worse(&[counts], Sign::Errors, 3, 2_500)
        };
        prop_assert!(log(a + 1, b) > log(a, b));
        prop_assert!(log(a, b + 1) < log(a, b));
    }

    #[test]
    fn evidence_does_not_depend_on_how_counts_are_split(
        (weight, a, good_a, b, good_b) in tallies(), part in 0_u64..50
    ) {
        let whole = stratum(1, weight, Sign::Errors, [a, a + good_a], [b, b + good_b]);
        let a1 = part.min(a);
        let mut split = stratum(1, weight, Sign::Errors, [a1, a1], [0, good_b]);
        split.add(&stratum(1, weight, Sign::Errors, [a - a1, a - a1 + good_a], [b, b]));
        let log = |s: Stratum| worse(&[s], Sign::Errors, 3, 2_500).to_bits();
        prop_assert_eq!(log(whole), log(split));
    }
}
