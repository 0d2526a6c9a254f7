//! `weir dump`: everything in a store, record by record.

use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use weir_store::Engine;

/// Print everything in a data folder's store, one JSON object a line: runs, events, request keys, reservations, ledger, accounts.
///
/// No process may have the store open. Events hold what models answered; prompts are left out.
#[derive(Debug, Parser)]
pub struct Args {
    /// The folder that was given to `weir up` as --data.
    #[arg(long, env = "WEIR_DATA", default_value = ".weir")]
    data: PathBuf,
    /// Store engine: log, redb or sled.
    #[arg(long, env = "WEIR_STORE", default_value_t = Engine::default().as_str().to_owned())]
    store: String,
}

/// Runs the command.
///
/// # Errors
/// The store is in use or cannot be read.
pub fn run(args: &Args) -> Result<()> {
    let folder = args.data.join("store");
    ensure!(
        folder.is_dir(),
        "there is no store in {}; name a folder that `weir up` has used with --data",
        args.data.display()
    );
    let engine: Engine = args.store.parse().map_err(anyhow::Error::msg)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let now_ms = u64::try_from(now.as_millis())?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut written = Ok(());
    weir_store::dump(&folder, engine, now_ms, &mut |record| {
        if written.is_ok() {
            written = writeln!(out, "{record}");
        }
    })?;
    written
        .and_then(|()| out.flush())
        .context("cannot write the records")
}
