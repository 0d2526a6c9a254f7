//! The subcommands of `weir`, one module each.

pub mod chat;
pub mod get;
