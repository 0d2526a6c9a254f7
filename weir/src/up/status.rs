//! What `weir up` says about each object: the same status fields and conditions as on a cluster.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};
use weir_api::Condition;
use weir_operator::status::ConditionNow;

/// Since when each condition has had its status, by kind, name and type.
#[derive(Debug, Default)]
pub struct History {
    since: BTreeMap<(String, String, &'static str), (&'static str, Timestamp)>,
}

impl History {
    /// Conditions with their transition times: a time changes only when the status does.
    pub fn conditions(
        &mut self,
        kind: &str,
        name: &str,
        generation: i64,
        conditions: Vec<ConditionNow>,
        now: Timestamp,
    ) -> Vec<Condition> {
        let stamp = |condition: ConditionNow| {
            let key = (kind.to_owned(), name.to_owned(), condition.type_);
            let entry = self.since.entry(key).or_insert((condition.status, now));
            if entry.0 != condition.status {
                *entry = (condition.status, now);
            }
            Condition {
                type_: condition.type_.to_owned(),
                status: condition.status.to_owned(),
                observed_generation: Some(generation),
                last_transition_time: Time(entry.1),
                reason: condition.reason,
                message: condition.message,
            }
        };
        conditions.into_iter().map(stamp).collect()
    }
}

/// An object as kubectl would show it: what was written, with generation, age and status.
pub fn object(
    written: &Value,
    generation: i64,
    created: Timestamp,
    status: &impl serde::Serialize,
) -> Value {
    let mut object = written.clone();
    object["metadata"]["generation"] = json!(generation);
    object["metadata"]["creationTimestamp"] = json!(
        created
            .round(jiff::Unit::Second)
            .unwrap_or(created)
            .to_string()
    );
    object["status"] = serde_json::to_value(status).unwrap_or_default();
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transition_time_changes_only_with_the_status() {
        let mut history = History::default();
        let mut at = |second: i64, holds: bool, reason: &str| {
            let now = Timestamp::from_second(second).unwrap();
            let conditions = vec![ConditionNow::new("Ready", holds, reason, "m")];
            history
                .conditions("GpuPool", "p", 3, conditions, now)
                .pop()
                .unwrap()
        };
        assert_eq!(
            at(10, false, "Starting").last_transition_time.0.as_second(),
            10
        );
        assert_eq!(
            at(20, false, "Scaling").last_transition_time.0.as_second(),
            10
        );
        assert_eq!(
            at(30, true, "Serving").last_transition_time.0.as_second(),
            30
        );
        let last = at(40, true, "Serving");
        assert_eq!(
            (
                last.last_transition_time.0.as_second(),
                last.observed_generation
            ),
            (30, Some(3))
        );
    }
}
