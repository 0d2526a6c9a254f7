//! Component tests of the worker: real sessions over a Unix socket, the real scheduler, and a backend that is a function.

mod fake;
mod flow;
mod gateway;
mod harness;
mod output;
mod ownership;
