//! Events of calls of functions.

use bytes::BytesMut;
use weir_run::ToolCallDelta;

use super::{Events, OfArguments, OfItem, write};
use crate::openai::responses::wire::Item;

impl Events {
    /// A call begins, or its arguments go on.
    pub(super) fn piece(&mut self, out: &mut BytesMut, piece: &ToolCallDelta) {
        let place = piece.index as usize;
        if !piece.name.is_empty() {
            self.finish_calls(out, place);
            self.item(
                out,
                place,
                ("response.output_item.added", "in_progress"),
                false,
            );
        }
        let name = "response.function_call_arguments.delta";
        if piece.arguments.is_empty() {
            return;
        }
        let Some(sequence_number) = self.number() else {
            return;
        };
        let event = OfArguments {
            r#type: name,
            sequence_number,
            item_id: self.story.call_id(place),
            output_index: self.output_index(place),
            delta: Some(&piece.arguments),
            name: None,
            arguments: None,
        };
        write(out, name, &event);
    }

    /// Ends the items of calls before a place. One that the ceiling cut ends incomplete, and is no call.
    pub(super) fn finish_calls(&mut self, out: &mut BytesMut, before: usize) {
        while self.calls_done < before {
            let place = self.calls_done;
            self.calls_done += 1;
            let Some(call) = self.story.called.all().get(place) else {
                return;
            };
            if !call.is_whole() {
                self.item(
                    out,
                    place,
                    ("response.output_item.done", "incomplete"),
                    true,
                );
                continue;
            }
            let name = "response.function_call_arguments.done";
            if let Some(sequence_number) = self.number() {
                let call = &self.story.called.all()[place];
                let event = OfArguments {
                    r#type: name,
                    sequence_number,
                    item_id: self.story.call_id(place),
                    output_index: self.output_index(place),
                    delta: None,
                    name: Some(&call.function.name),
                    arguments: Some(&call.function.arguments),
                };
                write(out, name, &event);
            }
            self.item(out, place, ("response.output_item.done", "completed"), true);
        }
    }

    fn item(
        &mut self,
        out: &mut BytesMut,
        place: usize,
        (name, status): (&'static str, &'static str),
        is_done: bool,
    ) {
        let Some(sequence_number) = self.number() else {
            return;
        };
        let Some(call) = self.story.called.all().get(place) else {
            return;
        };
        let arguments = if is_done {
            call.function.arguments.as_str()
        } else {
            ""
        };
        let event = OfItem {
            r#type: name,
            sequence_number,
            output_index: self.output_index(place),
            item: Item::call(self.story.call_id(place), status, call, arguments),
        };
        write(out, name, &event);
    }

    /// Calls come behind the message, where there is one.
    fn output_index(&self, place: usize) -> u32 {
        u32::from(self.story.began) + place as u32
    }
}
