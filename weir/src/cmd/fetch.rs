//! `weir fetch`: brings artifacts into the cache before anybody needs them, or carries them to where there is no network.

use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use jiff::Timestamp;
use serde_json::json;
use weir_api::{SignatureSource, ValidModelVersion};
use weir_fetch::{Fetched, Fetcher, Meter, Request, Signature, export, import, is_remote};
use weir_manifest::{
    Digest, SIGNATURE_FILE, TrustPolicy, TrustPolicySpec, VersionClaim, check_claim,
};
use weir_operator::model::claim::{claim, claimed_digest};
use weir_worker::PlanSignature;

use crate::cache::CacheArgs;
use crate::up::catalog::Catalog;
use crate::up::files::Directory;

/// Between two lines or updates of progress.
const SAY_EVERY: Duration = Duration::from_millis(500);

/// Fetch the artifacts of model versions into this machine's cache, where `weir up` finds them; or carry them where there is no network.
///
/// Reads the `ModelVersion` objects of a manifest file, or of every one in a directory. What comes is checked against the digests that
/// the object lists; where the `ConfigMap` weir-trust is among the manifests, signatures are checked before a byte is fetched.
#[derive(Debug, Parser)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true).args(["manifests", "import"]))]
pub struct Args {
    /// A manifest file, or a directory of them.
    manifests: Option<PathBuf>,
    /// Only the version whose object has this name.
    #[arg(long, value_name = "NAME", requires = "manifests")]
    version: Option<String>,
    /// Then write the versions to this folder, or to this file where the name ends in .tar, to be carried away.
    #[arg(long, value_name = "PATH", requires = "manifests")]
    export: Option<PathBuf>,
    /// Take versions from a folder or file that --export wrote.
    #[arg(long, value_name = "PATH", conflicts_with = "manifests")]
    import: Option<PathBuf>,
    #[command(flatten)]
    cache: CacheArgs,
    /// Form of the output.
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// One JSON object a line.
    Json,
}

/// Runs the command.
///
/// # Errors
/// The manifests cannot be read, or an artifact does not come.
pub fn run(args: &Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let done = runtime.block_on(async {
        if let Some(from) = &args.import {
            return take(args, from).await;
        }
        let manifests = args
            .manifests
            .as_deref()
            .context("name a manifest file or a directory of them")?;
        let (versions, trust) = read(manifests, args.version.as_deref())?;
        let fetcher = args.cache.fetcher()?;
        for version in &versions {
            bring(args, &fetcher, version, trust.as_ref())
                .await
                .with_context(|| format!("cannot fetch ModelVersion {:?}", version.name))?;
        }
        Ok(())
    });
    runtime.shutdown_background();
    done
}

async fn take(args: &Args, from: &Path) -> Result<()> {
    let cache = args.cache.cache()?;
    let imported = import(&cache, from)
        .await
        .map_err(|error| anyhow::anyhow!(error.message()))?;
    for (name, record, _) in imported {
        let bytes: u64 = record.all().map(|file| file.size).sum();
        let dir = cache.model(&name);
        if args.output.is_some() {
            println!(
                "{}",
                json!({"event": "imported", "digest": format!("sha256:{name}"), "uri": record.uri, "bytes": bytes, "dir": dir})
            );
        } else {
            println!(
                "imported sha256:{name}, {bytes} bytes of {}, in {}",
                record.uri,
                dir.display()
            );
        }
    }
    Ok(())
}

/// The versions to fetch, and who may sign, where the manifests say so.
fn read(
    path: &Path,
    only: Option<&str>,
) -> Result<(Vec<ValidModelVersion>, Option<TrustPolicySpec>)> {
    let mut directory = Directory::default();
    if path.is_dir() {
        directory
            .refresh(path)
            .map_err(|problem| anyhow::anyhow!("{problem}"))?;
    } else {
        directory.read_file(path);
    }
    let mut catalog = Catalog::default();
    let problems = catalog.update(directory.objects(), Timestamp::now());
    if let Some(problem) = directory.problems().next() {
        bail!("{problem}");
    }
    let mut versions: Vec<_> = catalog
        .versions
        .into_values()
        .map(|entry| entry.valid)
        .collect();
    if let Some(only) = only {
        versions.retain(|version| version.name == only);
    }
    if versions.is_empty() {
        // Why there is none, if something is wrong with one.
        if let Some(problem) = problems.iter().find(|problem| {
            problem
                .object
                .as_ref()
                .is_some_and(|object| object.starts_with("ModelVersion"))
        }) {
            bail!("{problem}");
        }
        bail!(
            "{} has no ModelVersion{}",
            path.display(),
            only.map(|name| format!(" {name:?}")).unwrap_or_default()
        );
    }
    let trust = catalog.trust.map(|(file, entries)| {
        TrustPolicySpec::from_config_map(&entries)
            .with_context(|| format!("cannot use the ConfigMap weir-trust in {}", file.display()))
    });
    Ok((versions, trust.transpose()?))
}

async fn bring(
    args: &Args,
    fetcher: &Fetcher,
    version: &ValidModelVersion,
    trust: Option<&TrustPolicySpec>,
) -> Result<()> {
    let uri = &version.manifest.artifact_uri;
    if !is_remote(uri) {
        ensure!(
            args.export.is_none(),
            "{uri} is not fetched: carry its folder as it is"
        );
        say(
            args,
            &json!({"event": "local", "version": version.name, "uri": uri}),
            &format!("{}: {uri} is not fetched", version.name),
        );
        return Ok(());
    }
    let claim = claim(version).map_err(anyhow::Error::msg)?;
    let digest: Digest = claimed_digest(version)
        .parse()
        .context("spec.manifest.files does not list weir-manifest.json")?;
    let name = Fetcher::name_of(&digest);
    let policy = trust.cloned().map(TrustPolicy::new).transpose()?;
    let accept = |bytes: &[u8]| check(bytes, policy.as_ref(), &claim);
    let signature = match &version.signature {
        SignatureSource::Bundle(text) => {
            let bundle = PlanSignature::Bundle(text.clone())
                .decode()
                .context("spec.signature.bundle is not base64")?;
            accept(&bundle).map_err(anyhow::Error::msg)?;
            None
        }
        SignatureSource::File(file) if file.is_empty() => Some(SIGNATURE_FILE),
        SignatureSource::File(file) => Some(file.as_str()),
    };
    let path = signature.map(str::parse).transpose()?;
    let request = Request {
        uri,
        name: &name,
        files: &claim.files,
        signature: path.map(|path| Signature {
            path,
            accept: &accept,
        }),
    };
    let meter = Meter::default();
    let came = watch(args, version, fetcher.fetch(&request, &meter), &meter).await;
    let Fetched { dir, lease } =
        came.map_err(|error| anyhow::anyhow!("{}: {}", error.reason(), error.message()))?;
    tell(args, version, (&digest, policy.is_some()), &meter, &dir);
    if let Some(to) = &args.export {
        export(fetcher.cache(), &name, to).map_err(|error| anyhow::anyhow!(error.message()))?;
        say(
            args,
            &json!({"event": "exported", "version": version.name, "to": to}),
            &format!("{}: written to {}", version.name, to.display()),
        );
    }
    drop(lease);
    Ok(())
}

/// Says that a version is here.
fn tell(
    args: &Args,
    version: &ValidModelVersion,
    (digest, is_checked): (&Digest, bool),
    meter: &Meter,
    dir: &Path,
) {
    let (reading, name) = (meter.read(), &version.name);
    let (checked, note) = if is_checked {
        ("checked", "")
    } else {
        let note = "\nits signature was not checked: there is no ConfigMap weir-trust among the manifests; `weir up` checks it";
        ("unchecked", note)
    };
    let value = json!({
        "event": "fetched", "version": name, "digest": digest, "bytes": reading.total,
        "receivedBytes": reading.received, "dir": dir, "signature": checked,
    });
    let (bytes, now, dir) = (reading.total, reading.received, dir.display());
    let text = format!("{name}: {bytes} bytes, {now} of them fetched now, in {dir}{note}");
    say(args, &value, &text);
}

/// Without a policy anything may be the signature of a version; whoever serves it checks.
fn check(bytes: &[u8], policy: Option<&TrustPolicy>, claim: &VersionClaim) -> Result<(), String> {
    let Some(policy) = policy else { return Ok(()) };
    let checked = check_claim(bytes, policy, Timestamp::now(), claim);
    checked
        .map(drop)
        .map_err(|error| format!("{}: {}", error.reason(), error.condition_message()))
}

/// Tells how far it is while it is going on.
async fn watch<T>(
    args: &Args,
    version: &ValidModelVersion,
    work: impl Future<Output = T>,
    meter: &Meter,
) -> T {
    let mut work = std::pin::pin!(work);
    let is_terminal = args.output.is_none() && std::io::stderr().is_terminal();
    let mut last = meter.read();
    loop {
        if let Ok(done) = tokio::time::timeout(SAY_EVERY, &mut work).await {
            if is_terminal {
                eprint!("\r\u{1b}[K");
            }
            return done;
        }
        let (reading, name) = (meter.read(), &version.name);
        if is_terminal {
            let percent = reading.done * 100 / reading.total.max(1);
            let every = u64::try_from(SAY_EVERY.as_millis()).unwrap_or(1);
            let speed = (reading.received - last.received) * 1000 / every;
            eprint!("\r\u{1b}[K{name}: {percent:3} %  {reading}  {speed} bytes/s");
            drop(std::io::stderr().flush());
        } else if args.output.is_some() && reading != last {
            let value = json!({
                "event": "fetching", "version": name, "doneBytes": reading.done, "totalBytes": reading.total,
                "receivedBytes": reading.received, "trouble": reading.trouble,
            });
            println!("{value}");
        }
        last = reading;
    }
}

fn say(args: &Args, value: &serde_json::Value, text: &str) {
    if args.output.is_some() {
        println!("{value}");
    } else {
        println!("{text}");
    }
}
