//! Weights, tokenizer, chat template and the CPU forward pass.
//!
//! This crate must not know scheduling decisions, networks, tenants or async. Read [`backend::Backend`] first.

pub mod backend;
