//! The judgement of an attempt: worse, fine, or unknown.

use crate::Plan;
use crate::evidence::{Sign, Stratum};
use crate::record::{Kept, Proof};
use crate::statistics::kernel::weighted_log_mean_exp;
use crate::statistics::{
    Guardrail, Rule, exceeds, fine, milli, routing_skew, rules, threshold_milli, worse,
};

/// What the evidence of a guardrail amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Worse than stable.
    Worse,
    /// No worse than stable by the limit.
    Fine,
    /// Neither.
    Unknown,
}

/// What one guardrail says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardrailEvidence {
    /// Which.
    pub guardrail: Guardrail,
    /// What it amounts to.
    pub verdict: Verdict,
    /// Bad and judged runs of the canary, over the attempt.
    pub canary: [u64; 2],
    /// Bad and judged runs of stable.
    pub stable: [u64; 2],
    /// ln of the evidence that it is worse, in thousandths.
    pub log_evidence_milli: i64,
}

/// A guardrail that was breached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Breach {
    /// The guardrail with the most evidence.
    pub guardrail: Guardrail,
    /// The numbers.
    pub proof: Proof,
}

/// The judgement of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent answers to independent questions"
)]
pub struct Judgement {
    /// Where `log_evidence_milli` is a breach.
    pub threshold_milli: i64,
    /// Whether it is worse.
    pub breach: Option<Breach>,
    /// ln of the composite evidence, in thousandths.
    pub log_evidence_milli: i64,
    /// Whether there is evidence against it, not enough for a breach.
    pub is_suspect: bool,
    /// Whether every required guardrail is fine at the present step.
    pub is_fine: bool,
    /// Whether every limit is kept, as far as stable keeps it.
    pub keeps_limits: bool,
    /// Whether the measured share is not the weight.
    pub is_skewed: bool,
    /// Whether stable breaks a limit it kept before the attempt.
    pub interferes: bool,
    /// Settled canary runs of the present step.
    pub settled: u64,
    /// What each guardrail says.
    pub guardrails: Vec<GuardrailEvidence>,
}

/// Of the false-alarm bound, in thousandths, what the comparison may use; the hard path and the shadow have a tenth each.
const COMPARISON_PERMILLE: u32 = 800;
const HARD_PERMILLE: u32 = 100;
/// The hard path acts before runs settle, on failures that are many and plain.
const HARD_LEAST_BAD: u64 = 4;
const HARD_LEAST_PERCENT: u64 = 20;
/// Evidence of 5 to 1 against a version stops it from going on.
const SUSPECT_PPM: u32 = 200_000;
const SKEW_PPM: u32 = 100;
/// A hold costs a wait, not a user.
const INTERFERENCE_PPM: u32 = 1_000;

/// Judges an attempt. `strata` are all of its evidence, `step` is the one that runs.
pub fn judge(strata: &[Stratum], step: u32, plan: &Plan, kept: Kept) -> Judgement {
    let rules = rules(&plan.limits);
    let steps = plan.step_count();
    let evidence: Vec<f64> = rules
        .iter()
        .map(|rule| worse(strata, rule.sign, steps, rule.margin_ppm))
        .collect();
    let terms = rules
        .iter()
        .zip(&evidence)
        .map(|(rule, &log)| (rule.share, log));
    let composite = milli(weighted_log_mean_exp(terms));
    let alpha = permille(plan.limits.false_alarm_ppm, COMPARISON_PERMILLE);
    let threshold = threshold_milli(alpha);
    let breach = hard_breach(strata, step, plan).or_else(|| {
        let is_breach = composite >= threshold;
        is_breach.then(|| culprit(strata, &rules, &evidence))
    });
    let of_step = || strata.iter().filter(|s| s.step == step);
    let beta = threshold_milli(plan.limits.promote_risk_ppm);
    let is_rule_fine = |rule: &Rule| {
        let margin = rule.fine_margin_ppm?;
        Some(milli(fine(of_step(), rule.sign, margin)) >= beta)
    };
    let settled = of_step().map(|s| s.tally(Sign::Errors).canary[1]).sum();
    Judgement {
        threshold_milli: threshold,
        log_evidence_milli: composite,
        is_suspect: composite >= threshold_milli(SUSPECT_PPM),
        is_fine: rules.iter().filter_map(is_rule_fine).all(|fine| fine),
        keeps_limits: rules.iter().all(|rule| keeps_limit(strata, rule)),
        is_skewed: milli(routing_skew(strata, steps)) >= threshold_milli(SKEW_PPM),
        interferes: rules.iter().any(|rule| interferes(strata, rule, kept)),
        settled,
        guardrails: summary(strata, &rules, &evidence, breach.as_ref(), is_rule_fine),
        breach,
    }
}

fn permille(ppm: u32, permille: u32) -> u32 {
    let part = u64::from(ppm) * u64::from(permille) / 1_000;
    u32::try_from(part)
        .expect("a part is below the whole")
        .max(1)
}

/// Bad and judged runs of both arms over all strata: for people, never for a verdict.
fn sums(strata: &[Stratum], sign: Sign) -> ([u64; 2], [u64; 2]) {
    let add = |sum: [u64; 2], arm: [u64; 2]| [sum[0] + arm[0], sum[1] + arm[1]];
    strata
        .iter()
        .map(|s| s.tally(sign))
        .fold(([0, 0], [0, 0]), |(canary, stable), tally| {
            (add(canary, tally.canary), add(stable, tally.stable))
        })
}

fn hard_breach(strata: &[Stratum], step: u32, plan: &Plan) -> Option<Breach> {
    let of_step: Vec<Stratum> = strata.iter().filter(|s| s.step == step).cloned().collect();
    let ([bad, runs], _) = sums(&of_step, Sign::FailedSoFar);
    if bad < HARD_LEAST_BAD || bad * 100 < runs * HARD_LEAST_PERCENT {
        return None;
    }
    let margin = plan.limits.error_rate_ppm / 4;
    let evidence = milli(worse(strata, Sign::FailedSoFar, plan.step_count(), margin));
    let alpha = permille(plan.limits.false_alarm_ppm, HARD_PERMILLE);
    let (canary, stable) = sums(strata, Sign::FailedSoFar);
    (evidence >= threshold_milli(alpha)).then(|| Breach {
        guardrail: Guardrail::Errors,
        proof: Proof {
            guardrail: Guardrail::Errors.as_str().to_owned(),
            canary,
            stable,
            log_evidence_milli: evidence,
        },
    })
}

/// The rule with the largest part of the composite.
fn culprit(strata: &[Stratum], rules: &[Rule], evidence: &[f64]) -> Breach {
    let part = |(rule, log): &(&Rule, &f64)| **log + libm::log(f64::from(rule.share));
    let (rule, &log) = rules
        .iter()
        .zip(evidence)
        .max_by(|a, b| part(a).total_cmp(&part(b)))
        .expect("there is always the rule about errors");
    let (canary, stable) = sums(strata, rule.sign);
    Breach {
        guardrail: rule.guardrail,
        proof: Proof {
            guardrail: rule.guardrail.as_str().to_owned(),
            canary,
            stable,
            log_evidence_milli: milli(log),
        },
    }
}

/// Whether the canary keeps a limit, or at least does no worse than stable and the margin. Stable's rate is weighted by the
/// canary's runs of each stratum: rates pooled over steps of different weight would compare different hours.
fn keeps_limit(strata: &[Stratum], rule: &Rule) -> bool {
    let Some(limit_ppm) = rule.limit_ppm else {
        return true;
    };
    let ([bad, runs], _) = sums(strata, rule.sign);
    let expected_ppm: u128 = strata
        .iter()
        .map(|s| s.tally(rule.sign))
        .filter(|tally| tally.stable[1] > 0)
        .map(|t| {
            u128::from(t.stable[0]) * 1_000_000 * u128::from(t.canary[1]) / u128::from(t.stable[1])
        })
        .sum();
    let allowed = u128::from(runs) * u128::from(limit_ppm);
    let as_stable = expected_ppm + u128::from(runs) * u128::from(rule.margin_ppm);
    u128::from(bad) * 1_000_000 <= allowed.max(as_stable)
}

fn interferes(strata: &[Stratum], rule: &Rule, kept: Kept) -> bool {
    let was_kept = match rule.guardrail {
        Guardrail::Errors => kept.errors,
        Guardrail::TtftLimit => kept.ttft,
        Guardrail::InterTokenLimit => kept.inter_token,
        _ => false,
    };
    let (_, stable) = sums(strata, rule.sign);
    let limit = rule.limit_ppm.filter(|_| was_kept);
    limit.is_some_and(|limit| milli(exceeds(stable, limit)) >= threshold_milli(INTERFERENCE_PPM))
}

/// One entry per guardrail: of its signs the one with most evidence.
fn summary(
    strata: &[Stratum],
    rules: &[Rule],
    evidence: &[f64],
    breach: Option<&Breach>,
    is_fine: impl Fn(&Rule) -> Option<bool>,
) -> Vec<GuardrailEvidence> {
    let mut entries: Vec<GuardrailEvidence> = Vec::new();
    for (rule, &log) in rules.iter().zip(evidence) {
        let (canary, stable) = sums(strata, rule.sign);
        let verdict = if breach.is_some_and(|b| b.guardrail == rule.guardrail) {
            Verdict::Worse
        } else if is_fine(rule) == Some(true) {
            Verdict::Fine
        } else {
            Verdict::Unknown
        };
        let entry = GuardrailEvidence {
            guardrail: rule.guardrail,
            verdict,
            canary,
            stable,
            log_evidence_milli: milli(log),
        };
        match entries.iter_mut().find(|e| e.guardrail == rule.guardrail) {
            Some(known) if known.log_evidence_milli >= entry.log_evidence_milli => {}
            Some(known) => *known = entry,
            None => entries.push(entry),
        }
    }
    entries
}
