//! How often each token is in a sequence, for penalties.

/// One token's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub token: u32,
    pub output_count: u32,
}

/// A table of the tokens that occur. Grows by doubling, keeps its memory when cleared.
#[derive(Debug, Default)]
pub(crate) struct TokenCounts {
    /// In the order of first occurrence.
    entries: Vec<Entry>,
    /// Open addressing: 0 is empty, else the place in `entries` plus 1. A power of two long, at most half full.
    places: Vec<u32>,
}

impl TokenCounts {
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.places.fill(0);
    }

    /// Becomes equal to others, in the memory it has.
    pub(crate) fn copy(&mut self, other: &Self) {
        self.entries.clone_from(&other.entries);
        self.places.clone_from(&other.places);
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(crate) fn add_prompt(&mut self, token: u32) {
        self.entry(token);
    }

    pub(crate) fn add_output(&mut self, token: u32) {
        self.entry(token).output_count += 1;
    }

    fn entry(&mut self, token: u32) -> &mut Entry {
        if self.places.len() < 2 * (self.entries.len() + 1) {
            self.grow();
        }
        let mask = self.places.len() - 1;
        let mut at = hash(token) & mask;
        loop {
            match self.places[at] as usize {
                0 => {
                    self.entries.push(Entry {
                        token,
                        output_count: 0,
                    });
                    self.places[at] =
                        u32::try_from(self.entries.len()).expect("at most one entry per token");
                    break;
                }
                place if self.entries[place - 1].token == token => {
                    return &mut self.entries[place - 1];
                }
                _ => at = (at + 1) & mask,
            }
        }
        self.entries.last_mut().expect("just pushed")
    }

    fn grow(&mut self) {
        let length = (self.places.len() * 2).max(64);
        self.places.clear();
        self.places.resize(length, 0);
        for (place, entry) in (1u32..).zip(&self.entries) {
            let mut at = hash(entry.token) & (length - 1);
            while self.places[at] != 0 {
                at = (at + 1) & (length - 1);
            }
            self.places[at] = place;
        }
    }
}

/// Fibonacci hashing: neighbouring ids, which are common, spread out.
fn hash(token: u32) -> usize {
    (u64::from(token).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize
}
