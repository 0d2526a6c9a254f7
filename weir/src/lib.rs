//! The one command for people: everything on one machine, signatures, a terminal chat, and the columns of kubectl.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line talks through its standard streams"
)]

pub mod client;
pub mod cmd;
pub mod columns;
pub mod up;
