//! `weir verify`: is this directory what a trusted signer signed?

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Parser;
use serde::Deserialize as _;
use serde_json::json;
use serde_yaml::Value;
use weir_manifest::{
    Digest, Placement, PublicKey, SIGNATURE_FILE, SignatureSource, Signer, TrustPolicy,
    VerifyError, VerifyRequest, VersionClaim, open_signed, open_verified, verify_directory,
};

/// Verify a signed model directory.
///
/// Prints what was verified and ends with 0, or names the fault and ends with 1. Signatures of the Python package model-signing (methods key
/// and certificate) are accepted too, also without weir-manifest.json.
#[derive(Debug, Parser)]
#[command(group = clap::ArgGroup::new("trusted").required(true).args(["key", "trust", "certificate_roots"]))]
pub struct Args {
    /// Signed directory.
    dir: PathBuf,
    /// Trust this public key (PEM) for every model.
    #[arg(long, value_name = "PUB")]
    key: Option<PathBuf>,
    /// Trust what this policy says: its YAML, or the `ConfigMap` named `weir-trust`.
    #[arg(long, value_name = "FILE")]
    trust: Option<PathBuf>,
    /// Trust signing certificates under these roots (PEM) for every model.
    #[arg(long, value_name = "FILE")]
    certificate_roots: Option<PathBuf>,
    /// Name of the signature in DIR.
    #[arg(long, value_name = "NAME", default_value = SIGNATURE_FILE)]
    signature: String,
    /// Also compare with the `ModelVersion` in this YAML file.
    #[arg(long, value_name = "FILE")]
    model_version: Option<PathBuf>,
    /// Which model the signer must be permitted to sign, for directories without weir-manifest.json.
    #[arg(long)]
    model: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// What was verified.
struct Report {
    /// None without a weir-manifest.json.
    version: Option<(String, u32, Digest)>,
    signer: Signer,
    files: Vec<(String, u64, Digest)>,
}

/// Runs the command.
///
/// # Errors
/// The directory is not what was signed, or an argument cannot be read.
#[expect(
    clippy::needless_pass_by_value,
    reason = "every subcommand takes its arguments by value"
)]
pub fn run(args: Args) -> Result<()> {
    let policy = policy(&args)?;
    let claim = args.model_version.as_deref().map(read_claim).transpose()?;
    let request = VerifyRequest {
        dir: &args.dir,
        signature: SignatureSource::File(&args.signature),
        policy: &policy,
        now: jiff::Timestamp::now(),
        // Nothing is served from here, so the content need not outlive the check.
        placement: Placement::ReadOnlyVolume,
        progress: None,
    };
    match verify(&request, claim.as_ref(), args.model.as_deref()) {
        Ok(report) => print(&report, args.json),
        Err(error) => {
            if args.json {
                let message = error.condition_message();
                println!(
                    "{}",
                    json!({"verified": false, "reason": error.reason(), "message": message, "remedy": error.remedy()})
                );
            }
            let (reason, remedy) = (error.reason(), error.remedy());
            Err(anyhow::Error::new(error).context(format!(
                "{} is refused: {reason} ({remedy})",
                args.dir.display()
            )))
        }
    }
}

fn verify(
    request: &VerifyRequest<'_>,
    claim: Option<&VersionClaim>,
    model: Option<&str>,
) -> Result<Report, VerifyError> {
    let opened = match claim {
        Some(claim) => open_verified(request, claim),
        None => open_signed(request),
    };
    let artifact = match opened {
        Ok(artifact) => artifact,
        Err(VerifyError::ManifestMissing) if claim.is_none() => {
            return verify_plain(request, model);
        }
        Err(error) => return Err(error),
    };
    Ok(Report {
        version: Some((
            artifact.manifest.model.clone(),
            artifact.manifest.version,
            artifact.manifest_digest,
        )),
        files: artifact
            .files()
            .map(|(path, file)| (path.to_string(), file.size(), file.sha256()))
            .collect(),
        signer: artifact.signer,
    })
}

/// A directory that another tool signed. Without a name, only a signer of every model will do.
fn verify_plain(request: &VerifyRequest<'_>, model: Option<&str>) -> Result<Report, VerifyError> {
    let directory = verify_directory(request)?;
    let (_, signer) = directory.signed.permit(model.unwrap_or_default())?;
    let files = directory
        .files()
        .map(|(path, file)| (path.to_string(), file.size(), file.sha256()))
        .collect();
    Ok(Report {
        version: None,
        signer: signer.clone(),
        files,
    })
}

fn print(report: &Report, json: bool) -> Result<()> {
    if json {
        let files: Vec<_> = report.files.iter().map(|(path, size, sha256)| json!({"path": path, "size": size, "sha256": sha256.to_hex()})).collect();
        let version = report.version.as_ref();
        println!(
            "{}",
            json!({
                "verified": true,
                "model": version.map(|v| &v.0),
                "version": version.map(|v| v.1),
                "manifestDigest": version.map(|v| v.2),
                "signer": serde_json::to_value(&report.signer)?,
                "files": files,
            })
        );
        return Ok(());
    }
    let width = report
        .files
        .iter()
        .map(|(path, ..)| path.chars().count())
        .max()
        .unwrap_or(0)
        .max("FILE".len());
    println!("{:width$}  {:>14}  SHA256", "FILE", "BYTES");
    for (path, size, sha256) in &report.files {
        println!("{path:width$}  {size:>14}  {}", sha256.to_hex());
    }
    println!();
    match &report.version {
        Some((model, version, digest)) => println!("verified {model} version {version}, {digest}"),
        None => println!(
            "verified; the directory has no weir-manifest.json, so it is no model version yet"
        ),
    }
    match &report.signer.identity {
        Some(identity) => println!(
            "signed by {identity} under {}, certificate {}",
            report.signer.id, report.signer.fingerprint
        ),
        None => println!(
            "signed by {}, key {}",
            report.signer.id, report.signer.fingerprint
        ),
    }
    Ok(())
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn policy(args: &Args) -> Result<TrustPolicy> {
    if let Some(path) = &args.key {
        let key = PublicKey::from_pem(&read(path)?)
            .with_context(|| format!("cannot use {}", path.display()))?;
        let name = path
            .file_stem()
            .map_or_else(|| "key".into(), |stem| stem.to_string_lossy());
        return Ok(TrustPolicy::of_key(&name, key));
    }
    if let Some(path) = &args.certificate_roots {
        let name = path
            .file_stem()
            .map_or_else(|| "roots".into(), |stem| stem.to_string_lossy());
        return TrustPolicy::of_roots(&name, &read(path)?)
            .with_context(|| format!("cannot use {}", path.display()));
    }
    let path = args
        .trust
        .as_ref()
        .context("give one of --key, --trust and --certificate-roots")?;
    let text = read(path)?;
    let place = || format!("cannot use {}", path.display());
    match documents(&text)
        .with_context(place)?
        .into_iter()
        .find(is_trust_map)
    {
        Some(map) => {
            let data: BTreeMap<String, String> =
                serde_yaml::from_value(map.get("data").cloned().unwrap_or_default())
                    .context("the ConfigMap's data must hold texts")
                    .with_context(place)?;
            TrustPolicy::from_config_map(&data).with_context(place)
        }
        None => TrustPolicy::from_yaml(&text).with_context(place),
    }
}

fn is_trust_map(document: &Value) -> bool {
    document.get("kind").and_then(Value::as_str) == Some("ConfigMap")
        && document
            .get("metadata")
            .and_then(|m| m.get("name"))
            .and_then(Value::as_str)
            == Some("weir-trust")
}

fn documents(text: &str) -> Result<Vec<Value>> {
    serde_yaml::Deserializer::from_str(text)
        .map(|document| Ok(Value::deserialize(document)?))
        .collect()
}

/// What the one `ModelVersion` in the file says about its artifact.
fn read_claim(path: &Path) -> Result<VersionClaim> {
    let place = || format!("cannot use {}", path.display());
    let of_kind = |d: &Value| d.get("kind").and_then(Value::as_str) == Some("ModelVersion");
    let mut found: Vec<_> = documents(&read(path)?)
        .with_context(place)?
        .into_iter()
        .filter(of_kind)
        .collect();
    if found.len() != 1 {
        bail!(
            "{} has {} ModelVersion objects; give a file with one",
            path.display(),
            found.len()
        );
    }
    let object = found.remove(0);
    let spec = object.get("spec").ok_or_else(|| {
        anyhow!(
            "{} has no spec; `weir sign --emit-manifest` writes a whole ModelVersion",
            path.display()
        )
    })?;
    let mut claim = spec.get("manifest").cloned().unwrap_or_default();
    let fields = claim.as_mapping_mut().ok_or_else(|| {
        anyhow!(
            "{} has no spec.manifest; `weir sign` prints what belongs there",
            path.display()
        )
    })?;
    // Where the artifact lies, and what it is compared with, is no claim about its content.
    for other in ["artifact", "references", "sameBehaviourAs"] {
        fields.remove(other);
    }
    for name in ["model", "version"] {
        fields.insert(name.into(), spec.get(name).cloned().unwrap_or_default());
    }
    serde_yaml::from_value(claim).with_context(place)
}
