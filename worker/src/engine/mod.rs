//! The engine thread and what it holds: runs, their unacknowledged rows, and the sessions that read them.

pub(crate) mod adapters;
pub(crate) mod command;
mod commands;
pub(crate) mod core;
mod cost;
mod held;
mod masks;
pub(crate) mod observe;
pub(crate) mod outbox;
mod output;
mod pace;
pub(crate) mod request;
mod run;
mod sessions;
pub(crate) mod snapshot;
mod spans;
mod step;
pub(crate) mod thread;
mod window;
