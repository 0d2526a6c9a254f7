//! Where verified bytes stay, and that what is handed out cannot change.

use std::fs;
use std::io::Write as _;

use weir_manifest::{Placement, SIGNATURE_FILE, SignatureSource, open_verified};

use crate::fixture::{self, Artifact};

#[test]
fn a_sealed_copy_cannot_be_changed_by_anybody() {
    let artifact = Artifact::new();
    let opened = artifact.open().unwrap();
    let before = opened.read("model.safetensors").unwrap();
    fs::write(
        artifact.dir().join("model.safetensors"),
        "overwritten in place",
    )
    .unwrap();
    assert_eq!(opened.read("model.safetensors").unwrap(), before);
    let mut file = opened.file("model.safetensors").unwrap().file();
    assert!(file.write_all(b"x").is_err(), "the seal refuses writing");
    assert!(file.set_len(0).is_err(), "the seal refuses shrinking");
    assert!(file.set_len(1 << 20).is_err(), "the seal refuses growing");
}

#[test]
fn a_read_only_volume_hands_out_the_file_itself() {
    let artifact = Artifact::new();
    let dir = artifact.dir();
    let request = weir_manifest::VerifyRequest {
        placement: Placement::ReadOnlyVolume,
        ..fixture::request(
            &dir,
            SignatureSource::File(SIGNATURE_FILE),
            &artifact.policy,
        )
    };
    let opened = open_verified(&request, &artifact.signed.claim).unwrap();
    let inode = |file: &fs::File| std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
    let on_disk = fs::File::open(dir.join("config.json")).unwrap();
    assert_eq!(
        inode(opened.file("config.json").unwrap().file()),
        inode(&on_disk)
    );
    // Replacing the name does not replace what was verified.
    fs::rename(dir.join("tokenizer.json"), dir.join("config.json")).unwrap();
    assert_eq!(
        opened.read("config.json").unwrap(),
        fixture::bytes("model/config.json")
    );
}

#[test]
fn progress_counts_every_byte_once() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let artifact = Artifact::new();
    let seen = AtomicU64::new(0);
    let count = |bytes| {
        seen.fetch_add(bytes, Ordering::Relaxed);
    };
    let dir = artifact.dir();
    let request = weir_manifest::VerifyRequest {
        progress: Some(&count),
        ..fixture::request(
            &dir,
            SignatureSource::File(SIGNATURE_FILE),
            &artifact.policy,
        )
    };
    open_verified(&request, &artifact.signed.claim).unwrap();
    assert_eq!(
        seen.load(Ordering::Relaxed),
        artifact
            .signed
            .claim
            .files
            .iter()
            .map(|f| f.size)
            .sum::<u64>()
    );
}
