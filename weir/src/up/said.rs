//! What a worker says of the plans in its folders, a line each.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// A line a worker prints on stdout.
#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line {
    pub(super) event: String,
    #[serde(default)]
    pub(super) message: String,
    #[serde(default)]
    pub(super) reason: String,
    #[serde(default)]
    plan: String,
    #[serde(default)]
    state: String,
    #[serde(default)]
    text: String,
}

/// What a worker said last of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanSaid {
    /// `loaded`, `refused`, `failed` (it tries again), `leaving` or `removed`; nothing where this process has said nothing yet.
    pub state: String,
    /// One word, where it does not serve.
    pub reason: String,
    /// The cause and the remedy.
    pub message: String,
    /// Digest of the plan that it read.
    pub text: String,
    /// How often it failed, ever.
    pub failures: u32,
}

impl PlanSaid {
    /// Whether it only waits until another one has left.
    pub fn waits_for_room(&self) -> bool {
        self.state == "failed" && ["PoolFull", "StillHeld"].contains(&self.reason.as_str())
    }

    /// Whether a worker has it in memory, or ends its runs.
    pub fn is_held(&self) -> bool {
        ["loaded", "leaving"].contains(&self.state.as_str())
    }
}

/// By the plan's file name.
type Plans = BTreeMap<String, PlanSaid>;

/// What a worker said of its plans.
#[derive(Debug, Default)]
pub struct Said {
    /// Of versions, where it holds several.
    pub versions: Plans,
    /// Of adapters.
    pub adapters: Plans,
}

/// Who supervises writes it, who decides reads it.
pub type SharedSaid = Arc<Mutex<Said>>;

impl Said {
    /// A new process has said nothing.
    pub fn begin(&mut self) {
        let all = self.versions.values_mut().chain(self.adapters.values_mut());
        for said in all {
            let PlanSaid {
                state,
                reason,
                message,
                text,
                ..
            } = said;
            for word in [state, reason, message, text] {
                word.clear();
            }
        }
    }

    /// Takes a line over; whether it was of a plan.
    pub(super) fn note(&mut self, line: &Line) -> bool {
        let plans = match line.event.as_str() {
            "version" => &mut self.versions,
            "adapter" => &mut self.adapters,
            _ => return false,
        };
        let said = plans.entry(line.plan.clone()).or_default();
        said.state.clone_from(&line.state);
        said.reason.clone_from(&line.reason);
        said.message.clone_from(&line.message);
        said.text.clone_from(&line.text);
        let has_failed = line.state == "failed" && !said.waits_for_room();
        said.failures = said.failures.saturating_add(u32::from(has_failed));
        true
    }
}
