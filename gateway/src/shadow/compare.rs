//! What two answers to one prompt say of each other. It sees texts and keeps none.

use weir_rollout::evidence::Judged;
use weir_rollout::statistics::ShadowCounts;

use crate::link::{BEGINNING_BYTES, BEGINNING_TOKENS, Said};

/// Counts a pair. `is_greedy`: nothing was left to chance, so equal versions give equal texts.
pub(super) fn pair(counts: &mut ShadowCounts, stable: &Said, candidate: &Said, is_greedy: bool) {
    counts.pairs += 1;
    counts.errors.record(false);
    discordant(
        &mut counts.refusal,
        candidate.is_refusal(),
        stable.is_refusal(),
    );
    discordant(&mut counts.output, candidate.is_odd, stable.is_odd);
    if is_greedy {
        counts.disagreement.record(!agree(stable, candidate));
    }
}

/// Counts a reference that both answered.
pub(super) fn reference(counts: &mut ShadowCounts, is_right: [bool; 2]) {
    let [candidate, stable] = is_right;
    counts.reference_pairs += 1;
    counts.references_due = counts.references_due.saturating_sub(1);
    discordant(&mut counts.references, !candidate, !stable);
}

/// Counts by how many thousandths of a nat per token the candidate finds stable's words less probable than stable does.
pub(super) fn scored(counts: &mut ShadowCounts, milli_nats: i64) {
    counts.scored += 1;
    counts.score_sum_milli_nats += milli_nats;
}

/// The candidate failed where stable answered.
pub(super) fn failed(errors: &mut Judged) {
    errors.record(true);
}

/// Only what one of them does says anything.
fn discordant(counts: &mut [u64; 2], candidate: bool, stable: bool) {
    match (candidate, stable) {
        (true, false) => counts[0] += 1,
        (false, true) => counts[1] += 1,
        _ => {}
    }
}

/// Whether two answers begin alike. Tokenizers may differ, so beginnings that were cut are compared as far as the shorter one goes.
fn agree(one: &Said, other: &Said) -> bool {
    let is_cut = |said: &Said| {
        said.is_cut || said.tokens >= BEGINNING_TOKENS || said.beginning.len() >= BEGINNING_BYTES
    };
    let (short, long) = if one.beginning.len() <= other.beginning.len() {
        (one, other)
    } else {
        (other, one)
    };
    long.beginning.starts_with(&short.beginning)
        && (short.beginning.len() == long.beginning.len() || is_cut(short))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str, tokens: u64) -> Said {
        Said {
            beginning: text.to_owned(),
            tokens,
            ..Said::default()
        }
    }

    #[test]
    fn only_what_one_of_two_versions_does_counts_against_it() {
        let mut counts = ShadowCounts::default();
        let (plain, refusing) = (said("Red.", 2), said("I cannot help.", 4));
        let odd = Said {
            is_odd: true,
            ..said("Red", 90)
        };
        pair(&mut counts, &plain, &plain, true);
        pair(&mut counts, &plain, &refusing, true);
        pair(&mut counts, &refusing, &refusing, true);
        pair(&mut counts, &odd, &plain, false);
        pair(&mut counts, &plain, &odd, false);
        assert_eq!(counts.pairs, 5);
        assert_eq!(counts.refusal, [1, 0]);
        assert_eq!(counts.output, [1, 1]);
        assert_eq!((counts.disagreement.runs, counts.disagreement.bad), (3, 1));
        counts.references_due = 3;
        for right in [[true, true], [false, true], [true, false]] {
            reference(&mut counts, right);
        }
        assert_eq!((counts.references, counts.references_due), ([1, 1], 0));
        assert_eq!(counts.reference_pairs, 3);
    }

    #[test]
    fn beginnings_agree_as_far_as_both_were_looked_at() {
        let long = "x".repeat(300);
        for (name, one, other, want) in [
            ("equal", said("ab", 2), said("ab", 2), true),
            ("other tokens", said("ab", 2), said("ab", 1), true),
            ("one goes on", said("ab", 2), said("abc", 3), false),
            (
                "one was cut",
                said(&long[..256], 64),
                said(&long[..270], 64),
                true,
            ),
            ("other text", said("ab", 2), said("xb", 2), false),
        ] {
            assert_eq!(agree(&one, &other), want, "{name}");
            assert_eq!(agree(&other, &one), want, "{name}, the other way");
        }
    }
}
