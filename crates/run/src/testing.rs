//! What tests of this crate and of stores begin with.

use std::collections::BTreeMap;

use crate::{Decision, DecisionReason, Epoch, Expected, Price, Run, RunId, RunStatus, Sequence};

/// A run as it is let in, with a prompt of 10 tokens and room for 50 more; change what a test is about.
pub fn accepted_run() -> Run {
    Run {
        id: RunId::new(1, 2),
        tenant: "acme".into(),
        request_key: None,
        payload_hash: [0; 32],
        model: "tiny-chat".into(),
        model_version: 2,
        manifest_digest: "sha256:00".into(),
        pool: "small".into(),
        decision: Decision {
            requested: "tiny-chat".into(),
            reason: DecisionReason::Stable,
            worker: None,
            expected: Expected::default(),
        },
        status: RunStatus::Accepted,
        epoch: Epoch(1),
        choices: 1,
        prompt_tokens: 10,
        cached_tokens: 0,
        output_tokens: 0,
        output_index: 0,
        reserved_tokens: 60,
        reserved_micros: 210,
        price: Price {
            prompt_micros_per_token: 1,
            cached_micros_per_token: 0,
            output_micros_per_token: 4,
        },
        cost_micros: None,
        last_sequence: Sequence(1),
        created_at_ms: 1,
        started_at_ms: None,
        first_token_at_ms: None,
        finished_at_ms: None,
        deadline_ms: None,
        finish_reason: None,
        error: None,
        replaces: None,
        replaced_by: None,
        events_expire_at_ms: 100,
        metadata: BTreeMap::new(),
        caller: None,
        verdicts: vec![],
    }
}
