//! The gateway: authenticates, tokenizes, reserves, admits, routes, streams, replays and bills.
//!
//! It must not load weights, verify signatures or decide rollouts: what it serves comes in a [`Snapshot`]. Read [`Gateway`] first, then
//! `core.rs` for how a run moves through it, then `link/` for how its events become durable.
#![allow(
    clippy::cast_possible_truncation,
    reason = "narrowing happens after a range check or on lengths that are bounded"
)]

mod admin;
mod admit;
mod alerts;
mod audit;
mod auth;
mod batches;
pub mod cli;
mod clock;
mod cluster;
mod config;
mod console;
mod content;
mod control;
mod core;
mod dialogue;
mod directory;
mod error;
mod evidence;
mod fetch;
mod file;
mod files;
mod gateway;
mod http;
mod hub;
mod link;
mod links;
mod metrics;
mod native;
mod objects;
mod observed;
mod openai;
mod policy;
mod reconcile;
mod recover;
mod replicas;
mod settings;
mod shadow;
mod snapshot;
mod stores;
mod tables;
mod text;
mod timers;
mod trace;
mod vllm_metrics;
mod worker_metrics;

pub use alerts::{Alerts, Webhook};
pub use auth::{AccountRule, ClaimRule, IdentitySpec, IssuerSpec, ServiceAccountSpec};
pub use cluster::ClusterError;
pub use config::Config;
pub use dialogue::Dialogue;
pub use file::{SnapshotFile, SnapshotFileError};
pub use gateway::{Gateway, WorkerView};
pub use http::tls::{Tls, TlsError, TlsFiles};
pub use objects::{Secrets, tenant};
pub use policy::{
    Builtin, CheckerSpec, OnFailure, PolicyError, PolicySpec, RuleAction, RulePhase, RuleSpec,
};
pub use settings::{AliasSpec, CorsSpec, Settings, SettingsError, SettingsSpec};
pub use snapshot::{
    ApiKey, KeyRules, Mirror, ModelPermission, ModelRoute, Pool, Priority, QueueBound,
    SamplingDefaults, ServedVersion, Snapshot, Tenant, WorkerAddress, WorkerEndpoint,
};
pub use stores::{StoreChoice, dump_store, open_store};
pub use tables::SoleTables;
pub use text::{Message, PromptText, TextError};
