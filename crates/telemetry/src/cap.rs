//! A bound on the values of one label.

use std::collections::HashSet;
use std::sync::PoisonError;
use std::sync::RwLock;

/// What values beyond the bound are shown as.
pub const OTHER: &str = "other";

/// Lets the first so many values of a label through and calls all others [`OTHER`]: each value is a series of its own in every process and in
/// the database that scrapes it, for ever.
#[derive(Debug)]
pub struct Cap {
    most: usize,
    known: RwLock<HashSet<String>>,
}

impl Cap {
    /// A bound of `most` values.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            known: RwLock::default(),
        }
    }

    /// The value itself, or [`OTHER`] where there are too many already.
    pub fn of<'a>(&self, value: &'a str) -> &'a str {
        let is_known = |known: &HashSet<String>| known.contains(value);
        if is_known(&self.known.read().unwrap_or_else(PoisonError::into_inner)) {
            return value;
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if !is_known(&known) {
            if known.len() >= self.most {
                return OTHER;
            }
            known.insert(value.to_owned());
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_beyond_the_bound_share_one_name() {
        let cap = Cap::new(2);
        let shown: Vec<&str> = ["a", "b", "c", "a", "d", "b"].map(|v| cap.of(v)).to_vec();
        assert_eq!(shown, ["a", "b", OTHER, "a", OTHER, "b"]);
    }
}
