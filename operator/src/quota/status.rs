//! A quota's status: which keys are in force, and how much of each window is left, coarse.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;
use weir_api::tenant_quota::{WindowStatus, conditions, reasons};
use weir_api::{
    CONDITION_READY, CONDITION_STALLED, FieldProblem, TenantQuota, TenantQuotaStatus,
    ValidTenantQuota, Window,
};

use crate::status::{ConditionNow, seconds, stamped};

/// Which keys' hashes are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// Keys in force.
    pub active: usize,
    /// Keys whose Secret or entry is missing.
    pub missing: Vec<String>,
}

/// What is known of a quota.
pub struct Facts<'a> {
    /// The object.
    pub object: &'a TenantQuota,
    /// Proven, or what is wrong with it.
    pub valid: Result<&'a ValidTenantQuota, &'a [FieldProblem]>,
    /// Its keys.
    pub keys: Keys,
    /// What a gateway says of its budget, if one does.
    pub budget: Option<&'a Value>,
    /// Models that there are.
    pub models: BTreeSet<&'a str>,
}

/// Fields whose values alone are no news.
pub const MOVING: &[&str] = &["windows", "liveRuns", "observedAt"];

/// The status.
#[must_use]
pub fn status(facts: &Facts<'_>, now: Timestamp) -> TenantQuotaStatus {
    let before = facts.object.status.clone().unwrap_or_default();
    let generation = facts.object.metadata.generation;
    let mut status = TenantQuotaStatus {
        observed_generation: generation,
        active_keys: i32::try_from(facts.keys.active).ok(),
        windows: before.windows.clone(),
        live_runs: before.live_runs,
        observed_at: before.observed_at.clone(),
        conditions: stamped(&before.conditions, conditions(facts), generation, now),
    };
    let Some((valid, budget)) = facts.valid.ok().zip(facts.budget) else {
        return status;
    };
    let windows = valid
        .windows
        .iter()
        .zip(budget["windows"].as_array().into_iter().flatten());
    let old = before.windows.as_deref().unwrap_or_default();
    let windows = windows.map(|(limit, used)| {
        let period = written(facts.object, limit);
        let old = old.iter().find(|window| window.period == period);
        window(limit, period, used, old)
    });
    let windows: Vec<WindowStatus> = windows.collect();
    status.live_runs = budget["liveRuns"]
        .as_u64()
        .map(|runs| i32::try_from(coarse(runs, None)).unwrap_or(i32::MAX));
    status.windows = Some(windows);
    if status.windows != before.windows
        || status.live_runs != before.live_runs
        || status.observed_at.is_none()
    {
        status.observed_at = Some(Time(seconds(now)));
    }
    status
}

/// The period as its author wrote it: it names the window.
fn written(object: &TenantQuota, limit: &Window) -> String {
    let mut windows = object.spec.windows.iter().flatten();
    let found = windows.find(|window| window.period.parse() == Ok(limit.period));
    found.map_or_else(
        || format!("{}s", limit.period.as_secs()),
        |window| window.period.0.clone(),
    )
}

/// In steps of a hundredth of the limit; without one, of the second digit. Rounded up: never less than is used.
fn coarse(number: u64, limit: Option<u64>) -> u64 {
    let step = match limit {
        Some(limit) => (limit / 100).max(1),
        None => 10_u64.pow(number.max(1).ilog10().saturating_sub(1)),
    };
    number.div_ceil(step) * step
}

fn window(
    limit: &Window,
    period: String,
    used: &Value,
    old: Option<&WindowStatus>,
) -> WindowStatus {
    let number = |field: &str| used[field].as_u64().unwrap_or(0);
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let at = |field: &str| {
        let ms = used[field].as_i64().unwrap_or(0);
        Time(seconds(Timestamp::from_millisecond(ms).unwrap_or_default()))
    };
    let tokens = [
        coarse(number("usedTokens"), limit.tokens),
        coarse(number("reservedTokens"), limit.tokens),
    ];
    let micros = [
        coarse(number("usedMicros"), limit.micros),
        coarse(number("reservedMicros"), limit.micros),
    ];
    // Negative where a limit was lowered below what is used and reserved: nothing is taken back, and nothing new is let in until it fits.
    let left = |limit: Option<u64>, [used, reserved]: [u64; 2]| {
        limit.map(|limit| signed(limit) - signed(used) - signed(reserved))
    };
    let mut status = WindowStatus {
        period,
        start: at("startMs"),
        end: at("endMs"),
        limit_tokens: limit.tokens.map(signed),
        used_tokens: Some(signed(tokens[0])),
        reserved_tokens: Some(signed(tokens[1])),
        available_tokens: left(limit.tokens, tokens),
        limit_micros: limit.micros.map(signed),
        used_micros: Some(signed(micros[0])),
        reserved_micros: Some(signed(micros[1])),
        available_micros: left(limit.micros, micros),
    };
    // A window in which nothing happened is as the one before it: the next one begins with the next run.
    if let Some(old) = old {
        let mut moved = old.clone();
        (moved.start, moved.end) = (status.start.clone(), status.end.clone());
        if moved == status && tokens == [0, 0] && micros == [0, 0] {
            (status.start, status.end) = (old.start.clone(), old.end.clone());
        }
    }
    status
}

fn conditions(facts: &Facts<'_>) -> Vec<ConditionNow> {
    let valid = match facts.valid {
        Ok(valid) => valid,
        Err(problems) => {
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            let problems = problems.join("; ");
            return [conditions::ADMITTED, CONDITION_READY]
                .map(|type_| {
                    ConditionNow::new(type_, false, reasons::INVALID_SPEC, problems.clone())
                })
                .into_iter()
                .chain([ConditionNow::new(
                    CONDITION_STALLED,
                    true,
                    reasons::INVALID_SPEC,
                    problems.clone(),
                )])
                .collect();
        }
    };
    let mut all = vec![ConditionNow::new(
        conditions::ADMITTED,
        true,
        reasons::ACCEPTED,
        "the object makes sense",
    )];
    let keys = match (&facts.keys.missing[..], facts.keys.active) {
        ([], 0) => (
            false,
            reasons::NO_KEY,
            "no API key is in force: add one with `weir key`".to_owned(),
        ),
        ([], active) => (true, reasons::ENFORCED, format!("{active} keys in force")),
        (missing, _) => {
            let message = format!("no hash in the Secret for keys {}", missing.join(", "));
            (false, reasons::SECRET_NOT_FOUND, message)
        }
    };
    all.push(ConditionNow::new(
        conditions::KEYS_RESOLVED,
        keys.0,
        keys.1,
        keys.2.clone(),
    ));
    let unknown: Vec<&str> = valid
        .models
        .keys()
        .map(String::as_str)
        .filter(|name| !facts.models.contains(name))
        .collect();
    all.push(if unknown.is_empty() {
        ConditionNow::new(
            conditions::MODELS_RESOLVED,
            true,
            reasons::ACCEPTED,
            "every model that it names exists",
        )
    } else {
        let message = format!("there is no version of {}", unknown.join(", "));
        ConditionNow::new(
            conditions::MODELS_RESOLVED,
            false,
            reasons::MODEL_NOT_FOUND,
            message,
        )
    });
    all.push(ConditionNow::new(CONDITION_READY, keys.0, keys.1, keys.2));
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use weir_api::{Validate as _, parse};

    use super::*;

    fn quota() -> TenantQuota {
        parse(&json!({
            "apiVersion": "weir.dev/v1alpha1", "kind": "TenantQuota", "metadata": {"name": "acme", "generation": 2},
            "spec": {"tenant": "acme", "windows": [{"period": "24h", "tokens": 1000}], "priority": "standard",
                     "keys": [{"name": "ci", "secretRef": {"name": "s", "key": "ci"}}], "models": [{"name": "m"}]},
        }))
        .unwrap()
    }

    fn told(object: &TenantQuota, used: u64, reserved: u64, start: i64) -> TenantQuotaStatus {
        let budget = json!({"liveRuns": 3, "windows": [{"startMs": start, "endMs": start + 60_000, "usedTokens": used,
                            "reservedTokens": reserved, "usedMicros": 0, "reservedMicros": 0}]});
        let valid = object.validate().unwrap();
        let facts = Facts {
            object,
            valid: Ok(&valid),
            keys: Keys {
                active: 1,
                missing: Vec::new(),
            },
            budget: Some(&budget),
            models: BTreeSet::from(["m"]),
        };
        status(&facts, Timestamp::from_second(100).unwrap())
    }

    #[test]
    fn a_window_adds_up_and_may_be_overdrawn_by_a_lowered_limit() {
        let status = told(&quota(), 123, 45, 0);
        let window = &status.windows.as_ref().unwrap()[0];
        assert_eq!(
            (
                window.period.as_str(),
                window.used_tokens,
                window.reserved_tokens
            ),
            ("24h", Some(130), Some(50))
        );
        assert_eq!(window.available_tokens, Some(820));
        let window = &told(&quota(), 900, 400, 0).windows.unwrap()[0];
        assert_eq!(window.available_tokens, Some(-300));
    }

    #[test]
    fn nothing_changes_while_nothing_happens_although_windows_come_and_go() {
        let mut object = quota();
        object.status = Some(told(&object, 0, 0, 0));
        assert_eq!(Some(told(&object, 0, 0, 60_000)), object.status);
        assert_ne!(Some(told(&object, 1, 0, 60_000)), object.status);
    }

    #[test]
    fn what_is_missing_is_named() {
        let object = quota();
        let valid = object.validate().unwrap();
        let facts = Facts {
            object: &object,
            valid: Ok(&valid),
            keys: Keys {
                active: 0,
                missing: vec!["ci".to_owned()],
            },
            budget: None,
            models: BTreeSet::new(),
        };
        let status = status(&facts, Timestamp::UNIX_EPOCH);
        let reasons: Vec<(&str, &str)> = status
            .conditions
            .iter()
            .map(|c| (c.type_.as_str(), c.reason.as_str()))
            .collect();
        assert_eq!(
            reasons,
            [
                ("Admitted", "Accepted"),
                ("KeysResolved", "SecretNotFound"),
                ("ModelsResolved", "ModelNotFound"),
                ("Ready", "SecretNotFound")
            ]
        );
        assert_eq!(status.windows, None, "no word is no zero");
    }
}
