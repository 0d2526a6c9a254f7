//! The gateway's own binary.

use std::process::ExitCode;

use clap::Parser;
use weir_gateway::cli::{self, GatewayArgs};

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
