//! The shadow: both versions answer the same runs, so there is no coin, and only pairs that differ say anything.

use serde::{Deserialize, Serialize};

use crate::evidence::Judged;
use crate::record::Proof;
use crate::statistics::{exceeds, log_mean_exp, milli, threshold_milli};
use crate::{Plan, ShadowPlan};

const BETS: usize = 8;

/// Cumulative counts of mirrored runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ShadowCounts {
    /// Pairs that were compared.
    pub pairs: u64,
    /// Mirrored runs that a cap dropped.
    pub dropped: u64,
    /// Pairs in which only the candidate refused, and only stable.
    pub refusal: [u64; 2],
    /// The same of empty, endless and looping outputs.
    pub output: [u64; 2],
    /// The same of wrong reference answers.
    pub references: [u64; 2],
    /// Reference prompts both answered.
    pub reference_pairs: u64,
    /// Reference prompts that have no answer yet: nothing passes without them.
    pub references_due: u64,
    /// The candidate's own failures.
    pub errors: Judged,
    /// Greedy answers, and those of which the first 32 tokens differ.
    pub disagreement: Judged,
    /// The same of stable against itself.
    pub self_disagreement: Judged,
    /// Candidate answers that stable scored, and those more than 2 nats less likely to it.
    pub implausible: Judged,
    /// Stable answers that the candidate scored.
    pub scored: u64,
    /// Sum of the differences of their mean scores in milli-nats, noise floor taken off.
    pub score_sum_milli_nats: i64,
}

impl ShadowCounts {
    /// Adds what another gateway counted.
    pub(crate) fn add(&mut self, other: &Self) {
        let Self {
            pairs,
            dropped,
            refusal,
            output,
            references,
            reference_pairs,
            references_due,
            errors,
            disagreement,
            self_disagreement,
            implausible,
            scored,
            score_sum_milli_nats,
        } = other;
        let add = |sum: &mut [u64; 2], more: &[u64; 2]| {
            sum[0] += more[0];
            sum[1] += more[1];
        };
        self.pairs += pairs;
        self.dropped += dropped;
        add(&mut self.refusal, refusal);
        add(&mut self.output, output);
        add(&mut self.references, references);
        self.reference_pairs += reference_pairs;
        self.references_due += references_due;
        self.errors.add(*errors);
        self.disagreement.add(*disagreement);
        self.self_disagreement.add(*self_disagreement);
        self.implausible.add(*implausible);
        self.scored += scored;
        self.score_sum_milli_nats += score_sum_milli_nats;
    }
}

/// What the shadow says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShadowVerdict {
    /// The candidate is worse.
    Harm(Proof),
    /// Too few pairs.
    TooFew,
    /// The candidate differs, and nothing says whether it is worse.
    Differs(&'static str),
    /// Enough pairs, nothing found.
    Passed,
}

/// ln of the evidence that a sign is the candidate's more often than stable's. `pairs` are those in which only the candidate,
/// and only stable, had it.
pub fn paired(pairs: [u64; 2]) -> f64 {
    let [candidate, stable] = pairs.map(|count| count as f64);
    let mut stake = 1.8_f64;
    let logs = [(); BETS].map(|()| {
        let wealth = candidate * libm::log1p(stake / 2.0) + stable * libm::log1p(-stake / 2.0);
        stake /= 2.0;
        wealth
    });
    log_mean_exp(&logs)
}

/// The candidate's text is garbage to stable when more than a tenth of its answers are.
const IMPLAUSIBLE_PPM: u32 = 100_000;
/// A version may agree with stable five points less than stable with itself.
const SELF_MARGIN_PPM: u64 = 50_000;
/// Fewer answers say nothing of a claim to behave as another version, whatever the plan asks for.
const LEAST_SCORED: u64 = 20;
/// A hold costs a wait.
const DIFFERS_PPM: u32 = 10_000;

/// Judges the shadow. Harm needs no minimum sample.
pub fn judge_shadow(counts: &ShadowCounts, shadow: &ShadowPlan, plan: &Plan) -> ShadowVerdict {
    let own = |judged: Judged| [judged.bad, judged.runs];
    let error_limit = plan.limits.error_rate_ppm;
    let signs = [
        ("refusal", counts.refusal, paired(counts.refusal)),
        ("output", counts.output, paired(counts.output)),
        ("references", counts.references, paired(counts.references)),
        (
            "errors",
            own(counts.errors),
            exceeds(own(counts.errors), error_limit),
        ),
        (
            "reverseScore",
            own(counts.implausible),
            exceeds(own(counts.implausible), IMPLAUSIBLE_PPM),
        ),
    ];
    // A tenth of the bound on false alarms, shared by the mean of the signs.
    let alpha = (plan.limits.false_alarm_ppm / 10).max(1);
    let mean = milli(log_mean_exp(&signs.map(|(_, _, log)| log)));
    if mean >= threshold_milli(alpha) {
        let (guardrail, numbers, log) = signs
            .into_iter()
            .max_by(|a, b| a.2.total_cmp(&b.2))
            .expect("there are five signs");
        return ShadowVerdict::Harm(Proof {
            guardrail: guardrail.to_owned(),
            canary: numbers,
            stable: [0, 0],
            log_evidence_milli: milli(log),
        });
    }
    let needed = u64::from(shadow.min_requests);
    if counts.pairs < needed || counts.references_due > 0 {
        return ShadowVerdict::TooFew;
    }
    // What its signer expects of it is no sample: too few to prove harm are enough to ask a person.
    let [wrong, stable_wrong] = counts.references;
    if wrong > stable_wrong {
        return ShadowVerdict::Differs("references");
    }
    // A claim is checked whatever else is known: right answers do not make it true.
    if let Some(limit) = shadow.score_milli_nats {
        if counts.scored < needed.max(LEAST_SCORED) {
            return ShadowVerdict::TooFew;
        }
        let allowed = i128::from(limit) * i128::from(counts.scored);
        if i128::from(counts.score_sum_milli_nats) > allowed {
            return ShadowVerdict::Differs("score");
        }
    }
    if references_are_fine(counts) {
        return ShadowVerdict::Passed;
    }
    if let Some(agreement_ppm) = shadow.agreement_ppm {
        if counts.disagreement.runs < needed {
            return ShadowVerdict::TooFew;
        }
        let allowed = allowed_disagreement_ppm(counts, agreement_ppm);
        if milli(exceeds(own(counts.disagreement), allowed)) >= threshold_milli(DIFFERS_PPM) {
            return ShadowVerdict::Differs("agreement");
        }
    }
    ShadowVerdict::Passed
}

/// Reference answers are the only sign that knows right from wrong: as many, and no worse in the paired counts.
fn references_are_fine(counts: &ShadowCounts) -> bool {
    let [candidate, stable] = counts.references;
    counts.reference_pairs > 0 && candidate <= stable
}

fn allowed_disagreement_ppm(counts: &ShadowCounts, agreement_ppm: u32) -> u32 {
    let limit = u64::from(1_000_000 - agreement_ppm.min(1_000_000));
    let own = counts.self_disagreement;
    let by_itself = (own.bad * 1_000_000).checked_div(own.runs);
    let allowed = by_itself.map_or(limit, |rate| limit.max(rate + SELF_MARGIN_PPM));
    u32::try_from(allowed.clamp(1, 999_999)).expect("clamped below a million")
}
