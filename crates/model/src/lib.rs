//! Weights, tokenizer, chat template and the CPU forward pass.
//!
//! This crate must not know scheduling decisions, networks, tenants or async. Read [`ModelText`] (the text side, without
//! weights) and [`backend::Backend`] first.

pub mod backend;
pub mod config;
pub mod files;
pub mod template;
pub mod text;
pub mod tokenizer;

#[cfg(test)]
mod testing;

pub use files::{FileBytes, FileSource, OpenFiles};
pub use text::{ModelText, TextError};
