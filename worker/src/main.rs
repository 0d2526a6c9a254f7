//! The worker's own binary; `weir worker` is the same.

use std::process::ExitCode;

use clap::Parser;
use weir_worker::cli::{self, WorkerArgs};

/// Runs one model version, or several, and serves sessions of gateways.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    worker: WorkerArgs,
}

fn main() -> ExitCode {
    cli::main(Cli::parse().worker)
}
