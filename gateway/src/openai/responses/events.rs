//! A run's events as the typed events of the Responses API. Numbers and bytes follow from the run's log and its record alone, so that
//! every replay on every replica is the same.

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use weir_run::Event;

use super::story::{Story, Turn};
use super::wire::{self, Item, Part};
use crate::http::sse::Shape;
use crate::hub::Frame;

/// Turns the events of a run, from its first, into events of its response with a number above `after`.
pub(crate) struct Events {
    story: Story,
    next: u64,
    after: Option<u64>,
    /// Calls whose items are done.
    calls_done: usize,
}

#[derive(Serialize)]
struct OfResponse<'a> {
    r#type: &'static str,
    sequence_number: u64,
    response: wire::ResponseView<'a>,
}

#[derive(Serialize)]
struct OfItem<'a> {
    r#type: &'static str,
    sequence_number: u64,
    output_index: u32,
    item: Item<'a>,
}

#[derive(Serialize)]
struct OfPart<'a> {
    r#type: &'static str,
    sequence_number: u64,
    item_id: &'a str,
    output_index: u32,
    content_index: u32,
    part: Part<'a>,
}

#[derive(Serialize)]
struct OfText<'a> {
    r#type: &'static str,
    sequence_number: u64,
    item_id: &'a str,
    output_index: u32,
    content_index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    logprobs: Vec<wire::TokenView<'a>>,
}

#[derive(Serialize)]
struct OfArguments<'a> {
    r#type: &'static str,
    sequence_number: u64,
    item_id: String,
    output_index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a str>,
}

#[derive(Serialize)]
struct Broken {
    r#type: &'static str,
    sequence_number: u64,
    code: &'static str,
    message: &'static str,
    param: Option<()>,
}

impl Events {
    /// With `after`, events up to that number are left out; they are counted all the same.
    pub(crate) fn new(story: Story, after: Option<u64>) -> Self {
        Self {
            story,
            next: 0,
            after,
            calls_done: 0,
        }
    }

    fn whole(&mut self, out: &mut BytesMut, name: &'static str, status: &'static str) {
        let Some(sequence_number) = self.number() else {
            return;
        };
        let event = OfResponse {
            r#type: name,
            sequence_number,
            response: self.story.view(status, None),
        };
        write(out, name, &event);
    }

    fn accepted(&mut self, out: &mut BytesMut) {
        let background = self.story.record.background;
        let status = if background { "queued" } else { "in_progress" };
        self.whole(out, "response.created", status);
        if background {
            self.whole(out, "response.queued", status);
        }
    }

    /// The message and its one part, once there is something to put in.
    fn begin(&mut self, out: &mut BytesMut) {
        if std::mem::replace(&mut self.story.began, true) {
            return;
        }
        let name = "response.output_item.added";
        if let Some(sequence_number) = self.number() {
            let item = Item::message(&self.story.item_id, "in_progress", None);
            let event = OfItem {
                r#type: name,
                sequence_number,
                output_index: 0,
                item,
            };
            write(out, name, &event);
        }
        let name = "response.content_part.added";
        if let Some(sequence_number) = self.number() {
            let event = self.of_part(name, sequence_number, Part::text("", None));
            write(out, name, &event);
        }
    }

    fn text(&mut self, out: &mut BytesMut, text: &str, logprobs: &[weir_run::TokenLogprob]) {
        self.begin(out);
        let name = "response.output_text.delta";
        let Some(sequence_number) = self.number() else {
            return;
        };
        let shown = self.story.record.logprobs.map_or(&[][..], |_| logprobs);
        let event = OfText {
            r#type: name,
            sequence_number,
            item_id: &self.story.item_id,
            output_index: 0,
            content_index: 0,
            delta: Some(text),
            text: None,
            logprobs: wire::list(shown),
        };
        write(out, name, &event);
    }

    fn end(&mut self, out: &mut BytesMut) {
        if self.story.is_message() {
            self.begin(out);
        }
        if self.story.began {
            self.finish_item(out);
        }
        self.finish_calls(out, self.story.called.all().len());
        let word = self.story.word();
        let name = match word {
            "completed" => "response.completed",
            "failed" => "response.failed",
            // There is no event for a cancelled response; its status says what it is.
            _ => "response.incomplete",
        };
        self.whole(out, name, word);
    }

    fn finish_item(&mut self, out: &mut BytesMut) {
        let name = "response.output_text.done";
        if let Some(sequence_number) = self.number() {
            let shown = self.story.record.logprobs;
            let event = OfText {
                r#type: name,
                sequence_number,
                item_id: &self.story.item_id,
                output_index: 0,
                content_index: 0,
                delta: None,
                text: Some(&self.story.text),
                logprobs: wire::list(shown.map_or(&[][..], |_| &self.story.logprobs)),
            };
            write(out, name, &event);
        }
        let name = "response.content_part.done";
        if let Some(sequence_number) = self.number() {
            let event = self.of_part(name, sequence_number, self.story.part());
            write(out, name, &event);
        }
        let name = "response.output_item.done";
        if let Some(sequence_number) = self.number() {
            let event = OfItem {
                r#type: name,
                sequence_number,
                output_index: 0,
                item: self.story.item(),
            };
            write(out, name, &event);
        }
    }

    fn of_part<'a>(
        &'a self,
        name: &'static str,
        sequence_number: u64,
        part: Part<'a>,
    ) -> OfPart<'a> {
        OfPart {
            r#type: name,
            sequence_number,
            item_id: &self.story.item_id,
            output_index: 0,
            content_index: 0,
            part,
        }
    }

    /// The number of the next event; none when the client has that event already.
    fn number(&mut self) -> Option<u64> {
        let number = self.next;
        self.next += 1;
        self.after
            .is_none_or(|after| number > after)
            .then_some(number)
    }
}

impl Shape for Events {
    fn event(&mut self, frame: &Frame) -> Option<Bytes> {
        let Ok(event) = Event::decode(frame.kind, &frame.data()) else {
            return self.broken();
        };
        let mut out = BytesMut::new();
        match self.story.read(event) {
            Turn::Accepted => self.accepted(&mut out),
            Turn::Started => self.whole(&mut out, "response.in_progress", "in_progress"),
            Turn::Output(text, logprobs, pieces) => {
                if !text.is_empty() {
                    self.text(&mut out, &text, &logprobs);
                }
                for piece in &pieces {
                    self.piece(&mut out, piece);
                }
            }
            Turn::Nothing => {}
            Turn::Ended => self.end(&mut out),
        }
        (!out.is_empty()).then(|| out.freeze())
    }

    fn broken(&mut self) -> Option<Bytes> {
        let mut out = BytesMut::new();
        let event = Broken {
            r#type: "error",
            sequence_number: self.next,
            code: "store_unavailable",
            message: "the response's events cannot be read at the moment; resume with starting_after",
            param: None,
        };
        write(&mut out, "error", &event);
        Some(out.freeze())
    }
}

fn write<T: Serialize>(out: &mut BytesMut, name: &str, event: &T) {
    out.put_slice(b"event: ");
    out.put_slice(name.as_bytes());
    out.put_slice(b"\ndata: ");
    serde_json::to_writer(out.writer(), event).expect("events serialize");
    out.put_slice(b"\n\n");
}

mod calls;
#[cfg(test)]
mod tests;
