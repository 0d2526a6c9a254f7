//! A run's events as one answer.

use http::{Response, StatusCode};
use weir_protocol::error::ErrorCode;
use weir_run::{Event, EventKind, FinishReason, PromptLogprob, Run, TokenLogprob};

use super::called::Called;
use super::chunk::object_id;
use super::outcome::ended;
use super::wire::{Answer, AnswerChoice, AnswerMessage, CompletionLogprobs, EndedBy, OpenAiUsage};
use super::{Kind, Presentation};
use crate::error::{ApiError, ApiResult};
use crate::http::body::Body;
use crate::http::reply::json;
use crate::hub::EventSource;

#[derive(Clone, Default)]
struct Choice {
    text: String,
    logprobs: Vec<TokenLogprob>,
    /// Of tokens without text at the end so far.
    held: Vec<TokenLogprob>,
    called: Called,
    reason: Option<FinishReason>,
}

/// Waits for the end of the run.
pub(super) async fn answer(
    run: &Run,
    presentation: &Presentation,
    mut events: EventSource,
) -> ApiResult<Response<Body>> {
    let mut choices = vec![Choice::default(); run.choices.max(1) as usize];
    let mut prompt = Vec::new();
    while let Some(frame) = events.next().await {
        let frame = frame?;
        let event = Event::decode(frame.kind, &frame.data()).map_err(|error| {
            tracing::error!(run = %run.id, %error, "an event cannot be read");
            ApiError::new(ErrorCode::Internal, "the run's events cannot be read")
        })?;
        match event.kind {
            EventKind::Accepted { .. } | EventKind::Started { .. } => {}
            EventKind::Delta {
                text,
                choice,
                logprobs,
                mut prompt_logprobs,
                tool_calls,
                choice_finish_reason,
                ..
            } => {
                prompt.append(&mut prompt_logprobs);
                if let Some(choice) = choices.get_mut(choice as usize) {
                    choice.called.add(tool_calls);
                    choice.add(&text, logprobs.unwrap_or_default());
                    choice.reason = choice.reason.or(choice_finish_reason);
                }
            }
            EventKind::Completed {
                finish_reason,
                usage,
                guesses,
                ..
            } => {
                let outcome = (choices, prompt);
                let usage = OpenAiUsage::new(usage, guesses);
                return Ok(completed(run, presentation, outcome, finish_reason, usage));
            }
            EventKind::Ended { status, reason, .. } => return Ok(ended(status, &reason)),
        }
    }
    Err(ApiError::new(
        ErrorCode::EventsExpired,
        "the run's events are no longer kept; GET /runs/{id} still tells how it ended",
    ))
}

impl Choice {
    fn add(&mut self, text: &str, mut new: Vec<TokenLogprob>) {
        if text.is_empty() {
            self.held.append(&mut new);
            return;
        }
        self.text.push_str(text);
        self.logprobs.append(&mut self.held);
        self.logprobs.append(&mut new);
    }
}

fn completed(
    run: &Run,
    presentation: &Presentation,
    (choices, prompt): (Vec<Choice>, Vec<PromptLogprob>),
    finish_reason: FinishReason,
    usage: OpenAiUsage,
) -> Response<Body> {
    let choices = choices
        .into_iter()
        .zip(0..)
        .map(|(mut choice, index)| {
            let reason = choice.reason.unwrap_or(finish_reason);
            if reason == FinishReason::Length {
                choice.logprobs.append(&mut choice.held);
            }
            present(presentation, (choice, &prompt), index, reason)
        })
        .collect();
    let answer = Answer {
        id: &object_id(run, presentation.kind),
        object: match presentation.kind {
            Kind::Chat => "chat.completion",
            Kind::Completion => "text_completion",
        },
        created: run.created_at_ms / 1000,
        model: &run.model,
        choices,
        usage,
    };
    json(StatusCode::OK, &answer)
}

fn present(
    presentation: &Presentation,
    (choice, prompt): (Choice, &[PromptLogprob]),
    index: u32,
    finish_reason: FinishReason,
) -> AnswerChoice {
    let Choice {
        text,
        logprobs,
        called,
        ..
    } = choice;
    let tool_calls = called.whole();
    let finish_reason = EndedBy::new(finish_reason, !tool_calls.is_empty());
    let top = presentation.logprobs;
    match presentation.kind {
        Kind::Chat => AnswerChoice::Chat {
            index,
            message: AnswerMessage {
                role: "assistant",
                content: (!text.is_empty() || tool_calls.is_empty()).then_some(text),
                refusal: None,
                tool_calls,
            },
            logprobs: top.map(|_| logprobs.into()),
            finish_reason,
        },
        Kind::Completion => {
            let (echoed, prompt) = match &presentation.echo {
                Some(echo) => (echo.text(prompt), prompt),
                None => (String::new(), &[][..]),
            };
            AnswerChoice::Completion {
                index,
                text: echoed + &text,
                logprobs: top.map(|top| CompletionLogprobs::new(prompt, logprobs, (top, &mut 0))),
                finish_reason,
            }
        }
    }
}
