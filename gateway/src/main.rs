//! The gateway's own binary.

use std::process::ExitCode;

use clap::Parser;
use weir_gateway::cli::{self, GatewayArgs};

/// Nearly all that is allocated is small, lives for one event and is freed by another thread than made it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Serves inference over HTTP in front of workers.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    gateway: GatewayArgs,
}

fn main() -> ExitCode {
    cli::main(Cli::parse().gateway)
}
