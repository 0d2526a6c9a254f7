//! `weir keygen`: a key pair for signing models.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};
use serde_json::json;
use weir_manifest::{Algorithm, SigningKey, TrustPolicySpec, TrustedKeySpec};

/// Make a key pair for signing models.
///
/// Writes NAME.key (private, readable by you alone) and NAME.pub, which goes into the trust policy; `--emit-trust` writes a policy of this
/// key alone.
#[derive(Debug, Parser)]
pub struct Args {
    /// Kind of key.
    #[arg(long, value_enum, default_value_t = KeyType::P256)]
    algorithm: KeyType,
    /// Path and name of the two files, without their endings.
    #[arg(long, value_name = "NAME")]
    out: PathBuf,
    /// Also write a trust policy of this key alone: the `ConfigMap` named `weir-trust`, as it lies among the manifests.
    #[arg(long, value_name = "FILE")]
    emit_trust: Option<PathBuf>,
    /// Which models the key may sign by that policy: a pattern (`*`, `?`). Several times for several.
    #[arg(
        long,
        value_name = "PATTERN",
        default_value = "*",
        requires = "emit_trust"
    )]
    models: Vec<String>,
    /// Replace files that exist.
    #[arg(long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Kinds of keys, as `--algorithm` names them.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum KeyType {
    /// ECDSA on P-256, which every tool of the format reads.
    P256,
    /// ECDSA on P-384, likewise.
    P384,
    /// Ed25519, which only Weir reads.
    Ed25519,
}

/// Runs the command.
///
/// # Errors
/// A file exists or cannot be written.
pub fn run(args: Args) -> Result<()> {
    let Args {
        algorithm,
        out,
        emit_trust,
        models,
        force,
        json,
    } = args;
    let algorithm = match algorithm {
        KeyType::P256 => Algorithm::P256,
        KeyType::P384 => Algorithm::P384,
        KeyType::Ed25519 => Algorithm::Ed25519,
    };
    let key = SigningKey::generate(algorithm)?;
    let public = key.public_key();
    let (private_path, public_path) = (with_ending(&out, "key"), with_ending(&out, "pub"));
    if !force && public_path.exists() {
        anyhow::bail!(
            "{} exists; choose another --out, or give --force to replace it",
            public_path.display()
        );
    }
    write(&private_path, key.to_pem().as_bytes(), (0o600, force))?;
    write(&public_path, public.to_pem().as_bytes(), (0o644, force))?;
    if let Some(path) = &emit_trust {
        let name = out
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let policy = TrustPolicySpec {
            keys: vec![TrustedKeySpec {
                id: name,
                public_key: public.to_pem(),
                models,
                not_before: None,
                not_after: None,
                revoked: false,
            }],
            roots: vec![],
        };
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": weir_operator::world::TRUST},
            "data": {"policy.yaml": serde_yaml::to_string(&policy)?},
        });
        let text = serde_yaml::to_string(&object)?;
        write(path, text.as_bytes(), (0o644, force))?;
    }
    if json {
        let report = json!({
            "algorithm": algorithm.to_string(),
            "privateKey": private_path,
            "publicKey": public_path,
            "trust": emit_trust,
            "fingerprint": public.fingerprint(),
        });
        println!("{report}");
    } else {
        println!(
            "private key  {}  (keep it secret: whoever has it signs as you)",
            private_path.display()
        );
        println!(
            "public key   {}  (goes into the trust policy)",
            public_path.display()
        );
        println!("fingerprint  {}", public.fingerprint());
    }
    Ok(())
}

/// `NAME.ending`, also where NAME has a dot in it.
fn with_ending(name: &Path, ending: &str) -> PathBuf {
    let mut text = name.as_os_str().to_owned();
    text.push(".");
    text.push(ending);
    PathBuf::from(text)
}

/// A file that exists keeps its mode when it is written to, so it is removed first.
fn write(path: &Path, bytes: &[u8], (mode, force): (u32, bool)) -> Result<()> {
    if force {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot replace {}", path.display()));
            }
            _ => {}
        }
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).with_context(|| {
        format!("cannot create {}; its folder must exist; where the file does, choose another --out, or give --force to replace it", path.display())
    })?;
    file.write_all(bytes)
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use weir_manifest::PublicKey;

    use super::*;

    fn args(out: &Path, algorithm: KeyType, force: bool) -> Args {
        Args {
            algorithm,
            out: out.to_owned(),
            emit_trust: None,
            models: vec![],
            force,
            json: true,
        }
    }

    #[test]
    fn the_private_key_is_readable_by_its_owner_alone_and_is_never_replaced_unasked() {
        for algorithm in [KeyType::P256, KeyType::P384, KeyType::Ed25519] {
            let dir = tempfile::tempdir().unwrap();
            let out = dir.path().join("release.2026");
            run(args(&out, algorithm, false)).unwrap();
            let private = dir.path().join("release.2026.key");
            assert_eq!(
                std::fs::metadata(&private).unwrap().permissions().mode() & 0o777,
                0o600
            );
            let read = || std::fs::read_to_string(&private).unwrap();
            let first = read();
            let public = std::fs::read_to_string(dir.path().join("release.2026.pub")).unwrap();
            assert_eq!(
                SigningKey::from_pem(&first).unwrap().public_key(),
                PublicKey::from_pem(&public).unwrap()
            );
            assert!(
                run(args(&out, algorithm, false))
                    .unwrap_err()
                    .to_string()
                    .contains("--force")
            );
            assert_eq!(read(), first);
            run(args(&out, algorithm, true)).unwrap();
            assert_ne!(read(), first);
            assert_eq!(
                std::fs::metadata(&private).unwrap().permissions().mode() & 0o777,
                0o600
            );
        }
    }
}
