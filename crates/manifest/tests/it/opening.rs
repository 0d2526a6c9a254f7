//! What happens to the files: tampering, links, extra and missing files, replays.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;

use weir_manifest::{
    Algorithm, SIGNATURE_FILE, SignatureSource, SigningKey, TrustPolicy, VerifyError, VersionClaim,
    open_signed, open_verified, verify_directory,
};

use crate::fixture::{self, Artifact};

#[test]
fn an_untouched_artifact_opens_with_the_content_that_was_signed() {
    for algorithm in [Algorithm::P256, Algorithm::P384, Algorithm::Ed25519] {
        let artifact = Artifact::signed_with(
            SigningKey::generate(algorithm).unwrap(),
            &fixture::identity(),
        );
        let opened = artifact.open().unwrap();
        assert_eq!(opened.manifest, artifact.signed.manifest);
        assert_eq!(opened.manifest_digest, artifact.signed.manifest_digest);
        assert_eq!(opened.signer.id, "release");
        for (path, file) in opened.files() {
            let content = fs::read(artifact.dir().join(path.as_str())).unwrap();
            assert_eq!(file.read().unwrap(), content, "{path}");
            assert_eq!(file.size(), content.len() as u64);
        }
        assert_eq!(opened.read("extra.txt").unwrap(), "été\n".as_bytes());
        assert!(opened.file("absent").is_none() && opened.file("../model/config.json").is_none());
    }
}

#[test]
fn references_that_were_signed_are_read_or_refused_with_the_remedy() {
    let key = SigningKey::generate(Algorithm::P256).unwrap();
    let line = "{\"prompt\": \"a\", \"accept\": {\"exact\": \"b\"}}\n";
    let artifact = Artifact::signed_beside(key, &fixture::identity(), &|dir| {
        fs::write(dir.join("references.jsonl"), line).unwrap();
        fs::write(dir.join("spoilt.jsonl"), format!("{line}{{}}\n")).unwrap();
    });
    let opened = artifact.open().unwrap();
    assert_eq!(opened.references("references.jsonl").unwrap().len(), 1);
    for (file, why) in [("spoilt.jsonl", "line 2"), ("absent.jsonl", "absent.jsonl")] {
        let error = opened.references(file).unwrap_err();
        assert!(
            error.contains(why) && error.contains("sign again"),
            "{error}"
        );
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn every_way_to_spoil_the_directory_is_refused_with_the_file() {
    type Spoil = fn(&Path);
    let cases: [(&str, Spoil, &str, &str); 14] = [
        (
            "content",
            |d| fs::write(d.join("config.json"), "{}").unwrap(),
            "FileTampered",
            "config.json",
        ),
        (
            "same size",
            |d| flip(&d.join("model.safetensors")),
            "FileTampered",
            "model.safetensors",
        ),
        (
            "appended",
            |d| append(&d.join("tokenizer.json")),
            "FileTampered",
            "tokenizer.json",
        ),
        (
            "manifest",
            |d| flip(&d.join("weir-manifest.json")),
            "FileTampered",
            "weir-manifest.json",
        ),
        (
            "missing",
            |d| fs::remove_file(d.join("extra/notes.txt")).unwrap(),
            "FileMissing",
            "extra/notes.txt",
        ),
        (
            "extra",
            |d| fs::write(d.join("evil.py"), "").unwrap(),
            "FileUnlisted",
            "evil.py",
        ),
        (
            "extra below",
            |d| fs::write(d.join("extra/evil.py"), "").unwrap(),
            "FileUnlisted",
            "extra/evil.py",
        ),
        (
            "link to itself",
            |d| link(d, "config.json", "copy.json"),
            "FileSymlink",
            "config.json",
        ),
        (
            "link as extra",
            |d| symlink("config.json", d.join("link")).unwrap(),
            "FileSymlink",
            "link",
        ),
        (
            "dangling link",
            |d| symlink("nowhere", d.join("link")).unwrap(),
            "FileSymlink",
            "link",
        ),
        (
            "directory link",
            |d| link(d, "extra", "../outside"),
            "FileSymlink",
            "extra",
        ),
        (
            "pipe",
            |d| pipe(&d.join("config.json")),
            "FileNotRegular",
            "config.json",
        ),
        (
            "directory for file",
            |d| {
                fs::remove_file(d.join("config.json")).unwrap();
                fs::create_dir(d.join("config.json")).unwrap();
            },
            "FileNotRegular",
            "config.json",
        ),
        (
            "no signature",
            |d| fs::remove_file(d.join(SIGNATURE_FILE)).unwrap(),
            "SignatureMissing",
            SIGNATURE_FILE,
        ),
    ];
    let mut failures = Vec::new();
    for (name, spoil, reason, file) in cases {
        let artifact = Artifact::new();
        spoil(&artifact.dir());
        match artifact.open() {
            Err(error) if error.reason() == reason && error.to_string().contains(file) => {}
            other => failures.push(format!(
                "{name}: want {reason} of {file}, got {:?}",
                other.map(|_| ())
            )),
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn append(path: &Path) {
    OpenOptions::new()
        .append(true)
        .open(path)
        .unwrap()
        .write_all(b"\n")
        .unwrap();
}

/// Moves a file or directory away and leaves a link to it.
fn link(dir: &Path, name: &str, target: &str) {
    fs::rename(dir.join(name), dir.join(target)).unwrap();
    symlink(target, dir.join(name)).unwrap();
}

fn pipe(path: &Path) {
    fs::remove_file(path).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
}

#[test]
fn what_the_format_leaves_out_is_neither_refused_nor_served() {
    let artifact = Artifact::new();
    fs::create_dir(artifact.dir().join(".git")).unwrap();
    fs::write(artifact.dir().join(".git/config"), "x").unwrap();
    fs::write(artifact.dir().join(".gitattributes"), "x").unwrap();
    fs::create_dir(artifact.dir().join("empty")).unwrap();
    let opened = artifact.open().unwrap();
    assert!(opened.file(".git/config").is_none() && opened.file(SIGNATURE_FILE).is_none());
}

#[test]
fn the_artifact_directory_itself_may_be_reached_through_a_link() {
    let artifact = Artifact::new();
    let alias = artifact.root.path().join("alias");
    symlink(artifact.dir(), &alias).unwrap();
    open_verified(
        &fixture::request(
            &alias,
            SignatureSource::File(SIGNATURE_FILE),
            &artifact.policy,
        ),
        &artifact.signed.claim,
    )
    .unwrap();
}

#[test]
fn an_object_that_says_something_else_is_refused_by_field() {
    type Edit = fn(&mut VersionClaim);
    let cases: [(&str, Edit); 9] = [
        ("spec.version", |c| c.version = 3),
        ("spec.manifest.architecture", |c| {
            c.architecture = "Other".to_owned();
        }),
        ("spec.manifest.precision", |c| {
            c.precision = "f32".to_owned();
        }),
        ("spec.manifest.contextTokens", |c| {
            c.context_tokens = 1 << 20;
        }),
        ("spec.manifest.requestSchema", |c| c.request_schema = 9),
        ("spec.manifest.files[\"config.json\"].sha256", |c| {
            c.files[0].sha256 = weir_manifest::Digest::of(b"");
        }),
        ("spec.manifest.files[\"config.json\"].size", |c| {
            c.files[0].size += 1;
        }),
        ("spec.manifest.files[\"config.json\"]", |c| {
            drop(c.files.remove(0));
        }),
        ("spec.manifest.files[\"weir-manifest.json\"].size", |c| {
            c.files.last_mut().unwrap().size += 1;
        }),
    ];
    let artifact = Artifact::new();
    for (want, edit) in cases {
        let mut claim = artifact.signed.claim.clone();
        edit(&mut claim);
        match artifact.open_as(&claim) {
            Err(VerifyError::ManifestMismatch { field, .. }) => assert_eq!(field, want),
            other => panic!("{want}: {:?}", other.map(|_| ())),
        }
    }
}

#[test]
fn an_older_version_replayed_under_a_newer_number_is_refused() {
    let key = SigningKey::generate(Algorithm::P256).unwrap();
    let again = SigningKey::from_pem(&key.to_pem()).unwrap();
    let mut older_identity = fixture::identity();
    older_identity.version = 1;
    let older = Artifact::signed_with(key, &older_identity);
    let newer = Artifact::signed_with(again, &fixture::identity());
    // The attacker controls the volume and the object, not the key: old files, new number.
    let mut claim = older.signed.claim.clone();
    claim.version = 2;
    match older.open_as(&claim) {
        Err(VerifyError::ManifestMismatch {
            field,
            claimed,
            signed,
        }) => {
            assert_eq!(
                (field.as_str(), claimed.as_str(), signed.as_str()),
                ("spec.version", "2", "1")
            );
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
    // The newer object over the older volume.
    let error = older.open_as(&newer.signed.claim).map(|_| ()).unwrap_err();
    assert_eq!(error.reason(), "ManifestMismatch", "{error}");
}

#[test]
fn a_signer_of_one_model_cannot_pass_off_its_artifact_as_another() {
    let artifact = Artifact::new();
    let pem = artifact
        .key
        .public_key()
        .to_pem()
        .trim_end()
        .replace('\n', "\n    ");
    let policy = TrustPolicy::from_yaml(&format!(
        "keys:\n- id: other-team\n  publicKey: |\n    {pem}\n  models: ['other']\n"
    ))
    .unwrap();
    let request = fixture::request(
        Path::new("/nonexistent"),
        SignatureSource::Inline(&artifact.signed.bundle),
        &policy,
    );
    let dir = artifact.dir();
    let request = weir_manifest::VerifyRequest {
        dir: &dir,
        ..request
    };
    // As the model it was signed for, the key is not permitted; as the model the key may sign, the signed name is another.
    assert_eq!(
        open_verified(&request, &artifact.signed.claim)
            .unwrap_err()
            .reason(),
        "KeyNotPermitted"
    );
    let mut claim = artifact.signed.claim.clone();
    claim.model = "other".to_owned();
    assert_eq!(
        open_verified(&request, &claim).unwrap_err().reason(),
        "ManifestMismatch"
    );
    assert_eq!(
        open_signed(&request).unwrap_err().reason(),
        "KeyNotPermitted"
    );
}

#[test]
fn a_directory_without_a_manifest_verifies_but_is_no_version() {
    let artifact = Artifact::new();
    let statement =
        weir_manifest::check_signature(&artifact.signed.bundle, &artifact.policy, fixture::now())
            .unwrap();
    let mut statement = statement.unpermitted().clone();
    statement
        .files
        .remove(&"weir-manifest.json".parse().unwrap());
    let bundle = weir_manifest::sign_with_key(&statement, &artifact.key);
    fs::remove_file(artifact.dir().join("weir-manifest.json")).unwrap();
    let dir = artifact.dir();
    let request = fixture::request(&dir, SignatureSource::Inline(&bundle), &artifact.policy);
    assert_eq!(verify_directory(&request).unwrap().files().count(), 6);
    assert_eq!(
        open_signed(&request).unwrap_err().reason(),
        "ManifestMissing"
    );
}

#[test]
fn every_refusal_has_a_one_word_reason_and_a_remedy() {
    let artifact = Artifact::new();
    flip(&artifact.dir().join("config.json"));
    let error = artifact.open().map(|_| ()).unwrap_err();
    assert!(error.reason().chars().all(char::is_alphanumeric));
    let message = error.condition_message();
    assert!(
        message.contains("config.json") && message.contains(error.remedy()),
        "{message}"
    );
}
