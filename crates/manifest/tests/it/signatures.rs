//! What the Python implementation signed, read here; what is signed here, byte for byte.

use std::fs;

use weir_manifest::{
    Algorithm, SignRequest, SignatureSource, SigningKey, TrustPolicy, VerifyError, check_signature,
    open_signed, sign_directory, sign_with_certificates, sign_with_key,
};

use crate::fixture::{self, Artifact, now};

#[test]
fn signatures_of_the_python_peer_with_bare_keys_verify() {
    for name in ["p256", "p384"] {
        let policy = TrustPolicy::of_key("peer", fixture::public_key(name));
        let bundle = fixture::bytes(&format!("signatures/{name}.sig"));
        let artifact = open_signed(&fixture::request(
            &fixture::path("model"),
            SignatureSource::Inline(&bundle),
            &policy,
        ))
        .unwrap();
        assert_eq!(
            (artifact.manifest.model.as_str(), artifact.manifest.version),
            ("tiny", 2)
        );
        assert_eq!(artifact.signer.id, "peer");
        assert_eq!(artifact.files().count(), 7);
    }
}

#[test]
fn a_certificate_signature_of_the_python_peer_verifies() {
    let policy = TrustPolicy::of_roots("corp", &fixture::text("certs/root.pem")).unwrap();
    let bundle = fixture::bytes("signatures/chain-good.sig");
    let artifact = open_signed(&fixture::request(
        &fixture::path("model"),
        SignatureSource::Inline(&bundle),
        &policy,
    ))
    .unwrap();
    assert_eq!(
        artifact.signer.identity.as_deref(),
        Some("release@example.com")
    );
}

#[test]
fn a_signature_under_another_key_is_refused_by_fingerprint() {
    let policy = TrustPolicy::of_key("other", fixture::public_key("p384"));
    let error =
        check_signature(&fixture::bytes("signatures/p256.sig"), &policy, now()).unwrap_err();
    let fingerprint = fixture::public_key("p256").fingerprint().to_hex();
    assert!(
        matches!(&error, VerifyError::KeyUnknown { fingerprint: f } if *f == fingerprint),
        "{error}"
    );
}

#[test]
fn the_manifest_written_here_is_the_one_the_python_script_wrote() {
    let artifact = Artifact::new();
    assert_eq!(
        fs::read(artifact.dir().join("weir-manifest.json")).unwrap(),
        fixture::bytes("model/weir-manifest.json")
    );
}

#[test]
fn signing_twice_gives_the_same_bytes() {
    for algorithm in [Algorithm::P256, Algorithm::P384, Algorithm::Ed25519] {
        let artifact = Artifact::signed_with(
            SigningKey::generate(algorithm).unwrap(),
            &fixture::identity(),
        );
        let request = SignRequest {
            dir: &artifact.dir(),
            identity: &fixture::identity(),
            key: &artifact.key,
            certificates: None,
            signature_file: &fixture::signature_file(),
            progress: None,
        };
        assert_eq!(
            sign_directory(&request).unwrap(),
            artifact.signed,
            "{algorithm}"
        );
        artifact.open().unwrap();
    }
}

#[test]
fn a_bundle_without_a_hint_is_tried_against_every_key() {
    let artifact = Artifact::new();
    let bundle = String::from_utf8(artifact.signed.bundle.clone()).unwrap();
    let hint = artifact.key.public_key().fingerprint().to_hex();
    let bare = bundle.replace(&format!(r#"{{"hint":"{hint}"}}"#), "{}");
    assert_ne!(bare, bundle);
    check_signature(bare.as_bytes(), &artifact.policy, now()).unwrap();
    let other = TrustPolicy::of_key("other", fixture::public_key("p256"));
    assert_eq!(
        check_signature(bare.as_bytes(), &other, now())
            .unwrap_err()
            .reason(),
        "KeyUnknown"
    );
}

#[test]
fn a_hint_that_names_a_trusted_key_does_not_replace_the_signature() {
    let artifact = Artifact::new();
    let mine = artifact.key.public_key().fingerprint().to_hex();
    let trusted = fixture::public_key("p256");
    let forged = String::from_utf8(artifact.signed.bundle.clone())
        .unwrap()
        .replace(&mine, &trusted.fingerprint().to_hex());
    let error = check_signature(
        forged.as_bytes(),
        &TrustPolicy::of_key("release", trusted),
        now(),
    )
    .unwrap_err();
    assert!(
        matches!(&error, VerifyError::SignatureInvalid { signer } if signer == "release"),
        "{error}"
    );
}

#[test]
fn the_signature_of_one_statement_does_not_verify_another() {
    let key = SigningKey::generate(Algorithm::P256).unwrap();
    let policy = TrustPolicy::of_key("release", key.public_key());
    let (one, two) = (
        Artifact::new(),
        Artifact::signed_with(SigningKey::generate(Algorithm::P384).unwrap(), &{
            let mut identity = fixture::identity();
            identity.version = 3;
            identity
        }),
    );
    let statement = |artifact: &Artifact| {
        check_signature(&artifact.signed.bundle, &artifact.policy, now())
            .unwrap()
            .unpermitted()
            .clone()
    };
    let (one, two) = (
        sign_with_key(&statement(&one), &key),
        sign_with_key(&statement(&two), &key),
    );
    let json = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
    let (mut spliced, other) = (json(&one), json(&two));
    check_signature(spliced.to_string().as_bytes(), &policy, now()).unwrap();
    spliced["dsseEnvelope"]["payload"] = other["dsseEnvelope"]["payload"].clone();
    assert_eq!(
        check_signature(spliced.to_string().as_bytes(), &policy, now())
            .unwrap_err()
            .reason(),
        "SignatureInvalid"
    );
}

#[test]
fn a_chain_signs_only_with_the_key_of_its_first_certificate() {
    let policy = TrustPolicy::of_roots("corp", &fixture::text("certs/root.pem")).unwrap();
    let statement = check_signature(&fixture::bytes("signatures/chain-good.sig"), &policy, now())
        .unwrap()
        .unpermitted()
        .clone();
    let key = SigningKey::from_pem(&fixture::text("keys/leaf.key")).unwrap();
    let chain = fixture::text("certs/chain.pem");
    let bundle = sign_with_certificates(&statement, &key, &chain).unwrap();
    let checked = check_signature(&bundle, &policy, now()).unwrap();
    assert_eq!(
        checked.permit("tiny").unwrap().1.identity.as_deref(),
        Some("release@example.com")
    );
    let stranger = SigningKey::generate(Algorithm::P256).unwrap();
    assert_eq!(
        sign_with_certificates(&statement, &stranger, &chain)
            .unwrap_err()
            .reason(),
        "CertificateInvalid"
    );
    assert_eq!(
        sign_with_certificates(&statement, &key, "no pem")
            .unwrap_err()
            .reason(),
        "SignatureMalformed"
    );
}
