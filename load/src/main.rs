//! Load for gateways: thousands of streams over few threads, and what stands behind a gateway under load instead of a model.
//!
//! It must not know the gateway from inside: it speaks HTTP to it, or is a worker of it. Every token's text is ` t<unix nanoseconds>.<index>`,
//! so that a client on the same machine can tell how long an event took and whether one is missing, repeated or out of order.

#![allow(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a command line prints its result; sizes and times are bounded far below the types"
)]

mod client;
mod fake;
mod histogram;
mod net;
mod watch;

use clap::{Parser, Subcommand};

/// Puts load on a gateway, or stands behind one.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Opens streams and reads them to their end; prints one JSON object.
    Streams(client::streams::StreamsArgs),
    /// Sends requests that are answered at once: over some connections as fast as they are answered, or at a rate.
    Requests(client::requests::RequestsArgs),
    /// A worker without a model: rows at a steady pace for every run.
    Worker(fake::worker::WorkerArgs),
    /// A server of OpenAI's API without a model, for gateways that have no workers of ours.
    Backend(fake::backend::BackendArgs),
    /// The file that tells a gateway of that worker.
    Snapshot(fake::snapshot::SnapshotArgs),
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Streams(args) => {
            println!("{}", client::streams::run(&args)?);
            Ok(())
        }
        Command::Requests(args) => {
            println!("{}", client::requests::run(&args)?);
            Ok(())
        }
        Command::Worker(args) => fake::worker::run(&args),
        Command::Backend(args) => fake::backend::run(&args),
        Command::Snapshot(args) => {
            println!("{}", fake::snapshot::snapshot(&args)?);
            Ok(())
        }
    }
}
