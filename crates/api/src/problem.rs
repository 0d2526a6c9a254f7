//! What is wrong with one field, and what to do about it.

use std::fmt;

/// One fault of an object: where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FieldProblem {
    /// The field's place in the object, such as `spec.rollout.steps[1].weightPercent`; empty for the object itself.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl FieldProblem {
    /// A fault at a place.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            message: message.into(),
        }
    }
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.path, self.message)
        }
    }
}

impl std::error::Error for FieldProblem {}

/// The known name that a misspelt one most likely meant, if any is near.
pub fn did_you_mean<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    known
        .into_iter()
        .map(|name| (similarity(&given, &name.to_lowercase()), name))
        .filter(|(score, _)| *score >= NEAR)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

/// Below this, a suggestion confuses more than it helps: `stages` and `stage` score 0.83, `weight` and `weightPercent` 0.5 before the
/// rule for prefixes.
const NEAR: f64 = 0.65;

fn similarity(given: &str, known: &str) -> f64 {
    let prefix = given.len() >= 3 && known.len() >= 3;
    if prefix && (known.starts_with(given) || given.starts_with(known)) {
        return 0.9;
    }
    strsim::normalized_damerau_levenshtein(given, known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_names_find_their_neighbour_and_strangers_do_not() {
        let known = ["stage", "weightPercent", "maxWait", "pool"];
        let cases = [
            ("stages", Some("stage")),
            ("weight", Some("weightPercent")),
            ("maxwait", Some("maxWait")),
            ("pol", Some("pool")),
            ("replicas", None),
            ("x", None),
        ];
        for (given, want) in cases {
            assert_eq!(did_you_mean(given, known), want, "{given}");
        }
    }
}
