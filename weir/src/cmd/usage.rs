//! `weir usage`: what a tenant used, whether the ledger can be believed, and the repair of a budget.

mod offline;
mod show;
mod verify;

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use serde_json::{Value, json};

use crate::client::{self, Admin};
pub(crate) use verify::verify;

/// Show a tenant's usage, reconciled with the event log; verify the ledger's hash chain; repair a budget.
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    admin: Admin,
    #[command(flatten)]
    show: Show,
}

#[derive(Debug, Subcommand)]
enum Command {
    Repair(Repair),
}

#[derive(Debug, clap::Args)]
struct Show {
    #[command(flatten)]
    access: client::Access,
    /// Ask the admin port for this tenant instead of the gateway with a key; compares every record, not only the newest.
    #[arg(long)]
    tenant: Option<String>,
    /// Runs accepted at or after this time.
    #[arg(long)]
    from: Option<String>,
    /// Runs accepted before this time.
    #[arg(long)]
    to: Option<String>,
    /// Add billed runs up by this.
    #[arg(long, value_enum, default_value_t = By::Model)]
    by: By,
    /// `json` prints the answer as it is.
    #[arg(short, long, value_enum)]
    output: Option<Output>,
    /// Recompute the ledger's hash chain and name the first broken record. Of the running gateway, or of --export or --data.
    #[arg(long)]
    verify: bool,
    /// With --verify: a file that `GET /usage/ledger` was saved to.
    #[arg(long, requires = "verify", conflicts_with = "data")]
    export: Option<PathBuf>,
    /// With --verify: a data folder that no gateway has open; needs --tenant.
    #[arg(long, requires = "verify", requires = "tenant")]
    data: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    /// Model and version.
    Model,
    /// The same.
    Version,
    /// UTC day of acceptance.
    Day,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// As the server gave it.
    Json,
}

/// Derive a tenant's budget anew from its ledger and its live runs, and show what differs. Never changes the ledger.
#[derive(Debug, clap::Args)]
struct Repair {
    /// Whose budget.
    #[arg(long)]
    tenant: String,
    /// Only say what would be changed.
    #[arg(long)]
    dry_run: bool,
    /// A data folder that no gateway has open. Without it the running gateway does it.
    #[arg(long)]
    data: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// Nothing answers, the chain is broken, or the store is in use.
pub fn run(args: Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match args.command {
            Some(Command::Repair(repair)) => self::repair(&args.admin, &repair).await,
            None if args.show.verify => check(&args.admin, &args.show).await,
            None => show(&args.admin, &args.show).await,
        }
    })
}

async fn show(admin: &Admin, args: &Show) -> Result<()> {
    let by = match args.by {
        By::Model => "model",
        By::Version => "version",
        By::Day => "day",
    };
    let mut query = format!("groupBy={by}");
    for (name, time) in [("from", &args.from), ("to", &args.to)] {
        if let Some(time) = time {
            query = format!("{query}&{name}={}", escaped(time));
        }
    }
    let usage = if let Some(tenant) = &args.tenant {
        let of = escaped(tenant);
        let path = format!("/usage?tenant={of}&check=all&{query}");
        admin.server().get(&path).await?
    } else {
        args.access.server().get(&format!("/usage?{query}")).await?
    };
    if args.output == Some(Output::Json) {
        println!("{usage:#}");
    } else {
        print!("{}", show::text(&usage));
    }
    Ok(())
}

async fn check(admin: &Admin, args: &Show) -> Result<()> {
    let verified = if let Some(file) = &args.export {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read {}", file.display()))?;
        verify(&text)?
    } else if let (Some(data), Some(tenant)) = (&args.data, &args.tenant) {
        verify(&offline::export(data, tenant).await?)?
    } else {
        verify(&pages(admin, args).await?)?
    };
    println!("{verified}");
    Ok(())
}

/// The whole chain of a running gateway.
async fn pages(admin: &Admin, args: &Show) -> Result<String> {
    match &args.tenant {
        Some(tenant) => {
            let path = format!("/usage/ledger?tenant={}&", escaped(tenant));
            admin.server().pages(&path).await
        }
        None => args.access.server().pages("/usage/ledger?").await,
    }
}

async fn repair(admin: &Admin, args: &Repair) -> Result<()> {
    let actor = user();
    let repaired = if let Some(data) = &args.data {
        offline::repair(data, &args.tenant, &actor, !args.dry_run).await?
    } else {
        let order = json!({"tenant": args.tenant, "apply": !args.dry_run, "actor": actor});
        admin.server().post("/usage/repair", &order).await?
    };
    let changes = repaired["changes"]
        .as_array()
        .context("the answer is no list of changes; is --admin the admin port of `weir up`?")?;
    for change in changes {
        println!(
            "{}: {} -> {}",
            change["field"].as_str().unwrap_or_default(),
            change["old"],
            change["new"]
        );
    }
    match (changes.is_empty(), repaired["applied"] == true) {
        (true, _) => println!("the budget of {} agrees with its ledger", args.tenant),
        (false, true) => println!("repaired, and noted in the audit log"),
        (false, false) if args.dry_run => println!("nothing was changed: this was a dry run"),
        (false, false) => bail!("the repair was not applied; try again"),
    }
    Ok(())
}

/// For the audit log.
pub(crate) fn user() -> String {
    let name = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    name.unwrap_or_else(|_| format!("uid {}", rustix::process::getuid().as_raw()))
}

/// Text in a query.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// A number of an answer, as a cell.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}
