//! `weir tenant`: what is asked for on behalf of a tenant.

use anyhow::Result;
use clap::{Parser, Subcommand};
use serde_json::json;

use super::usage::user;
use crate::client;

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
    /// Where the admin port is.
    #[arg(long, env = "WEIR_ADMIN", default_value = "http://127.0.0.1:9090")]
    admin: String,
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
    let url = format!("{}/tenant/purge", purge.admin.trim_end_matches('/'));
    let order = json!({"tenant": purge.tenant, "before": purge.before, "cancelLive": purge.cancel_live, "actor": user()});
    let deleted = runtime.block_on(async {
        client::json(client::send("POST", &url, &[], Some(&order)).await?).await
    })?;
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
