//! The worker: an engine for each version it was given, and the sessions of the gateways that use it.
//!
//! It must not know its clients' HTTP, tenants' money, durable storage or Kubernetes: a gateway tells it what to run, and makes durable
//! what it says. Read [`run`] first, then `engine::core::Engine` (one step) and `engine::commands` (who may do what to a run).
//!
//! Threads: one engine thread for each version owns its scheduler, backend, runs and sessions, and locks nothing but the turn on the CPU's
//! threads, which engines of one process share. Two runtime threads carry gRPC. They
//! meet in one bounded ring of commands, one bounded outbox per session, and a snapshot of figures.

mod adapters;
mod announce;
pub mod cli;
mod config;
mod device;
mod doors;
mod engine;
mod error;
mod folder;
mod grammar;
mod listen;
mod load;
mod metrics;
mod server;
mod session;
mod several;
mod start;

pub use announce::Announcer;
pub use config::{
    Callers, Config, DeviceChoice, DeviceSettings, EngineSettings, Holds, KvDtype, WeightFormat,
};
pub use engine::snapshot::Snapshot;
pub use error::WorkerError;
pub use listen::{Listen, ParseListenError};
pub use load::{
    LoadError, LoadPlan, Loaded, PlanFetch, PlanPlacement, PlanSignature, load, open_files,
};
pub use server::Ended;
pub use start::{Serving, run, serve_loaded};
