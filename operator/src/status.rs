//! Conditions and when a status is written: only when it says something else, and what merely moves at most every ten seconds.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;
use weir_api::Condition;

/// Between two writes that only bring new numbers.
pub const MOVING_EVERY: Duration = Duration::from_secs(10);

/// What a condition says, without what follows from its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionNow {
    /// `Ready`, `Verified`, …
    pub type_: &'static str,
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// One PascalCase word.
    pub reason: String,
    /// For people.
    pub message: String,
}

impl ConditionNow {
    /// A condition that holds or does not.
    pub fn new(type_: &'static str, holds: bool, reason: &str, message: impl Into<String>) -> Self {
        let status = if holds { "True" } else { "False" };
        Self {
            type_,
            status,
            reason: reason.to_owned(),
            message: message.into(),
        }
    }
}

/// Conditions with their transition times: a time changes only when the status does.
#[must_use]
pub fn stamped(
    previous: &[Condition],
    now: Vec<ConditionNow>,
    generation: Option<i64>,
    at: Timestamp,
) -> Vec<Condition> {
    let stamp = |condition: ConditionNow| {
        let same =
            |old: &&Condition| old.type_ == condition.type_ && old.status == condition.status;
        let since = previous
            .iter()
            .find(same)
            .map(|old| old.last_transition_time.clone());
        Condition {
            type_: condition.type_.to_owned(),
            status: condition.status.to_owned(),
            observed_generation: generation,
            // Seconds are all that the type has: finer ones would not be read back.
            last_transition_time: since.unwrap_or_else(|| Time(seconds(at))),
            reason: condition.reason,
            message: condition.message,
        }
    };
    now.into_iter().map(stamp).collect()
}

/// A time without the parts of a second that an API server drops.
#[must_use]
pub fn seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// What a new status means for the one that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It says the same.
    None,
    /// Only numbers that move differ.
    Moving,
    /// It says something else.
    Told,
}

/// Compares two statuses. `moving` are the fields whose values alone are no news.
#[must_use]
pub fn change(old: &Value, new: &Value, moving: &[&str]) -> Change {
    if old == new {
        return Change::None;
    }
    if still(old, moving) == still(new, moving) {
        return Change::Moving;
    }
    Change::Told
}

/// A status without what moves: the fields named, and the words of conditions, which quote numbers.
fn still(status: &Value, moving: &[&str]) -> Value {
    let mut status = status.clone();
    if let Some(fields) = status.as_object_mut() {
        fields.retain(|field, _| !moving.contains(&field.as_str()));
    }
    for condition in status["conditions"].as_array_mut().into_iter().flatten() {
        if let Some(fields) = condition.as_object_mut() {
            fields.remove("message");
        }
    }
    status
}

/// Whether a change is written now, so long after the last write that only brought numbers. If not, after how long it is.
#[must_use]
pub fn wait(change: Change, since_last: Option<Duration>) -> Option<Duration> {
    match change {
        Change::None => None,
        Change::Told => Some(Duration::ZERO),
        Change::Moving => {
            let since = since_last.unwrap_or(MOVING_EVERY);
            Some(MOVING_EVERY.saturating_sub(since))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_transition_time_changes_only_with_the_status() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let say = |holds, reason: &str| vec![ConditionNow::new("Ready", holds, reason, "m")];
        let first = stamped(&[], say(false, "Starting"), Some(1), at(10));
        let second = stamped(&first, say(false, "Scaling"), Some(1), at(20));
        assert_eq!(second[0].last_transition_time.0, at(10));
        assert_eq!(second[0].reason, "Scaling");
        let third = stamped(&second, say(true, "Serving"), Some(2), at(30));
        assert_eq!(third[0].last_transition_time.0, at(30));
        assert_eq!(third[0].observed_generation, Some(2));
    }

    #[test]
    fn numbers_that_move_are_written_every_ten_seconds_and_news_at_once() {
        let status = |weight: i64, evidence: i64, message: &str| {
            json!({"weightPercent": weight, "evidence": [evidence],
                   "conditions": [{"type": "Progressing", "status": "True", "reason": "NoData", "message": message}]})
        };
        let old = status(5, 1, "1 of 50 runs");
        let moving = &["evidence"];
        assert_eq!(change(&old, &old, moving), Change::None);
        assert_eq!(
            change(&old, &status(5, 2, "2 of 50 runs"), moving),
            Change::Moving
        );
        assert_eq!(
            change(&old, &status(25, 2, "2 of 50 runs"), moving),
            Change::Told
        );
        let s = Duration::from_secs;
        assert_eq!(wait(Change::None, None), None);
        assert_eq!(wait(Change::Moving, Some(s(4))), Some(s(6)));
        assert_eq!(wait(Change::Moving, Some(s(10))), Some(s(0)));
        assert_eq!(wait(Change::Moving, None), Some(s(0)));
        assert_eq!(wait(Change::Told, Some(s(1))), Some(s(0)));
    }
}
