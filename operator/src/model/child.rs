//! What is seen of a version's children and pods.

use weir_rollout::Stamp;

/// What is seen of a version's children and pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChildSeen {
    /// Replicas its Deployment asks for.
    pub desired: u32,
    /// The record that ordered them.
    pub stamp: Stamp,
    /// Pods, those that end included.
    pub existing: u32,
    /// Pods that are ready.
    pub ready: u32,
    /// Exits of containers of the pods there are.
    pub exits: u32,
    /// The fewest exits of any pod that is not ready.
    pub start_failures: u32,
    /// Pods that no node has room for.
    pub unschedulable: u32,
    /// Runs that gateways have on them.
    pub live_runs: u64,
    /// Whether its workers hold other versions, too.
    pub shares: bool,
    /// Whether exits of such workers are its own: it is on trial.
    pub is_blamed: bool,
}

impl ChildSeen {
    /// Exits that count against the version. A worker that ends takes all that it holds with it: that is whose fault it is who is on trial.
    pub(super) fn blame(&self, before: u32) -> u32 {
        if self.shares && !self.is_blamed {
            return 0;
        }
        self.exits.saturating_sub(before)
    }

    /// Exits before it was ready. Workers that it shares may have ended before it came to them.
    pub(super) fn start_failures(&self, before: u32) -> u32 {
        if self.shares {
            self.blame(before)
        } else {
            self.start_failures
        }
    }
}
