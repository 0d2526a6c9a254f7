//! `weir dump`: everything in a store, record by record.

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use weir_gateway::dump_store;

/// Print everything in a data folder's store, one JSON object a line: runs, events, request keys, reservations, ledger, accounts.
///
/// No process may have a store in a folder open; the gateways of a PostgreSQL may be at work. Events hold what models answered; prompts
/// are left out.
#[derive(Debug, Parser)]
pub struct Args {
    /// The folder that was given to `weir up` as --data.
    #[arg(long, env = "WEIR_DATA", default_value = ".weir")]
    data: PathBuf,
    /// The store: an engine in the data folder (log, redb or sled), or postgres://USER:PASSWORD@HOST:PORT/DATABASE. Without it the
    /// engine that made the folder.
    #[arg(long, env = "WEIR_STORE", hide_env_values = true)]
    store: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// The store is in use or cannot be read.
pub fn run(args: &Args) -> Result<()> {
    let folder = args.data.join("store");
    let choice = args.store.as_deref();
    ensure!(
        folder.is_dir() || choice.is_some_and(|store| store.starts_with("postgres")),
        "there is no store in {}; name a folder that `weir up` has used with --data",
        args.data.display()
    );
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let now_ms = u64::try_from(now.as_millis())?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut written = Ok(());
    dump_store(choice, &folder, now_ms, &mut |record| {
        if written.is_ok() {
            written = writeln!(out, "{record}");
        }
    })?;
    written
        .and_then(|()| out.flush())
        .context("cannot write the records")
}
