//! The gateway in process, on a real store, with workers that speak the real protocol and decide nothing by themselves.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::too_many_lines,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::needless_pass_by_value,
    clippy::format_collect,
    reason = "helpers of tests fail as tests do, and tables are long"
)]

mod admission;
mod alerts;
mod batches;
mod bench;
mod cancel;
mod client;
mod connections;
mod content;
mod documents;
mod durable;
mod evidence;
mod examples;
mod formats;
mod gate;
mod https;
mod identity;
mod judges;
mod ledger;
mod native;
mod openai;
mod people;
mod policy;
mod refuse;
mod responses;
mod restart;
mod routing;
mod service;
mod shadow;
mod site;
mod slow;
mod tenants;
#[allow(dead_code, reason = "the crash tests share it and use more of it")]
mod worker;
mod worker_loss;
