//! Outputs that go round in circles.

/// Notices four tokens that come eight times running.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looping {
    last: [u32; Self::GRAM],
    seen: usize,
    equal: usize,
    found: bool,
}

impl Looping {
    const GRAM: usize = 4;
    const TIMES: usize = 8;

    pub(crate) fn push(&mut self, token: u32) {
        let place = self.seen % Self::GRAM;
        if self.seen >= Self::GRAM && self.last[place] == token {
            self.equal += 1;
        } else {
            self.equal = 0;
        }
        self.found |= self.equal >= Self::GRAM * (Self::TIMES - 1);
        self.last[place] = token;
        self.seen += 1;
    }

    pub(crate) fn found(&self) -> bool {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(tokens: impl IntoIterator<Item = u32>) -> bool {
        let mut looping = Looping::default();
        tokens.into_iter().for_each(|token| looping.push(token));
        looping.found()
    }

    #[test]
    fn four_tokens_eight_times_running_are_a_loop() {
        let gram = |times: usize| (0..times * 4).map(|place| place as u32 % 4);
        assert!(!found(gram(7)));
        assert!(found(gram(8)));
        assert!(found((0..9).chain(gram(8)).chain(0..9)), "anywhere");
        assert!(found(std::iter::repeat_n(7, 32)), "one token too");
        assert!(!found(0..500));
        assert!(!found(gram(7).chain([9]).chain(gram(7))), "interrupted");
    }
}
