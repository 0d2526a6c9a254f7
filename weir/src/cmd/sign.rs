//! `weir sign`: turns a model directory into a signed version.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use serde::Serialize;
use weir_manifest::{
    BaseVersion, Digest, FilePath, Reference, SIGNATURE_FILE, SignRequest, SignedVersion,
    SigningKey, VersionIdentity, sign_directory,
};
use weir_model::gguf::GgufFiles;
use weir_model::{Adapter, OpenFiles, network_config};

/// Sign a model directory as a version.
///
/// Writes weir-manifest.json and the signature into DIR, and prints what the `ModelVersion` object must say. The same directory, name, number
/// and key always give the same bytes.
#[derive(Debug, Parser)]
pub struct Args {
    /// Model directory in the Hugging Face layout.
    dir: PathBuf,
    /// Name that clients will use.
    #[arg(long)]
    model: String,
    /// Number of the version, from 1; higher is newer.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    version: u32,
    /// Private key in PEM form, as `weir keygen` makes it.
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Certificates in PEM form: the signer's first, then those up to a root, which may be left out. May be given several times.
    #[arg(long, value_name = "FILE")]
    cert_chain: Vec<PathBuf>,
    /// Longest prompt and output together; the model's own limit when absent.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    context_tokens: Option<u32>,
    /// Version of the request schema.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    request_schema: u32,
    /// Directory of the signed base version: DIR is an adapter (`LoRA`) of it, as peft saves it.
    #[arg(long, value_name = "DIR")]
    adapter_of: Option<PathBuf>,
    /// Name of the signature in DIR.
    #[arg(long, value_name = "NAME", default_value = SIGNATURE_FILE)]
    out: FilePath,
    /// Write a whole `ModelVersion` to this file (`-` prints it) instead of printing its `manifest` and `signature`.
    #[arg(long, value_name = "FILE")]
    emit_manifest: Option<PathBuf>,
    /// Pool of the emitted `ModelVersion`.
    #[arg(long, default_value = "small")]
    pool: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ModelVersion<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata,
    spec: Spec<'a>,
}

#[derive(Serialize)]
struct Metadata {
    name: String,
}

#[derive(Serialize)]
struct Spec<'a> {
    model: &'a str,
    version: u32,
    #[serde(flatten)]
    signed: Signed<'a>,
    stage: &'static str,
    pool: &'a str,
}

/// What `spec.manifest` and `spec.signature` must say.
#[derive(Serialize)]
struct Signed<'a> {
    manifest: Manifest<'a>,
    signature: Signature<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Manifest<'a> {
    artifact: Artifact,
    files: &'a [weir_manifest::FileEntry],
    architecture: &'a str,
    precision: &'a str,
    context_tokens: u32,
    request_schema: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    adapter_of: Option<Digest>,
    #[serde(skip_serializing_if = "Option::is_none")]
    references: Option<&'static str>,
}

/// A file of this name in the artifact holds prompts with expected answers.
const REFERENCES: &str = "references.jsonl";

#[derive(Serialize)]
struct Artifact {
    uri: String,
}

#[derive(Serialize)]
struct Signature<'a> {
    file: &'a str,
}

/// Runs the command.
///
/// # Errors
/// The key or the directory cannot be read, or the directory is no model.
#[expect(
    clippy::needless_pass_by_value,
    reason = "every subcommand takes its arguments by value"
)]
pub fn run(args: Args) -> Result<()> {
    let version = sign(&args)?;
    let base = match &args.emit_manifest {
        Some(file) if file.as_os_str() != "-" => file.parent().map(Path::to_owned),
        _ => None,
    };
    let signed = signed_block(&args, &version, base.as_deref());
    match &args.emit_manifest {
        Some(file) => emit(&args, file, &version, signed)?,
        None if args.json => {}
        None => print!("{}", serde_yaml::to_string(&signed)?),
    }
    if args.json {
        let report = serde_json::json!({
            "model": version.manifest.model,
            "version": version.manifest.version,
            "manifestDigest": version.manifest_digest,
            "signature": args.dir.join(args.out.as_str()),
            "claim": version.claim,
        });
        println!("{report}");
    } else {
        eprintln!(
            "signed {} version {} as {}",
            version.manifest.model, version.manifest.version, version.manifest_digest
        );
    }
    Ok(())
}

fn sign(args: &Args) -> Result<SignedVersion> {
    let pem = std::fs::read_to_string(&args.key).with_context(|| {
        format!(
            "cannot read the key {}; `weir keygen` makes one",
            args.key.display()
        )
    })?;
    let key = SigningKey::from_pem(&pem)
        .with_context(|| format!("cannot use the key {}", args.key.display()))?;
    let mut chain = String::new();
    for file in &args.cert_chain {
        chain.push_str(
            &std::fs::read_to_string(file)
                .with_context(|| format!("cannot read the certificates {}", file.display()))?,
        );
        chain.push('\n');
    }
    let identity = VersionIdentity {
        model: args.model.clone(),
        version: args.version,
        context_tokens: args.context_tokens,
        request_schema: args.request_schema,
        adapter_of: args.adapter_of.as_deref().map(base_of).transpose()?,
    };
    if args
        .key
        .canonicalize()
        .ok()
        .zip(args.dir.canonicalize().ok())
        .is_some_and(|(key, dir)| key.starts_with(dir))
    {
        bail!(
            "the private key {} is inside of the directory to sign, and would be published with it; move it away",
            args.key.display()
        );
    }
    match &args.adapter_of {
        Some(base) => check_adapter(&args.dir, base)?,
        None => unpack(&args.dir)?,
    }
    check_references(&args.dir)?;
    sign_directory(&SignRequest {
        dir: &args.dir,
        identity: &identity,
        key: &key,
        certificates: (!args.cert_chain.is_empty()).then_some(chain.as_str()),
        signature_file: &args.out,
        progress: None,
    })
    .with_context(|| format!("cannot sign {}", args.dir.display()))
}

fn base_of(dir: &Path) -> Result<BaseVersion> {
    BaseVersion::read(dir)
        .with_context(|| format!("cannot sign an adapter of what is in {}", dir.display()))
}

/// An adapter that does not fit its base is refused by every worker: better told before it is signed.
fn check_adapter(dir: &Path, base: &Path) -> Result<()> {
    let open = |dir: &Path| {
        OpenFiles::from_dir(dir).with_context(|| format!("cannot read {}", dir.display()))
    };
    let config = network_config(&open(base)?)
        .with_context(|| format!("cannot use the base in {}", base.display()))?;
    Adapter::load(&open(dir)?, &config).with_context(|| {
        format!(
            "{} is no adapter of the model in {}",
            dir.display(),
            base.display()
        )
    })?;
    Ok(())
}

/// Writes the text side of a GGUF file beside it, where it is absent: gateways read it without the weights, and it is signed like everything
/// else.
fn unpack(dir: &Path) -> Result<()> {
    let files =
        OpenFiles::from_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let files = GgufFiles::over(&files)
        .with_context(|| format!("cannot use the model in {}", dir.display()))?;
    for (name, bytes) in files.made() {
        std::fs::write(dir.join(name), bytes)
            .with_context(|| format!("cannot write {name} into {}", dir.display()))?;
        eprintln!("wrote {name}, made from the GGUF file");
    }
    Ok(())
}

/// A version whose references cannot be asked is held back wherever it is applied: better told before it is signed.
fn check_references(dir: &Path) -> Result<()> {
    let path = dir.join(REFERENCES);
    match std::fs::read(&path) {
        Ok(file) => {
            Reference::parse(&file).with_context(|| {
                format!(
                    "{} holds no references that can be asked; docs/rollouts.md says what a line is",
                    path.display()
                )
            })?;
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn signed_block<'a>(args: &'a Args, version: &'a SignedVersion, base: Option<&Path>) -> Signed<'a> {
    let dir = base.map_or_else(|| args.dir.clone(), |base| relative(&args.dir, base));
    Signed {
        manifest: Manifest {
            artifact: Artifact {
                uri: format!("file:{}", dir.display()),
            },
            files: &version.claim.files,
            architecture: &version.manifest.architecture,
            precision: &version.manifest.precision,
            context_tokens: version.manifest.context_tokens,
            request_schema: version.manifest.request_schema,
            adapter_of: version.manifest.adapter_of,
            references: version
                .claim
                .files
                .iter()
                .any(|file| file.path.as_str() == REFERENCES)
                .then_some(REFERENCES),
        },
        signature: Signature {
            file: args.out.as_str(),
        },
    }
}

fn emit(args: &Args, file: &Path, version: &SignedVersion, signed: Signed<'_>) -> Result<()> {
    let object = ModelVersion {
        api_version: weir_api::API_VERSION,
        kind: "ModelVersion",
        metadata: Metadata {
            name: format!("{}-v{}", version.manifest.model, version.manifest.version),
        },
        spec: Spec {
            model: &version.manifest.model,
            version: version.manifest.version,
            signed,
            stage: "Registered",
            pool: &args.pool,
        },
    };
    let yaml = serde_yaml::to_string(&object)?;
    if file.as_os_str() == "-" {
        print!("{yaml}");
        return Ok(());
    }
    std::fs::write(file, yaml).with_context(|| {
        format!(
            "cannot write {}; its folder must exist and be writable",
            file.display()
        )
    })
}

/// `dir` as seen from `base`; absolute where either cannot be resolved.
fn relative(dir: &Path, base: &Path) -> PathBuf {
    let base = if base.as_os_str().is_empty() {
        Path::new(".")
    } else {
        base
    };
    let (Ok(dir), Ok(base)) = (dir.canonicalize(), base.canonicalize()) else {
        return std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    };
    let shared = dir
        .components()
        .zip(base.components())
        .take_while(|(a, b)| a == b)
        .count();
    let up = base
        .components()
        .skip(shared)
        .map(|_| std::path::Component::ParentDir);
    let path: PathBuf = up.chain(dir.components().skip(shared)).collect();
    if path.as_os_str().is_empty() {
        PathBuf::from(".")
    } else {
        path
    }
}

#[cfg(test)]
mod tests;
