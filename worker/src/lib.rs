//! The worker: one engine, the model it was given, and the sessions of the gateways that use it.
//!
//! It must not know its clients' HTTP, tenants' money, durable storage or Kubernetes: a gateway tells it what to run, and makes durable
//! what it says. Read [`run`] first, then `engine::core::Engine` (one step) and `engine::commands` (who may do what to a run).
//!
//! Threads: one engine thread owns scheduler, backend, runs and sessions, and locks nothing. Two runtime threads carry gRPC. They
//! meet in one bounded ring of commands, one bounded outbox per session, and a snapshot of figures.

mod adapters;
mod announce;
pub mod cli;
mod config;
mod device;
mod engine;
mod error;
mod grammar;
mod listen;
mod load;
mod metrics;
mod server;
mod session;
mod start;

pub use announce::Announcer;
pub use config::{
    Callers, Config, DeviceChoice, DeviceSettings, EngineSettings, KvDtype, WeightFormat,
};
pub use engine::snapshot::Snapshot;
pub use error::WorkerError;
pub use listen::{Listen, ParseListenError};
pub use load::{
    LoadError, LoadPlan, Loaded, PlanFetch, PlanPlacement, PlanSignature, load, open_files,
};
pub use server::Ended;
pub use start::{Serving, run, serve_loaded};
