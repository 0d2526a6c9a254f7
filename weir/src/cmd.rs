//! The subcommands of `weir`, one module each.

pub mod chat;
