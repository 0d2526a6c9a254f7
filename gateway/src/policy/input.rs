//! Policies at the prompt, before the model.

use std::sync::Arc;

use serde_json::{Value, json};
use weir_protocol::error::ErrorCode;
use weir_run::{Phase, PolicyAction, Verdict};

use super::RuleSets;
use super::check::{Checked, Question};
use super::rules::Rules;
use super::scan::{Scanner, Segment};
use crate::admit::{Input, RunRequest};
use crate::error::{ApiError, ApiResult};

impl RuleSets {
    /// Applies the rules to a prompt: redacts it in place, or refuses it. What was decided comes back.
    pub(crate) async fn before(
        &self,
        tenant: &str,
        model: &str,
        request: &mut RunRequest,
    ) -> ApiResult<Vec<Verdict>> {
        let asks = self
            .checkers
            .iter()
            .any(|checker| checker.looks(Phase::Before));
        if self.before.is_empty() && !asks {
            return Ok(Vec::new());
        }
        let param = request.params.prompt;
        let mut verdicts = Vec::new();
        match &mut request.input {
            Input::User(text) | Input::Text(text) => redact(&self.before, text, &mut verdicts),
            Input::Chat(messages) => {
                for message in messages {
                    redact(&self.before, &mut message.content, &mut verdicts);
                }
            }
            Input::Dialogue(dialogue) => {
                let tools = dialogue.tools.iter_mut();
                for value in dialogue.messages.iter_mut().chain(tools) {
                    redact_json(&self.before, value, &mut verdicts);
                }
            }
            Input::Tokens(_) => {
                return Err(ApiError::new(
                    ErrorCode::SafetyBlocked,
                    "policies hold for this model and cannot read token ids; send the prompt as text",
                )
                .param(param));
            }
        }
        if let Some(verdict) = verdicts.iter().find(|v| v.action == PolicyAction::Block) {
            return Err(blocked(tenant, verdict).param(param));
        }
        if !verdicts.is_empty() {
            redact_attachment(&self.before, request);
        }
        for checker in self
            .checkers
            .iter()
            .filter(|checker| checker.looks(Phase::Before))
        {
            let messages = messages(&request.input);
            let question = Question {
                phase: Phase::Before,
                tenant,
                model,
                messages: &messages,
            };
            match checker.ask(&question).await {
                Checked::Allowed => {}
                Checked::Unchecked(verdict) => verdict.add_to(&mut verdicts),
                Checked::Blocked(verdict) => {
                    return Err(blocked(tenant, &verdict).param(param));
                }
            }
        }
        Ok(verdicts)
    }
}

/// What is kept of the request beside its events is kept as the model sees it.
fn redact_attachment(rules: &Arc<[Arc<Rules>]>, request: &mut RunRequest) {
    let Some(kept) = &request.attachment else {
        return;
    };
    request.attachment = serde_json::from_slice(kept).ok().map(|mut value| {
        redact_json(rules, &mut value, &mut Vec::new());
        value.to_string().into()
    });
}

/// Every text in it.
fn redact_json(rules: &Arc<[Arc<Rules>]>, value: &mut Value, verdicts: &mut Vec<Verdict>) {
    match value {
        Value::String(text) => redact(rules, text, verdicts),
        Value::Array(values) => {
            for value in values {
                redact_json(rules, value, verdicts);
            }
        }
        Value::Object(map) => {
            for value in map.values_mut() {
                redact_json(rules, value, verdicts);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Roles and texts.
fn messages(input: &Input) -> Vec<(String, String)> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    };
    match input {
        Input::User(text) | Input::Text(text) => vec![("user".to_owned(), text.clone())],
        Input::Chat(messages) => {
            let pairs = messages.iter();
            pairs.map(|m| (m.role.clone(), m.content.clone())).collect()
        }
        Input::Dialogue(dialogue) => {
            let pairs = dialogue.messages.iter();
            pairs.map(|m| (text(&m["role"]), m.to_string())).collect()
        }
        Input::Tokens(_) => Vec::new(),
    }
}

/// Names the rule, never what it found.
fn blocked(tenant: &str, verdict: &Verdict) -> ApiError {
    tracing::info!(
        tenant,
        policy = verdict.policy,
        version = verdict.version,
        rule = verdict.rule,
        "a policy refused a prompt"
    );
    ApiError::new(
        ErrorCode::SafetyBlocked,
        format!(
            "the prompt was refused by rule {:?} of policy {:?}; nothing was run or billed",
            verdict.rule, verdict.policy
        ),
    )
    .details(json!({"policy": verdict.policy, "version": verdict.version, "rule": verdict.rule}))
}

/// A whole text under rules.
pub(super) fn redact(rules: &Arc<[Arc<Rules>]>, text: &mut String, verdicts: &mut Vec<Verdict>) {
    if rules.is_empty() {
        return;
    }
    let mut scanner = Scanner::new(Arc::clone(rules));
    let mut segments = Vec::new();
    scanner.push(text, &mut segments, verdicts);
    scanner.finish(&mut segments, verdicts);
    if segments
        .iter()
        .all(|segment| matches!(segment, Segment::Pass(_)))
    {
        return;
    }
    let (mut at, mut out) = (0, String::with_capacity(text.len()));
    for segment in segments {
        match segment {
            Segment::Pass(count) => {
                out.push_str(&text[at..at + count]);
                at += count;
            }
            Segment::Gone(count, marker) => {
                out.push_str(&marker.unwrap_or_default());
                at += count;
            }
            Segment::Stop => {}
        }
    }
    *text = out;
}
