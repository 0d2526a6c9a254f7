//! The one command for people.

#![allow(
    clippy::print_stderr,
    reason = "a command line says on stderr why it failed"
)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use weir::cmd::{
    audit, capacity, chat, dump, fetch, get, key, keygen, quantize, rollout, sign, support_bundle,
    tenant, top, up, usage, verify,
};

/// Nearly all that a gateway allocates is small, lives for one event and is freed by another thread than made it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Serve signed language models to tenants with budgets, on one machine or on a cluster.
#[derive(Debug, Parser)]
#[command(name = "weir", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Up(up::Args),
    Chat(chat::Args),
    Get(get::Args),
    Usage(usage::Args),
    Audit(audit::Args),
    Tenant(tenant::Args),
    Rollout(rollout::Args),
    Top(top::Args),
    Keygen(keygen::Args),
    Quantize(quantize::Args),
    Sign(sign::Args),
    Verify(verify::Args),
    Key(key::Args),
    Fetch(fetch::Args),
    Capacity(capacity::Args),
    Dump(dump::Args),
    SupportBundle(support_bundle::Args),
    /// Run one worker. `weir up` starts these itself.
    #[command(hide = true)]
    Worker(Box<weir_worker::cli::WorkerArgs>),
    /// Serve clients in front of workers that are running, alone or as one of several on one store.
    Gateway(Box<weir_gateway::cli::GatewayArgs>),
    /// Look after a namespace of a cluster: verify versions, run their workers, move traffic between them.
    Operator(Box<weir_operator::cli::OperatorArgs>),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Worker(args) => return weir_worker::cli::main(*args),
        Command::Gateway(args) => return weir_gateway::cli::main(*args),
        Command::Operator(args) => return weir_operator::cli::main(*args),
        Command::Up(args) => up::run(args),
        Command::Chat(args) => chat::run(args).map(|()| ExitCode::SUCCESS),
        Command::Get(args) => get::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Usage(args) => usage::run(args).map(|()| ExitCode::SUCCESS),
        Command::Audit(args) => audit::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Tenant(args) => tenant::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Rollout(args) => rollout::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Top(args) => top::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Keygen(args) => keygen::run(args).map(|()| ExitCode::SUCCESS),
        Command::Quantize(args) => quantize::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Sign(args) => sign::run(args).map(|()| ExitCode::SUCCESS),
        Command::Verify(args) => verify::run(args).map(|()| ExitCode::SUCCESS),
        Command::Fetch(args) => fetch::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Capacity(args) => capacity::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Dump(args) => dump::run(&args).map(|()| ExitCode::SUCCESS),
        Command::SupportBundle(args) => support_bundle::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Key(args) => key::run(args).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
