//! What a policy decided about a run. Never the text that it decided about.

use serde::{Deserialize, Serialize};

/// Where in a run a policy looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// At the prompt, before the model.
    Before,
    /// At the output, after the model.
    After,
}

/// What a policy did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PolicyAction {
    /// It ended the run there.
    Block,
    /// It put a marker in the place of what it found.
    Redact,
    /// Its checker did not answer, and the policy says to go on without it.
    Unchecked,
}

/// A decision of a policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Verdict {
    /// The policy's name.
    pub policy: String,
    /// Its version.
    pub version: u32,
    /// The rule that decided.
    pub rule: String,
    /// Where it looked.
    pub phase: Phase,
    /// What it did.
    pub action: PolicyAction,
    /// How often.
    pub count: u32,
}

impl Verdict {
    /// Adds a verdict to a list that has each rule once.
    pub fn add_to(&self, list: &mut Vec<Self>) {
        let same = |known: &&mut Self| {
            known.policy == self.policy
                && known.version == self.version
                && known.rule == self.rule
                && known.phase == self.phase
                && known.action == self.action
        };
        match list.iter_mut().find(same) {
            Some(known) => known.count = known.count.saturating_add(self.count),
            None => list.push(self.clone()),
        }
    }
}
