//! Weights, tokenizer, chat template and the CPU forward pass.
//!
//! This crate must not know scheduling decisions, networks, tenants or async. Read [`ModelText`] (the text side, without
//! weights) and [`backend::Backend`] with its implementation [`CpuBackend`] first.

pub mod adapter;
pub mod backend;
pub mod config;
pub mod cpu;
pub mod files;
mod footprint;
#[doc(hidden)]
pub mod fuzz;
pub mod gguf;
pub mod load;
pub mod network;
pub mod quant;
pub mod reference;
mod sampler;
pub mod template;
pub mod text;
pub mod tokenizer;
pub mod weights;

#[cfg(test)]
mod testing;

pub use adapter::{Adapter, AdapterError};
pub use cpu::{CpuBackend, CpuOptions, CpuThreads, KvType, WeightFormat};
pub use files::{FileBytes, FileSource, OpenFiles};
pub use footprint::{Footprint, footprint};
pub use load::{LoadError, load_cpu, load_cpu_on, load_network, network_config};
pub use text::{ModelText, TextError};
