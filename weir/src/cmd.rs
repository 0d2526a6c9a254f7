//! The subcommands of `weir`, one module each.

pub mod audit;
pub mod capacity;
pub mod chat;
pub mod dump;
pub mod fetch;
pub mod get;
pub mod key;
pub mod keygen;
pub mod quantize;
pub mod rollout;
pub mod sign;
pub mod support_bundle;
pub mod tenant;
pub mod top;
pub mod up;
pub mod usage;
pub mod verify;
