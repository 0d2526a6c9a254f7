//! Random damage never verifies.

use std::fs;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use weir_manifest::{SignatureSource, check_signature, open_verified};

use crate::fixture::{self, Artifact, now};

/// Runs a property on fresh random bytes; each failure prints the case that shows it.
fn for_all<S: Strategy>(
    cases: u32,
    strategy: &S,
    property: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let config = ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    TestRunner::new(config).run(strategy, property).unwrap();
}

#[test]
fn no_bundle_with_a_changed_byte_verifies() {
    let artifact = Artifact::new();
    let bundle = &artifact.signed.bundle;
    check_signature(bundle, &artifact.policy, now()).unwrap();
    for_all(
        600,
        &(any::<prop::sample::Index>(), 1_u8..),
        |(index, flip)| {
            let mut damaged = bundle.clone();
            damaged[index.index(bundle.len())] ^= flip;
            prop_assert!(check_signature(&damaged, &artifact.policy, now()).is_err());
            Ok(())
        },
    );
}

#[test]
fn no_peer_bundle_with_a_changed_byte_verifies_as_something_else() {
    let policy =
        weir_manifest::TrustPolicy::of_roots("corp", &fixture::text("certs/root.pem")).unwrap();
    let bundle = fixture::bytes("signatures/chain-good.sig");
    let statement = check_signature(&bundle, &policy, now())
        .unwrap()
        .unpermitted()
        .clone();
    for_all(
        400,
        &(any::<prop::sample::Index>(), 1_u8..),
        |(index, flip)| {
            let mut damaged = bundle.clone();
            damaged[index.index(bundle.len())] ^= flip;
            // A bundle may carry certificates that the path does not need, so damage in one of those cannot matter; here all are needed.
            let verdict = check_signature(&damaged, &policy, now());
            prop_assert!(
                verdict.is_err(),
                "{:?}",
                verdict.map(|v| *v.unpermitted() == statement)
            );
            Ok(())
        },
    );
}

#[test]
fn no_cut_or_grown_bundle_verifies() {
    let artifact = Artifact::new();
    let bundle = &artifact.signed.bundle;
    for_all(
        200,
        &(
            any::<prop::sample::Index>(),
            proptest::collection::vec(any::<u8>(), 1..4),
        ),
        |(index, insert)| {
            let at = index.index(bundle.len());
            prop_assert!(check_signature(&bundle[..at], &artifact.policy, now()).is_err());
            let mut grown = bundle.clone();
            grown.splice(at..at, insert);
            // White space between tokens is the one thing that may be added without a meaning.
            if let Ok(checked) = check_signature(&grown, &artifact.policy, now()) {
                let json =
                    |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
                prop_assert_eq!(json(&grown), json(bundle));
                prop_assert_eq!(
                    checked.unpermitted().files.len(),
                    artifact.signed.claim.files.len()
                );
            }
            Ok(())
        },
    );
}

#[test]
fn no_file_with_a_changed_byte_verifies() {
    let artifact = Artifact::new();
    let files: Vec<_> = artifact.signed.claim.files.clone();
    artifact.open().unwrap();
    for_all(
        150,
        &(
            any::<prop::sample::Index>(),
            any::<prop::sample::Index>(),
            1_u8..,
        ),
        |(file, index, flip)| {
            let path = artifact.dir().join(file.get(&files).path.as_str());
            let good = fs::read(&path).unwrap();
            let mut damaged = good.clone();
            damaged[index.index(good.len())] ^= flip;
            fs::write(&path, damaged).unwrap();
            let verdict = artifact.open().map(|_| ());
            fs::write(&path, good).unwrap();
            let error = verdict.unwrap_err();
            prop_assert_eq!(error.reason(), "FileTampered");
            prop_assert!(error.to_string().contains(file.get(&files).path.as_str()));
            Ok(())
        },
    );
    artifact.open().unwrap();
}

#[test]
fn signed_names_from_a_hostile_generator_never_open_anything_outside() {
    let artifact = Artifact::new();
    let secret = artifact.root.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    let statement = check_signature(&artifact.signed.bundle, &artifact.policy, now())
        .unwrap()
        .unpermitted()
        .clone();
    let payload = String::from_utf8(statement.to_payload()).unwrap();
    let component = prop_oneof![
        "\\.\\.",
        "\\.",
        "",
        "extra",
        "secret",
        "model",
        "[\\x00-\\x1f/\\\\]",
        "%2e%2e",
        "．．"
    ];
    let names = proptest::collection::vec(component, 1..6).prop_map(|parts| parts.join("/"));
    let absolute = secret.to_str().unwrap().to_owned();
    for_all(300, &prop_oneof![9 => names, 1 => Just(absolute)], |name| {
        // A signer that is trusted but hostile: the name is signed, with the digest of the file outside.
        let mut hostile: serde_json::Value = serde_json::from_str(&payload).unwrap();
        hostile["predicate"]["resources"] = serde_json::json!([{"name": name, "algorithm": "sha256", "digest": weir_manifest::Digest::of(b"secret").to_hex()}]);
        let root =
            weir_manifest::Digest::of(weir_manifest::Digest::of(b"secret").as_bytes()).to_hex();
        hostile["subject"][0]["digest"]["sha256"] = serde_json::json!(root);
        let Ok(statement) = weir_manifest::Statement::from_payload(hostile.to_string().as_bytes())
        else {
            return Ok(());
        };
        let bundle = weir_manifest::sign_with_key(&statement, &artifact.key);
        let dir = artifact.dir();
        let request = fixture::request(&dir, SignatureSource::Inline(&bundle), &artifact.policy);
        prop_assert!(
            weir_manifest::verify_directory(&request).is_err(),
            "{name:?}"
        );
        prop_assert!(open_verified(&request, &artifact.signed.claim).is_err());
        Ok(())
    });
}
