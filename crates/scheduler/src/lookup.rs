//! Guesses of the next tokens by prompt lookup: what followed the sequence's last tokens when they occurred before is likely to follow
//! again. Texts that quote their prompt (summaries, edited code, filled forms) gain most.

/// Most guesses of a row.
pub const DRAFTS_MAX: usize = 15;
/// Tokens looked back over: bounds the cost of a look at a long context to about a microsecond.
const WINDOW: usize = 2048;
/// Tokens before a guess that must have occurred in the same order.
const MATCH_LEAST: usize = 2;
/// Occurrences are told apart by so many tokens.
const MATCH_MOST: usize = 8;
/// Tokens compared at a time, so that the compiler uses vectors.
const CHUNK: usize = 16;
/// Fixed point of shares.
const ONE: u32 = 1024;
/// Looks that found nothing double the steps until the next look, up to 2 to this power.
const REST_DOUBLINGS_MAX: u8 = 3;

/// Fills `drafts` with what is likely to follow `tokens`; returns how many. The longest match wins, of equal ones the latest; one
/// that ends at the end of the tokens goes on with its own guesses, so that repetitions are followed.
pub(crate) fn guess(tokens: &[u32], drafts: &mut [u32]) -> usize {
    let Some(end) = find(tokens) else { return 0 };
    for at in 0..drafts.len() {
        let from = end + at;
        drafts[at] = match tokens.get(from) {
            Some(token) => *token,
            None => drafts[from - tokens.len()],
        };
    }
    drafts.len()
}

/// One past the best earlier occurrence of the last tokens.
fn find(tokens: &[u32]) -> Option<usize> {
    let (last, before) = tokens.split_last()?;
    let first = before.len().saturating_sub(WINDOW);
    let (mut best, mut longest) = (None, MATCH_LEAST - 1);
    let mut end = before.len();
    while end > first {
        let begin = end.saturating_sub(CHUNK).max(first);
        let chunk = &before[begin..end];
        // Counting has no way out in the middle, so that it is done by vectors.
        if chunk.iter().filter(|token| *token == last).count() > 0 {
            for at in (begin..end).rev().filter(|at| before[*at] == *last) {
                let length = match_length(tokens, at + 1);
                if length > longest {
                    (best, longest) = (Some(at + 1), length);
                }
                if length == MATCH_MOST {
                    return best;
                }
            }
        }
        end = begin;
    }
    best
}

/// How many tokens before `end` are the same as the last ones.
fn match_length(tokens: &[u32], end: usize) -> usize {
    let earlier = tokens[..end].iter().rev();
    let last = tokens.iter().rev();
    earlier
        .zip(last)
        .take(MATCH_MOST)
        .take_while(|(a, b)| a == b)
        .count()
}

/// How well a sequence's guesses went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Luck {
    /// Share of guesses that come true while those before them did, in 1/1024.
    share: u32,
    /// Looks in a row that found nothing.
    misses: u8,
    /// No look before this step.
    rests_until: u64,
}

impl Luck {
    /// Half of what nobody tried yet comes true.
    pub(crate) const fn new() -> Self {
        Self {
            share: ONE / 2,
            misses: 0,
            rests_until: 0,
        }
    }

    /// How many guesses are worth their cost: a row that costs `cost` of 1024 parts of a token is worth computing while it is
    /// likelier than that to give one.
    pub(crate) fn worth(&self, cost: u32, most: u32) -> u32 {
        let (mut likely, mut count) = (self.share, 0);
        while count < most && likely >= cost {
            count += 1;
            likely = likely * self.share / ONE;
        }
        count
    }

    pub(crate) fn is_resting(&self, step: u64) -> bool {
        step < self.rests_until
    }

    /// A look found nothing.
    pub(crate) fn miss(&mut self, step: u64) {
        self.misses = (self.misses + 1).min(REST_DOUBLINGS_MAX);
        self.rests_until = step + (1 << self.misses);
    }

    /// So many of the guesses came true.
    pub(crate) fn learn(&mut self, guesses: u32, accepted: u32) {
        self.misses = 0;
        for _ in 0..accepted {
            self.share += (ONE - self.share) / 8;
        }
        if accepted < guesses {
            self.share -= self.share / 4;
        }
    }

    /// A step without guesses, because they were not worth it: slowly forgets why.
    pub(crate) fn forget(&mut self) {
        self.share += ONE.saturating_sub(2 * self.share) / 64;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn guesses(tokens: &[u32], count: usize) -> Vec<u32> {
        let mut drafts = vec![0; count];
        let found = guess(tokens, &mut drafts);
        drafts.truncate(found);
        drafts
    }

    #[test]
    fn what_followed_before_is_guessed() {
        type Case = (&'static str, &'static [u32], &'static [u32]);
        let cases: [Case; 7] = [
            ("nothing", &[], &[]),
            ("nothing occurs twice", &[1, 2, 3, 4], &[]),
            ("one token is not enough", &[1, 2, 3, 2], &[]),
            ("two are", &[1, 2, 9, 7, 8, 5, 1, 2], &[9, 7, 8]),
            (
                "the longest match wins",
                &[4, 1, 2, 9, 9, 5, 1, 2, 8, 4, 1, 2],
                &[9, 9, 5],
            ),
            (
                "of equal ones the latest",
                &[1, 2, 3, 0, 1, 2, 4, 0, 0, 1, 2],
                &[4, 0, 0],
            ),
            ("a repetition goes on", &[9, 5, 6, 5, 6], &[5, 6, 5]),
        ];
        for (name, tokens, want) in cases {
            assert_eq!(guesses(tokens, 3), want, "{name}");
        }
    }

    #[test]
    fn nothing_is_found_beyond_the_window() {
        let text = |gap: u32| {
            let filler = 100..100 + gap;
            [1, 2, 3]
                .into_iter()
                .chain(filler)
                .chain([1, 2])
                .collect::<Vec<_>>()
        };
        let gap = u32::try_from(WINDOW).unwrap();
        assert_eq!(guesses(&text(gap - 4), 1), [3]);
        assert_eq!(guesses(&text(gap), 1), [0; 0]);
    }

    proptest! {
        #[test]
        fn guesses_are_what_a_plain_search_finds(tokens in prop::collection::vec(0..4_u32, 0..200)) {
            let plain = (1..tokens.len())
                .map(|end| (match_length(&tokens, end), end))
                .filter(|(length, _)| *length >= MATCH_LEAST)
                .max();
            let found = guesses(&tokens, 1);
            match plain {
                None => prop_assert!(found.is_empty()),
                Some((_, end)) => prop_assert_eq!(found, vec![tokens[end]]),
            }
        }
    }

    #[test]
    fn guesses_are_made_while_they_are_worth_their_cost() {
        let mut luck = Luck::new();
        assert_eq!(luck.worth(256, 7), 2, "a half and a quarter come true");
        assert_eq!(luck.worth(900, 7), 0);
        for _ in 0..20 {
            luck.learn(4, 4);
        }
        assert_eq!(luck.worth(256, 7), 7);
        for _ in 0..20 {
            luck.learn(4, 0);
        }
        assert_eq!(luck.worth(256, 7), 0);
        for _ in 0..200 {
            luck.forget();
        }
        assert!(luck.worth(256, 7) > 0, "bad luck is not for ever");
    }

    #[test]
    fn looks_that_find_nothing_become_rare() {
        let mut luck = Luck::new();
        let mut looks = 0;
        for step in 0..1024 {
            if !luck.is_resting(step) {
                looks += 1;
                luck.miss(step);
            }
        }
        assert!((128..140).contains(&looks), "{looks} looks");
    }
}
