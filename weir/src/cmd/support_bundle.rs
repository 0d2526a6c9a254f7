//! `weir support-bundle`: what somebody who helps needs to see, and nothing that is a secret or that a tenant wrote.

mod cluster;
mod gather;
mod redact;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Parser;

use crate::source::Where;
use gather::{Gathered, gather};

/// Write one file with what somebody who helps needs to see: versions, configuration, status of objects, metrics, rollouts, ends of logs.
///
/// Nothing in it is a secret or was written by a tenant: values of Secrets, passwords, keys and tokens are replaced by [left out], and
/// prompts, outputs, request keys and metadata are never asked for. Names stay: of tenants, models, pools, hosts and files. It is a tar
/// archive; `tar -tf` lists it and `tar -xOf FILE bundle/NAME` shows a part: look at it before you send it. Of a cluster it also takes the
/// status of deployments and pods, events and the ends of logs, with the rights of who asks.
#[derive(Debug, Parser)]
pub struct Args {
    /// Where to write it.
    #[arg(short, long, value_name = "FILE", default_value = "weir-support.tar")]
    output: PathBuf,
    #[command(flatten)]
    place: Where,
    /// Folder of manifests to take along, without the values of Secrets.
    #[arg(long, value_name = "FOLDER")]
    manifests: Option<PathBuf>,
    /// A log whose end is taken along; may be given several times. `weir up` logs to stderr: name the file it goes to.
    #[arg(long, value_name = "FILE")]
    log: Vec<PathBuf>,
    /// Lines of each log.
    #[arg(long, value_name = "COUNT", default_value_t = 2000)]
    log_lines: usize,
}

/// Runs the command.
///
/// # Errors
/// The kubeconfig cannot be used, or the file cannot be written. What cannot be gathered is noted in it and does not keep the rest out.
pub fn run(args: &Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let gathered = runtime.block_on(gather(args))?;
    write(&gathered, &args.output)
        .with_context(|| format!("cannot write {}", args.output.display()))?;
    for missing in &gathered.missing {
        println!("not in it: {missing}");
    }
    println!(
        "{} with {} files; look at it before you send it: tar -xvf {0}",
        args.output.display(),
        gathered.files.len()
    );
    Ok(())
}

fn write(gathered: &Gathered, output: &std::path::Path) -> std::io::Result<()> {
    let mut archive = tar::Builder::new(std::fs::File::create(output)?);
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
    for (name, text) in &gathered.files {
        let mut header = tar::Header::new_ustar();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(now);
        header.set_cksum();
        archive.append_data(&mut header, format!("bundle/{name}"), text.as_bytes())?;
    }
    archive.into_inner()?.sync_all()
}
