//! The operator's own binary.

use std::process::ExitCode;

use clap::Parser;
use weir_operator::cli::{self, OperatorArgs};

/// Turns model versions, pools and quotas into workers, and moves traffic between versions.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    operator: OperatorArgs,
}

fn main() -> ExitCode {
    cli::main(Cli::parse().operator)
}
