//! The one command for people: everything on one machine, signatures, a terminal chat, and the columns of kubectl.
//!
//! It must not decide what the libraries below decide (who is admitted, what is verified, what a step computes): it joins them and
//! tells people. Read [`up`] first, whose loop is [`up::serve::Serving`]; each command is a module of [`cmd`].

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line talks through its standard streams"
)]

pub mod cache;
pub mod client;
pub mod cmd;
pub mod columns;
pub mod source;
pub mod up;
