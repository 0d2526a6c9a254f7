//! What a model's output must look like: a JSON schema or a regular expression, made into masks over a vocabulary.
//!
//! It must not know sampling, scheduling or networks.

mod tools;

pub use tools::{Tool, ToolChoice, ToolFormat, ToolSpec};
