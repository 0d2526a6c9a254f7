//! The Python implementation of the format, run for real: it verifies what was signed here, and the reverse with fresh keys.
//!
//! `WEIR_PYTHON_SIGN` names a Python that has the packages of `fixtures/make.py`; the tests say that they skipped where it is not set.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use weir_manifest::{
    SIGNATURE_FILE, SignRequest, SignatureSource, SigningKey, TrustPolicy, open_signed,
    sign_directory,
};

use crate::fixture;

/// The peer with a fresh set of keys, certificates and signatures in a directory of its own.
struct Peer {
    python: PathBuf,
    root: tempfile::TempDir,
}

impl Peer {
    fn start(test: &str) -> Option<Self> {
        let Some(python) = std::env::var_os("WEIR_PYTHON_SIGN").filter(|p| !p.is_empty()) else {
            println!("skipped {test}: WEIR_PYTHON_SIGN does not name a Python with model-signing");
            return None;
        };
        let peer = Self {
            python: python.into(),
            root: tempfile::tempdir().unwrap(),
        };
        let made = peer.run([
            fixture::path("make.py").as_os_str(),
            peer.path("").as_os_str(),
        ]);
        assert!(
            made.status.success(),
            "{}",
            String::from_utf8_lossy(&made.stderr)
        );
        Some(peer)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Output {
        Command::new(&self.python)
            .args(arguments)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .unwrap()
    }

    fn model_signing(&self, verb: &[&str], dir: &Path, options: &[(&str, &Path)]) -> Output {
        let mut arguments: Vec<&OsStr> = ["-m", "model_signing"].iter().map(OsStr::new).collect();
        arguments.extend(verb.iter().map(OsStr::new));
        arguments.push(dir.as_os_str());
        for (option, value) in options {
            arguments.extend([OsStr::new(*option), value.as_os_str()]);
        }
        self.run(arguments)
    }

    fn sign_here(&self, dir: &Path, key: &str, chain: Option<&str>) {
        fixture::copy_dir(&self.path("model"), dir);
        let key = SigningKey::from_pem(&fs::read_to_string(self.path(key)).unwrap()).unwrap();
        let chain = chain.map(|name| fs::read_to_string(self.path(name)).unwrap());
        let request = SignRequest {
            dir,
            identity: &fixture::identity(),
            key: &key,
            certificates: chain.as_deref(),
            signature_file: &fixture::signature_file(),
            progress: None,
        };
        sign_directory(&request).unwrap();
    }
}

fn assert_says(output: &Output, want: &str) {
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains(want), "want {want:?}: {text}");
    assert_eq!(
        output.status.success(),
        want == "Verification succeeded",
        "{text}"
    );
}

#[test]
fn the_python_peer_verifies_what_is_signed_here_with_keys() {
    let Some(peer) = Peer::start("the_python_peer_verifies_what_is_signed_here_with_keys") else {
        return;
    };
    for name in ["p256", "p384"] {
        let dir = peer.path(&format!("ours-{name}"));
        peer.sign_here(&dir, &format!("keys/{name}.key"), None);
        let (signature, public) = (
            dir.join(SIGNATURE_FILE),
            peer.path(&format!("keys/{name}.pub")),
        );
        let verify = || {
            peer.model_signing(
                &["verify", "key"],
                &dir,
                &[("--signature", &signature), ("--public_key", &public)],
            )
        };
        assert_says(&verify(), "Verification succeeded");
        let tampered = fs::read_to_string(dir.join("config.json"))
            .unwrap()
            .replace("2048", "4096");
        fs::write(dir.join("config.json"), tampered).unwrap();
        assert_says(&verify(), "Hash mismatch for 'config.json'");
    }
}

#[test]
fn the_python_peer_verifies_what_is_signed_here_with_certificates() {
    let Some(peer) = Peer::start("the_python_peer_verifies_what_is_signed_here_with_certificates")
    else {
        return;
    };
    let dir = peer.path("ours-chain");
    peer.sign_here(&dir, "keys/leaf.key", Some("certs/chain.pem"));
    let verify = |root: &str| {
        let (signature, root) = (dir.join(SIGNATURE_FILE), peer.path(root));
        peer.model_signing(
            &["verify", "certificate"],
            &dir,
            &[("--signature", &signature), ("--certificate_chain", &root)],
        )
    };
    assert_says(&verify("certs/root.pem"), "Verification succeeded");
    assert_says(&verify("certs/other-root.pem"), "Verification failed");
}

#[test]
fn what_the_python_peer_signs_now_verifies_here() {
    let Some(peer) = Peer::start("what_the_python_peer_signs_now_verifies_here") else {
        return;
    };
    for name in ["p256", "p384"] {
        let dir = peer.path(&format!("theirs-{name}"));
        fixture::copy_dir(&peer.path("model"), &dir);
        let (signature, key) = (
            dir.join(SIGNATURE_FILE),
            peer.path(&format!("keys/{name}.key")),
        );
        let signed = peer.model_signing(
            &["sign", "key"],
            &dir,
            &[("--signature", &signature), ("--private_key", &key)],
        );
        assert!(
            signed.status.success(),
            "{}",
            String::from_utf8_lossy(&signed.stderr)
        );
        let key = SigningKey::from_pem(&fs::read_to_string(key).unwrap()).unwrap();
        let policy = TrustPolicy::of_key("peer", key.public_key());
        let opened = open_signed(&fixture::request(
            &dir,
            SignatureSource::File(SIGNATURE_FILE),
            &policy,
        ))
        .unwrap();
        assert_eq!(opened.manifest.model, "tiny");
    }
    let policy = TrustPolicy::of_roots(
        "corp",
        &fs::read_to_string(peer.path("certs/root.pem")).unwrap(),
    )
    .unwrap();
    let bundle = fs::read(peer.path("signatures/chain-good.sig")).unwrap();
    open_signed(&fixture::request(
        &peer.path("model"),
        SignatureSource::Inline(&bundle),
        &policy,
    ))
    .unwrap();
}

/// Why Ed25519 is for Weir's own artifacts only. When this test fails, the peer has learned it, and the documentation should say so.
#[test]
fn the_python_peer_has_no_ed25519() {
    let Some(peer) = Peer::start("the_python_peer_has_no_ed25519") else {
        return;
    };
    let dir = peer.path("ours-ed25519");
    peer.sign_here(&dir, "keys/ed25519.key", None);
    let (signature, public) = (dir.join(SIGNATURE_FILE), peer.path("keys/ed25519.pub"));
    assert_says(
        &peer.model_signing(
            &["verify", "key"],
            &dir,
            &[("--signature", &signature), ("--public_key", &public)],
        ),
        "Verification failed",
    );
}
