//! What a run's events say about its response: the same events always tell the same story.

use serde_json::Value;
use weir_protocol::error::ErrorCode;
use weir_run::{
    Event, EventKind, FinishReason, Run, RunId, RunStatus, TokenLogprob, ToolCallDelta, Usage,
};

use super::super::called::Called;
use super::record::{Record, bare, response_id};
use super::wire::{self, Item, Part, ResponseView};
use crate::error::{ApiError, ApiResult};
use crate::hub::Frame;

/// A response as far as its events were read.
pub(crate) struct Story {
    pub(super) record: Record,
    pub(super) id: String,
    pub(super) item_id: String,
    model: String,
    created_at: u64,
    pub(super) status: RunStatus,
    /// Whether the message was begun.
    pub(super) began: bool,
    pub(super) text: String,
    pub(super) called: Called,
    pub(super) logprobs: Vec<TokenLogprob>,
    /// Of tokens without text at the end so far.
    held: Vec<TokenLogprob>,
    pub(super) end: Option<End>,
}

/// How it ended.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) finish: Option<FinishReason>,
    pub(super) reason: String,
    usage: Usage,
}

/// What an event added to the story.
pub(super) enum Turn {
    /// The run was let in.
    Accepted,
    /// A worker took it up.
    Started,
    /// Text, with the log-probabilities of its tokens; and pieces of calls.
    Output(String, Vec<TokenLogprob>, Vec<ToolCallDelta>),
    /// Nothing that a response shows.
    Nothing,
    /// It is over.
    Ended,
}

impl Story {
    /// Of a run before its first event.
    pub(crate) fn of(run: &Run, record: Record) -> Self {
        Self::new(run.id, &run.model, run.created_at_ms, record)
    }

    pub(super) fn new(id: RunId, model: &str, created_at_ms: u64, record: Record) -> Self {
        Self {
            record,
            id: response_id(id),
            item_id: format!("msg_{}", bare(id)),
            model: model.to_owned(),
            created_at: created_at_ms / 1000,
            status: RunStatus::Accepted,
            began: false,
            text: String::new(),
            called: Called::default(),
            logprobs: Vec::new(),
            held: Vec::new(),
            end: None,
        }
    }

    /// Reads one more event.
    pub(super) fn read(&mut self, event: Event) -> Turn {
        match event.kind {
            EventKind::Accepted { .. } => Turn::Accepted,
            EventKind::Started { .. } => {
                self.status = RunStatus::Running;
                Turn::Started
            }
            EventKind::Delta {
                text,
                logprobs,
                tool_calls,
                ..
            } => self.delta(text, logprobs, tool_calls),
            EventKind::Completed {
                finish_reason,
                usage,
                ..
            } => {
                if finish_reason == FinishReason::Length {
                    self.logprobs.append(&mut self.held);
                }
                self.ended(
                    RunStatus::Completed,
                    Some(finish_reason),
                    String::new(),
                    usage,
                )
            }
            EventKind::Ended {
                status,
                reason,
                usage,
            } => self.ended(status, None, reason, usage),
        }
    }

    /// Reads one more event, for who wants the whole only.
    pub(super) fn follow(&mut self, event: Event) {
        match self.read(event) {
            Turn::Output(text, ..) if !text.is_empty() => self.began = true,
            Turn::Ended if self.is_message() => self.began = true,
            _ => {}
        }
    }

    /// As [`Story::follow`].
    pub(super) fn follow_frame(&mut self, frame: &Frame) -> ApiResult<()> {
        let event = Event::decode(frame.kind, &frame.data()).map_err(|error| {
            tracing::error!(response = self.id, %error, "an event cannot be read");
            ApiError::new(ErrorCode::Internal, "the response's events cannot be read")
        })?;
        self.follow(event);
        Ok(())
    }

    /// Whether an answer without text is a message all the same: one of calls is none.
    pub(super) fn is_message(&self) -> bool {
        self.status == RunStatus::Completed && self.called.all().is_empty()
    }

    fn delta(
        &mut self,
        text: String,
        logprobs: Option<Vec<TokenLogprob>>,
        pieces: Vec<ToolCallDelta>,
    ) -> Turn {
        self.held.extend(logprobs.unwrap_or_default());
        self.called.add(pieces.clone());
        if text.is_empty() {
            return if pieces.is_empty() {
                Turn::Nothing
            } else {
                Turn::Output(text, Vec::new(), pieces)
            };
        }
        self.text.push_str(&text);
        let new = std::mem::take(&mut self.held);
        if self.record.logprobs.is_some() {
            self.logprobs.extend(new.iter().cloned());
        }
        Turn::Output(text, new, pieces)
    }

    fn ended(
        &mut self,
        status: RunStatus,
        finish: Option<FinishReason>,
        reason: String,
        usage: Usage,
    ) -> Turn {
        self.status = status;
        self.end = Some(End {
            finish,
            reason,
            usage,
        });
        Turn::Ended
    }

    /// The response's status in `OpenAI`'s words.
    pub(super) fn word(&self) -> &'static str {
        match self.status {
            RunStatus::Accepted => "queued",
            RunStatus::Running | RunStatus::Cancelling => "in_progress",
            RunStatus::Completed if self.cut_off() => "incomplete",
            RunStatus::Completed => "completed",
            RunStatus::Cancelled => "cancelled",
            RunStatus::Interrupted | RunStatus::Failed | RunStatus::Expired => "failed",
        }
    }

    fn cut_off(&self) -> bool {
        let end = self.end.as_ref();
        end.is_some_and(|end| end.finish == Some(FinishReason::Length))
    }

    /// The message as far as it is written.
    pub(super) fn item(&self) -> Item<'_> {
        let status = match self.word() {
            "completed" => "completed",
            "queued" | "in_progress" => "in_progress",
            _ => "incomplete",
        };
        Item::message(&self.item_id, status, Some(self.part()))
    }

    /// The id of the item of a call.
    pub(super) fn call_id(&self, place: usize) -> String {
        format!("fc_{}_{place}", self.item_id.trim_start_matches("msg_"))
    }

    pub(super) fn part(&self) -> Part<'_> {
        Part::text(
            &self.text,
            self.record.logprobs.map(|_| self.logprobs.as_slice()),
        )
    }

    /// The whole response as far as it is known, under a status of the caller's where the event says another than the run.
    pub(super) fn view(&self, status: &'static str, completed_at: Option<u64>) -> ResponseView<'_> {
        let mut output: Vec<Item<'_>> = self.began.then(|| self.item()).into_iter().collect();
        let calls = self.called.all().iter().enumerate();
        output.extend(
            calls
                .filter(|(_, call)| call.is_whole())
                .map(|(place, call)| {
                    Item::call(
                        self.call_id(place),
                        "completed",
                        call,
                        &call.function.arguments,
                    )
                }),
        );
        ResponseView {
            id: &self.id,
            object: "response",
            created_at: self.created_at,
            status,
            completed_at,
            background: self.record.background,
            error: self.error(),
            incomplete_details: self
                .cut_off()
                .then(|| serde_json::json!({"reason": "max_output_tokens"})),
            model: &self.model,
            output,
            usage: self.end.as_ref().map(|end| wire::usage(end.usage)),
            record: &self.record,
        }
    }

    fn error(&self) -> Option<Value> {
        if self.word() != "failed" {
            return None;
        }
        let end = self.end.as_ref()?;
        let status = self.status.as_str();
        let message = if end.reason.is_empty() {
            format!("the run ended as {status}")
        } else {
            format!("the run ended as {status}: {}", end.reason)
        };
        Some(serde_json::json!({"code": "server_error", "message": message}))
    }
}
