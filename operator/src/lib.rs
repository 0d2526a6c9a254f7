//! The operator: what people apply to a cluster becomes workers, tables of gateways and a status that tells the story.
//!
//! It must not be on the way of a request, write a `spec`, or decide what `weir_rollout` decides. Read [`world`] first (what is watched),
//! then [`model`] (one look at a model: see, verify, decide, write down, carry out, tell), then [`apply`] (the writes and their fences).

pub mod apply;
mod authority;
pub mod board;
pub mod cli;
pub mod compare;
mod controllers;
pub mod events;
pub mod fetches;
pub mod figures;
pub mod gateways;
pub mod http;
pub mod leader;
pub mod log;
pub mod model;
pub mod names;
pub mod pool;
pub mod queue;
pub mod quota;
mod request;
pub mod status;
pub mod statuses;
pub mod verdicts;
pub mod verify;
pub mod world;

pub use model::project;
pub use request::request;
