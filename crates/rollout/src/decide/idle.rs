//! Without an attempt: what starts the next one.

use crate::decide::next::Next;
use crate::decide::observation::{Verification, VersionSpec};
use crate::decide::state::State;
use crate::evidence::Judged;
use crate::record::{Attempt, Kept, Phase};
use crate::{Plan, VersionId};

/// Without an attempt: the next one starts, or stable is left, or a rollback version that was taken back is forgotten.
pub(super) fn idle(state: &State) -> Option<Next> {
    if state.head.attempt.is_some() {
        return None;
    }
    if let Some(rollback) = state
        .head
        .rollback_to
        .as_ref()
        .filter(|id| state.is_leaving(id))
    {
        let mut record = state.successor();
        record.rollback_to = None;
        record.routing = state
            .head
            .routing
            .as_ref()
            .map(|table| state.without_rollback(table));
        let message = "it was taken back and is no longer kept for a rollback".to_owned();
        return Some(state.next(record, rollback.version, "RollbackForgotten", message));
    }
    if let Some(target) = state.target() {
        return Some(start(state, target));
    }
    let stable = state.head.stable.as_ref()?;
    if state.is_leaving(stable) {
        return start_revert(state, stable);
    }
    None
}

/// Opens a new attempt: fresh evidence, a fresh bound on false alarms.
pub(super) fn start(state: &State, target: &VersionSpec) -> Next {
    let mut record = state.successor();
    record.attempt = Some(new_attempt(state, target, Phase::Preparing));
    let message = "a rollout starts".to_owned();
    state.next(record, target.id.version, "RolloutStarted", message)
}

pub(super) fn new_attempt(state: &State, target: &VersionSpec, phase: Phase) -> Attempt {
    let number = state.head.next_attempt(target.id.version);
    Attempt {
        id: format!("v{}-{number}", target.id.version),
        target: target.id.clone(),
        spec_hash: target.spec_hash.clone(),
        plan: target.plan.clone(),
        phase,
        step: 0,
        entered_at_ms: state.now_ms,
        room: None,
        kept: kept(state, &target.plan),
        done: Vec::new(),
        lowered: false,
        hold: None,
        overrides: Vec::new(),
        ending: None,
    }
}

pub(super) fn start_revert(state: &State, stable: &VersionId) -> Option<Next> {
    let back_to = state.head.rollback_to.as_ref()?;
    let spec = state.spec(back_to)?;
    if matches!(spec.verification, Verification::Refused(_)) {
        return None;
    }
    let mut record = state.successor();
    record.attempt = Some(new_attempt(state, spec, Phase::Reverting));
    let message = format!("version {} was taken back", stable.version);
    Some(state.next(record, back_to.version, "Reverting", message))
}

/// What stable keeps of a plan's limits before the attempt; without enough runs, or measured by another limit, nothing.
fn kept(state: &State, plan: &Plan) -> Kept {
    let (Some(stable), Some(table)) = (&state.head.stable, &state.head.routing) else {
        return Kept::default();
    };
    let counts = state.counts(&stable.digest);
    let keeps = |judged: Judged, limit_ppm: u32| {
        let enough = judged.runs >= u64::from(plan.limits.min_requests.max(1));
        enough
            && u128::from(judged.bad) * 1_000_000 <= u128::from(judged.runs) * u128::from(limit_ppm)
    };
    let thresholds = &table.thresholds;
    let same_ttft = thresholds.ttft_limit_ms == plan.limits.ttft_p95_ms;
    let same_gap = thresholds.inter_token_limit_ms == plan.limits.inter_token_p95_ms;
    Kept {
        errors: keeps(counts.errors, plan.limits.error_rate_ppm),
        ttft: same_ttft && keeps(counts.ttft_limit, 50_000),
        inter_token: same_gap && keeps(counts.inter_token_limit, 50_000),
    }
}
