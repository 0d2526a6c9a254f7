//! A run's events as `OpenAI`'s stream of chunks.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use weir_run::{Event, EventKind, FinishReason, PromptLogprob, Run, TokenLogprob, ToolCallDelta};

use super::around::Around;
use super::outcome::Envelope;
use super::wire::{ChatChunk, ChunkChoice, CompletionLogprobs, Delta, EndedBy, OpenAiUsage};
use super::{Kind, Presentation};
use crate::http::sse::Shape;
use crate::hub::Frame;

/// Turns events into chunks. One event becomes any number of chunks.
pub(super) struct Chunks {
    id: String,
    model: String,
    created: u64,
    presentation: Presentation,
    choices: Vec<ChoiceState>,
    /// The prompt's tokens, where they are told.
    prompt: Vec<PromptLogprob>,
    /// What stands around the text of a chunk that is text and nothing else.
    around: Option<Around>,
}

#[derive(Clone, Default)]
struct ChoiceState {
    began: bool,
    finished: bool,
    called: bool,
    /// Log-probabilities of tokens without text so far: of held-back text, or of an end token, which is not shown.
    held: Vec<TokenLogprob>,
    offset: u64,
}

impl Chunks {
    pub(super) fn new(run: &Run, presentation: Presentation) -> Self {
        Self {
            id: object_id(run, presentation.kind),
            model: run.model.clone(),
            created: run.created_at_ms / 1000,
            choices: vec![ChoiceState::default(); run.choices.max(1) as usize],
            presentation,
            prompt: Vec::new(),
            around: None,
        }
    }

    /// Nearly every chunk differs from the one before in its text alone, which is JSON already: it is set between the same bytes.
    fn plain(&mut self, frame: &Frame) -> Option<Bytes> {
        let [only] = self.choices.as_slice() else {
            return None;
        };
        let is_plain = only.began && !only.finished && self.presentation.logprobs.is_none();
        let text = frame
            .plain_text()
            .filter(|text| is_plain && text.len() > 2)?;
        if self.around.is_none() {
            let mut out = BytesMut::new();
            let choice = self.choice(0, Some(Around::MARK), Vec::new(), None);
            self.write(&mut out, &[choice], None);
            self.around = Around::of(&out);
        }
        self.around.as_ref().map(|around| around.text(text))
    }

    fn write(&self, out: &mut BytesMut, choices: &[ChunkChoice<'_>], usage: Option<OpenAiUsage>) {
        let object = match self.presentation.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Completion => "text_completion",
        };
        data(
            out,
            &ChatChunk {
                id: &self.id,
                object,
                created: self.created,
                model: &self.model,
                choices,
                usage: self.presentation.include_usage.then_some(usage),
            },
        );
    }

    fn choice<'a>(
        &mut self,
        index: u32,
        text: Option<&'a str>,
        logprobs: Vec<TokenLogprob>,
        finish_reason: Option<FinishReason>,
    ) -> ChunkChoice<'a> {
        let called = self.choices[index as usize].called;
        let finish_reason = finish_reason.map(|reason| EndedBy::new(reason, called));
        let state = &mut self.choices[index as usize];
        match self.presentation.kind {
            Kind::Chat => {
                let shown = self.presentation.logprobs.filter(|_| !logprobs.is_empty());
                let role = (!state.began).then_some("assistant");
                state.began = true;
                ChunkChoice::Chat {
                    index,
                    delta: Delta {
                        role,
                        content: text.or(role.map(|_| "")),
                        tool_calls: Vec::new(),
                    },
                    logprobs: shown.map(|_| logprobs.into()),
                    finish_reason,
                }
            }
            Kind::Completion => {
                let first = !std::mem::replace(&mut state.began, true);
                let echo = self.presentation.echo.as_ref().filter(|_| first);
                let prompt = echo.map_or(&[][..], |_| &self.prompt);
                let text = text.unwrap_or_default();
                let said = !logprobs.is_empty() || !prompt.is_empty();
                let shown = self.presentation.logprobs.filter(|_| said);
                ChunkChoice::Completion {
                    index,
                    text: match echo {
                        Some(echo) => Cow::Owned(echo.text(prompt) + text),
                        None => Cow::Borrowed(text),
                    },
                    logprobs: shown.map(|top| {
                        CompletionLogprobs::new(prompt, logprobs, (top, &mut state.offset))
                    }),
                    finish_reason,
                }
            }
        }
    }

    fn delta(&mut self, out: &mut BytesMut, index: u32, text: &str, mut new: Vec<TokenLogprob>) {
        let Some(state) = self.choices.get_mut(index as usize) else {
            return;
        };
        if text.is_empty() {
            state.held.append(&mut new);
            return;
        }
        let mut logprobs = std::mem::take(&mut state.held);
        logprobs.append(&mut new);
        let choice = self.choice(index, Some(text), logprobs, None);
        self.write(out, &[choice], None);
    }

    /// Pieces of calls, in a chunk of their own.
    fn calls(&mut self, out: &mut BytesMut, index: u32, pieces: Vec<ToolCallDelta>) {
        let Some(state) = self.choices.get_mut(index as usize) else {
            return;
        };
        if pieces.is_empty() || self.presentation.kind != Kind::Chat {
            return;
        }
        state.called = true;
        let role = (!std::mem::replace(&mut state.began, true)).then_some("assistant");
        let logprobs = std::mem::take(&mut state.held);
        let shown = self.presentation.logprobs.filter(|_| !logprobs.is_empty());
        let delta = Delta {
            role,
            content: None,
            tool_calls: pieces.into_iter().map(Into::into).collect(),
        };
        let choice = ChunkChoice::Chat {
            index,
            delta,
            logprobs: shown.map(|_| logprobs.into()),
            finish_reason: None,
        };
        self.write(out, &[choice], None);
    }

    /// The last chunk of a choice: an empty delta with the reason. Tokens that were cut off by the ceiling are shown before it.
    fn finish(&mut self, out: &mut BytesMut, index: u32, reason: FinishReason) {
        let Some(state) = self.choices.get_mut(index as usize) else {
            return;
        };
        if std::mem::replace(&mut state.finished, true) {
            return;
        }
        let held = std::mem::take(&mut state.held);
        let unsaid = reason == FinishReason::Length
            && !held.is_empty()
            && self.presentation.logprobs.is_some();
        if unsaid || !self.choices[index as usize].began && self.presentation.kind == Kind::Chat {
            let choice = self.choice(
                index,
                Some(""),
                if unsaid { held } else { Vec::new() },
                None,
            );
            self.write(out, &[choice], None);
        }
        let choice = self.choice(index, None, Vec::new(), Some(reason));
        self.write(out, &[choice], None);
    }

    fn completed(&mut self, out: &mut BytesMut, reason: FinishReason, usage: OpenAiUsage) {
        for index in 0..self.choices.len() as u32 {
            self.finish(out, index, reason);
        }
        if self.presentation.include_usage {
            self.write(out, &[], Some(usage));
        }
        out.put_slice(b"data: [DONE]\n\n");
    }
}

impl Shape for Chunks {
    fn event(&mut self, frame: &Frame) -> Option<Bytes> {
        if let Some(bytes) = self.plain(frame) {
            return Some(bytes);
        }
        let Ok(event) = Event::decode(frame.kind, &frame.data()) else {
            return self.broken();
        };
        let mut out = BytesMut::new();
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
                self.prompt.append(&mut prompt_logprobs);
                self.delta(&mut out, choice, &text, logprobs.unwrap_or_default());
                self.calls(&mut out, choice, tool_calls);
                if let Some(reason) = choice_finish_reason {
                    self.finish(&mut out, choice, reason);
                }
            }
            EventKind::Completed {
                finish_reason,
                usage,
                guesses,
                ..
            } => self.completed(&mut out, finish_reason, OpenAiUsage::new(usage, guesses)),
            EventKind::Ended { status, reason, .. } => {
                data(&mut out, &Envelope::new(status.as_str(), &reason));
                out.put_slice(b"data: [DONE]\n\n");
            }
        }
        (!out.is_empty()).then(|| out.freeze())
    }

    fn broken(&mut self) -> Option<Bytes> {
        let mut out = BytesMut::new();
        data(
            &mut out,
            &Envelope::new(
                "store_unavailable",
                "its events cannot be read at the moment",
            ),
        );
        Some(out.freeze())
    }
}

pub(super) fn object_id(run: &Run, kind: Kind) -> String {
    let id = run.id.to_string();
    let bare = id.strip_prefix("run_").unwrap_or(&id);
    match kind {
        Kind::Chat => format!("chatcmpl-{bare}"),
        Kind::Completion => format!("cmpl-{bare}"),
    }
}

fn data<T: Serialize>(out: &mut BytesMut, value: &T) {
    out.put_slice(b"data: ");
    serde_json::to_writer(out.writer(), value).expect("chunks serialize");
    out.put_slice(b"\n\n");
}
