//! Tells text and calls of tools apart while an output comes. It relies on the grammar of [`crate::lark`], and fails where the output
//! does not follow it: nothing that is not a whole beginning of a call is ever passed on as one.

use crate::error::GrammarError;
use crate::lark::{
    HERMES_ARGUMENTS, HERMES_CLOSE, HERMES_HEAD, HERMES_NEXT, HERMES_OPEN, LLAMA_ARGUMENTS,
    LLAMA_CLOSE, LLAMA_HEAD,
};
use crate::tools::{NAME_BYTES_MAX, ToolChoice, ToolFormat, ToolSpec};

/// A piece of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallPiece {
    /// A call begins.
    Name {
        /// Which call, from 0.
        index: u32,
        /// Of which tool.
        name: String,
    },
    /// A part of its arguments.
    Arguments {
        /// Which call, from 0.
        index: u32,
        /// JSON, to be put behind the parts before it.
        part: String,
    },
}

/// What some text added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// Text for people.
    pub text: String,
    /// Pieces of calls.
    pub pieces: Vec<CallPiece>,
}

/// Where the parser stands.
#[derive(Clone, Debug)]
enum State {
    /// Text, with the beginning of a tag held back.
    Text { held: String },
    /// Inside a fixed text, of which so many bytes are still to come.
    Fixed { rest: &'static str, then: Then },
    /// In a tool's name and what follows it, up to the arguments.
    Name { seen: String },
    /// In the arguments.
    Arguments(Place),
}

/// What follows a fixed text.
#[derive(Clone, Copy, Debug)]
enum Then {
    Name,
    Next,
    Head,
}

/// One output's parser.
#[derive(Clone, Debug)]
pub struct CallParser {
    format: ToolFormat,
    state: State,
    /// Calls begun.
    count: u32,
    /// Whether anything came.
    begun: bool,
    /// What calls nothing is JSON, which may hold a tag in its texts: only the first character begins a call.
    is_json: bool,
}

impl CallParser {
    /// For an output of these tools.
    pub fn new(spec: &ToolSpec) -> Self {
        let state = match (spec.format, spec.choice) {
            (ToolFormat::Hermes, ToolChoice::Required) => State::Fixed {
                rest: HERMES_OPEN,
                then: Then::Head,
            },
            (ToolFormat::Llama, ToolChoice::Required) => State::Fixed {
                rest: LLAMA_HEAD,
                then: Then::Name,
            },
            (_, ToolChoice::Auto) => State::Text {
                held: String::new(),
            },
        };
        Self {
            format: spec.format,
            state,
            count: 0,
            begun: false,
            is_json: spec.answer.is_some(),
        }
    }

    /// Takes more of the output.
    ///
    /// # Errors
    /// It does not follow the grammar.
    pub fn push(&mut self, output: &str, parsed: &mut Parsed) -> Result<(), GrammarError> {
        let mut rest = output;
        while let Some(c) = rest.chars().next() {
            let (head, tail) = rest.split_at(c.len_utf8());
            self.step(c, head, parsed)?;
            rest = tail;
        }
        Ok(())
    }

    /// The output has ended: text that was held back is text.
    pub fn finish(&mut self, parsed: &mut Parsed) {
        if let State::Text { held } = &mut self.state {
            parsed.text.push_str(&std::mem::take(held));
        }
    }

    /// Whether text is being read, where stop strings count.
    pub fn is_in_text(&self) -> bool {
        matches!(self.state, State::Text { .. })
    }

    fn step(&mut self, c: char, text: &str, parsed: &mut Parsed) -> Result<(), GrammarError> {
        let state = std::mem::replace(
            &mut self.state,
            State::Text {
                held: String::new(),
            },
        );
        self.state = match state {
            State::Text { held } => self.in_text(held, c, parsed),
            State::Fixed { rest, then } => in_fixed(rest, then, c)?,
            State::Name { seen } => self.in_name(seen, c, parsed)?,
            State::Arguments(place) => {
                let (place, ended) = place.step(c)?;
                push_arguments(parsed, self.count - 1, text);
                match (ended, self.format) {
                    (false, _) => State::Arguments(place),
                    (true, ToolFormat::Hermes) => State::Fixed {
                        rest: HERMES_CLOSE,
                        then: Then::Next,
                    },
                    (true, ToolFormat::Llama) => State::Fixed {
                        rest: LLAMA_CLOSE,
                        then: Then::Next,
                    },
                }
            }
        };
        Ok(())
    }

    fn in_text(&mut self, mut held: String, c: char, parsed: &mut Parsed) -> State {
        let is_first = !std::mem::replace(&mut self.begun, true);
        held.push(c);
        match self.format {
            ToolFormat::Hermes if self.is_json && is_first && c == '<' => State::Fixed {
                rest: &HERMES_OPEN[1..],
                then: Then::Head,
            },
            _ if self.is_json => {
                parsed.text.push_str(&held);
                State::Text {
                    held: String::new(),
                }
            }
            ToolFormat::Hermes if held.ends_with(HERMES_OPEN) => {
                parsed
                    .text
                    .push_str(&held[..held.len() - HERMES_OPEN.len()]);
                State::Fixed {
                    rest: HERMES_HEAD,
                    then: Then::Name,
                }
            }
            // A call is the whole output, so its first character tells.
            ToolFormat::Llama if is_first && c == '{' => State::Fixed {
                rest: &LLAMA_HEAD[1..],
                then: Then::Name,
            },
            format => {
                let keep = if format == ToolFormat::Hermes {
                    overlap(&held, HERMES_OPEN)
                } else {
                    0
                };
                let safe = held.len() - keep;
                parsed.text.push_str(&held[..safe]);
                held.drain(..safe);
                State::Text { held }
            }
        }
    }

    fn in_name(
        &mut self,
        mut seen: String,
        c: char,
        parsed: &mut Parsed,
    ) -> Result<State, GrammarError> {
        seen.push(c);
        let separator = match self.format {
            ToolFormat::Hermes => HERMES_ARGUMENTS,
            ToolFormat::Llama => LLAMA_ARGUMENTS,
        };
        if let Some(name) = seen.strip_suffix(separator) {
            let name = name.to_owned();
            parsed.pieces.push(CallPiece::Name {
                index: self.count,
                name,
            });
            self.count += 1;
            return Ok(State::Arguments(Place::default()));
        }
        if seen.len() > NAME_BYTES_MAX + separator.len() {
            return Err(unexpected(c, separator));
        }
        Ok(State::Name { seen })
    }
}

fn in_fixed(rest: &'static str, then: Then, c: char) -> Result<State, GrammarError> {
    let Some(rest) = rest.strip_prefix(c) else {
        return Err(unexpected(c, rest));
    };
    Ok(match then {
        _ if !rest.is_empty() => State::Fixed { rest, then },
        Then::Name => State::Name {
            seen: String::new(),
        },
        Then::Head => State::Fixed {
            rest: HERMES_HEAD,
            then: Then::Name,
        },
        Then::Next => State::Fixed {
            rest: HERMES_NEXT,
            then: Then::Head,
        },
    })
}

/// A place in the JSON of arguments, which are an object.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    depth: u32,
    in_string: bool,
    escaped: bool,
}

impl Place {
    /// The place behind a character, and whether the object ends with it.
    fn step(mut self, c: char) -> Result<(Self, bool), GrammarError> {
        match c {
            _ if self.escaped => self.escaped = false,
            '\\' if self.in_string => self.escaped = true,
            '"' => self.in_string = !self.in_string,
            '{' | '[' if !self.in_string => self.depth += 1,
            '}' | ']' if !self.in_string => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        let ended = self.depth == 0 && c == '}';
        if self.depth == 0 && !ended {
            return Err(unexpected(c, "{"));
        }
        Ok((self, ended))
    }
}

fn push_arguments(parsed: &mut Parsed, call: u32, text: &str) {
    if let Some(CallPiece::Arguments { index, part }) = parsed.pieces.last_mut()
        && *index == call
    {
        part.push_str(text);
        return;
    }
    parsed.pieces.push(CallPiece::Arguments {
        index: call,
        part: text.to_owned(),
    });
}

/// Length of the longest end of `text` that begins `tag`.
fn overlap(text: &str, tag: &str) -> usize {
    (1..tag.len().min(text.len() + 1))
        .rev()
        .find(|&length| text.ends_with(&tag[..length]))
        .unwrap_or(0)
}

fn unexpected(found: char, want: &str) -> GrammarError {
    GrammarError::Left {
        why: format!("{found:?} came where {want:?} was due in a call"),
    }
}
