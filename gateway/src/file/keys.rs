//! Windows and what keys may less than their tenants, as a snapshot's file has them.

use serde::Deserialize;

use crate::snapshot::{KeyRules, Priority};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct FileKeyRules {
    #[serde(default)]
    windows: Vec<FileWindow>,
    requests_per_minute: Option<u64>,
    tokens_per_minute: Option<u64>,
    concurrent_runs: Option<u64>,
    models: Option<Vec<String>>,
    priority: Option<Priority>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct FileWindow {
    period_seconds: u64,
    tokens: Option<u64>,
    micros: Option<u64>,
}

pub(super) fn window(window: FileWindow) -> weir_budget::WindowLimit {
    weir_budget::WindowLimit {
        period_s: window.period_seconds,
        tokens: window.tokens,
        micros: window.micros,
    }
}

pub(super) fn key_rules(rules: FileKeyRules) -> KeyRules {
    KeyRules {
        limits: weir_budget::Limits {
            windows: rules.windows.into_iter().map(window).collect(),
            requests_per_minute: rules.requests_per_minute,
            tokens_per_minute: rules.tokens_per_minute,
            concurrent_runs: rules.concurrent_runs,
            ..weir_budget::Limits::default()
        },
        models: rules.models,
        priority: rules.priority,
    }
}
