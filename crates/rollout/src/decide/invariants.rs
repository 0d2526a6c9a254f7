//! What every decision keeps, checked where it is made: a broken rule stops the program before it reaches a user.

use crate::Record;
use crate::decide::state::State;
use crate::record::{Phase, Room};

/// Asserts the rules of a step from the head to the next record.
///
/// # Panics
/// When one is broken, with the check that fired.
pub(super) fn assert_kept(state: &State, next: &Record, check: &str) {
    let head = &state.head;
    if let Err(broken) = next.check() {
        panic_with(check, &broken.to_string());
    }
    must(
        check,
        next.stamp.revision == head.stamp.revision + 1,
        "one record per revision",
    );
    must(check, next.at_ms >= head.at_ms, "time does not run back");
    assert_table(state, next, check);
    assert_steps(head, next, check);
    assert_ending(head, next, check);
}

fn must(check: &str, kept: bool, rule: &str) {
    if !kept {
        panic_with(check, rule);
    }
}

#[expect(
    clippy::panic,
    reason = "a broken rule of a rollout must stop it; the caller's supervisor restarts and pages"
)]
fn panic_with(check: &str, rule: &str) {
    panic!("check \"{check}\" breaks a rule of rollouts: {rule}");
}

fn assert_table(state: &State, next: &Record, check: &str) {
    let (before, after) = (&state.head.routing, &next.routing);
    if before == after {
        return;
    }
    let Some(table) = after else {
        return must(check, false, "a table is never taken away");
    };
    let is_newer = before
        .as_ref()
        .is_none_or(|before| before.order < table.order);
    must(check, is_newer, "tables only grow");
    let attempt = state.attempt();
    let is_first = state.head.stable.is_none();
    let is_downtime = attempt.is_some_and(|attempt| attempt.room == Some(Room::Downtime));
    for share in &table.entries {
        let weight_before = state.head.weight(&share.id.digest);
        let is_target = attempt.is_some_and(|attempt| attempt.target == share.id);
        if is_target && share.weight > weight_before && !is_first && !is_downtime {
            let need = state.need(share.weight);
            let has = state.serving(&share.id);
            must(
                check,
                has >= need,
                "weight rises only with replicas that are ready and known",
            );
            must(
                check,
                !state.head.paused || attempt.is_some_and(|a| a.phase == Phase::Reverting),
                "weight does not rise while paused",
            );
        }
        let spec = attempt
            .filter(|a| a.target == share.id)
            .map(|a| a.spec_hash.as_str());
        let is_rejected = spec.is_some_and(|hash| next.rejection(&share.id.digest, hash).is_some());
        must(check, !is_rejected, "a rejected version takes no runs");
    }
}

fn assert_steps(head: &Record, next: &Record, check: &str) {
    let (Some(before), Some(after)) = (&head.attempt, &next.attempt) else {
        return;
    };
    if before.id != after.id {
        return;
    }
    let overridden = after.overrides.len() > before.overrides.len();
    let is_forward = after.phase == Phase::Step
        && (after.step == before.step || after.step == before.step + 1 || overridden);
    let leaves = after.phase != Phase::Step;
    must(check, is_forward || leaves, "steps move by one or end");
    let rises =
        after.step > before.step || (after.phase == Phase::Final && before.phase < Phase::Final);
    must(
        check,
        !(rises && head.paused),
        "the step does not rise while paused",
    );
    let skips = after.phase == Phase::Final
        && before.phase < Phase::Final
        && before.step < before.plan.step_count()
        && !overridden;
    must(check, !skips, "the final phase comes after every step");
}

fn assert_ending(head: &Record, next: &Record, check: &str) {
    let promoted = next.stable != head.stable;
    if promoted {
        must(
            check,
            next.attempt.is_none(),
            "pointers move only in the record that ends an attempt",
        );
        let attempt = head
            .attempt
            .as_ref()
            .map(|attempt| (&attempt.target, attempt.phase));
        let is_target = attempt.is_some_and(|(target, _)| next.stable.as_ref() == Some(target));
        must(
            check,
            is_target,
            "only the target of an attempt becomes stable",
        );
        let is_due = attempt.is_some_and(|(_, phase)| {
            matches!(phase, Phase::Final | Phase::Reverting) || head.stable.is_none()
        });
        must(check, is_due, "only the final phase promotes");
    }
    let ended_badly = next.rejected.len() > head.rejected.len();
    if ended_badly && let Some(attempt) = &next.attempt {
        let is_ending = matches!(attempt.phase, Phase::RollingBack | Phase::Reverting);
        must(check, is_ending, "a rejection and weight 0 are one record");
    }
}
