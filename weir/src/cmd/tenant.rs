//! `weir tenant`: what is asked for on behalf of a tenant.

use anyhow::Result;
use clap::{Parser, Subcommand};
use serde_json::json;

use super::usage::user;
use crate::client::Admin;

/// What is asked for on behalf of a tenant.
#[derive(Debug, Parser)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Purge(Purge),
}

/// Delete the content of a tenant's ended runs now: prompts, answers, labels. Rows, request keys, usage and ledger stay.
#[derive(Debug, clap::Args)]
struct Purge {
    /// Whose content.
    tenant: String,
    /// Only of runs accepted before this time; all when absent.
    #[arg(long)]
    before: Option<String>,
    /// Cancel live runs of that time first; they keep their content otherwise.
    #[arg(long)]
    cancel_live: bool,
    #[command(flatten)]
    admin: Admin,
}

/// Runs the command.
///
/// # Errors
/// Nothing answers, or the store refuses.
pub fn run(args: &Args) -> Result<()> {
    let Command::Purge(purge) = &args.command;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let order = json!({"tenant": purge.tenant, "before": purge.before, "cancelLive": purge.cancel_live, "actor": user()});
    let deleted = runtime.block_on(purge.admin.server().post("/tenant/purge", &order))?;
    println!(
        "{} runs lost their content, {} live runs keep theirs",
        deleted["runs"], deleted["live"]
    );
    match deleted["scrubbedLater"].as_str() {
        None => println!("the store's files hold none of it any more"),
        Some(why) => println!("its bytes may still be in the store's files: {why}"),
    }
    Ok(())
}
