//! What a model's output must look like: a JSON schema, a regular expression, a grammar or calls of tools, made into masks over a
//! vocabulary.
//!
//! It must not know sampling, scheduling or networks. A [`Source`] is what a client asked for; a [`Vocabulary`] compiles it to a
//! [`Matcher`], which follows one output token by token. Everything here is bounded by size and by counted work, never by time
//! alone, so the same grammar does the same on every machine. What cannot be expressed exactly is refused with its place.

mod calls;
mod error;
mod lark;
mod matcher;
mod narrow;
mod schema;
mod source;
mod tools;
mod vocabulary;

pub use calls::{CallParser, CallPiece, Parsed};
pub use error::{GrammarError, SchemaFault};
pub use matcher::{Mask, Matcher};
pub use source::Source;
pub use tools::{Tool, ToolChoice, ToolFormat, ToolSpec};
pub use vocabulary::Vocabulary;

#[cfg(test)]
mod tests;
