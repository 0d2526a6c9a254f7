//! The trust policy: who may sign what, when, and how a wrong policy is refused.

use std::collections::BTreeMap;

use weir_manifest::{Signer, TrustPolicy, VerifyError, check_signature};

use crate::fixture::{self, now};

fn indented(name: &str) -> String {
    fixture::text(name).trim_end().replace('\n', "\n    ")
}

fn key_policy(fields: &str) -> String {
    let pem = indented("keys/p256.pub");
    format!("keys:\n- id: release\n  publicKey: |\n    {pem}\n{fields}")
}

fn root_policy(fields: &str) -> String {
    let pem = indented("certs/root.pem");
    format!("roots:\n- id: corp\n  certificates: |\n    {pem}\n{fields}")
}

fn permit(policy: &str, bundle: &str, model: &str) -> Result<Signer, VerifyError> {
    let policy = TrustPolicy::from_yaml(policy).unwrap();
    let checked = check_signature(&fixture::bytes(bundle), &policy, now())?;
    checked.permit(model).map(|(_, signer)| signer.clone())
}

#[test]
fn keys_sign_what_their_entry_permits() {
    let cases = [
        ("  models: ['*']\n", "tiny", None),
        ("  models: ['other', 'ti?y']\n", "tiny", None),
        ("  models: ['tiny-*']\n", "tiny", Some("KeyNotPermitted")),
        (
            "  models: ['*']\n  notBefore: 2026-01-01T00:00:00Z\n  notAfter: 2027-01-01T00:00:00Z\n",
            "tiny",
            None,
        ),
        (
            "  models: ['*']\n  notBefore: 2027-01-01T00:00:00Z\n",
            "tiny",
            Some("KeyNotYetValid"),
        ),
        (
            "  models: ['*']\n  notAfter: 2026-11-28T23:59:59Z\n",
            "tiny",
            Some("KeyExpired"),
        ),
        (
            "  models: ['*']\n  revoked: true\n",
            "tiny",
            Some("KeyRevoked"),
        ),
        ("  models: ['*']\n  revoked: false\n", "tiny", None),
    ];
    for (fields, model, want) in cases {
        let got = permit(&key_policy(fields), "signatures/p256.sig", model);
        assert_eq!(
            got.as_ref().err().map(VerifyError::reason),
            want,
            "{fields}"
        );
        match got {
            Ok(signer) => assert_eq!(signer.id, "release"),
            Err(error) => assert!(error.to_string().contains("release"), "{error}"),
        }
    }
}

#[test]
fn certificates_sign_what_their_root_permits() {
    let leaf = weir_manifest::Digest::of(&pem_der("certs/leaf.pem")).to_string();
    let root = weir_manifest::Digest::of(&pem_der("certs/root.pem")).to_hex();
    let cases = [
        (
            "  identities: ['*@example.com']\n  models: ['*']\n".to_owned(),
            None,
        ),
        (
            "  identities: ['subject:CN=Release']\n  models: ['*']\n".to_owned(),
            None,
        ),
        (
            // A pattern for alternative names does not reach the subject, which is "CN=Release" here.
            "  identities: ['*Release']\n  models: ['*']\n".to_owned(),
            Some("IdentityNotPermitted"),
        ),
        (
            "  identities: ['*@example.org']\n  models: ['*']\n".to_owned(),
            Some("IdentityNotPermitted"),
        ),
        (
            "  identities: ['*']\n  models: ['other']\n".to_owned(),
            Some("KeyNotPermitted"),
        ),
        (
            "  identities: ['*']\n  models: ['*']\n  revoked: true\n".to_owned(),
            Some("KeyRevoked"),
        ),
        (
            "  identities: ['*']\n  models: ['*']\n  notAfter: 2026-01-02T00:00:00Z\n".to_owned(),
            Some("KeyExpired"),
        ),
        (
            format!("  identities: ['*']\n  models: ['*']\n  revokedCertificates: ['{leaf}']\n"),
            Some("CertificateRevoked"),
        ),
        (
            format!("  identities: ['*']\n  models: ['*']\n  revokedCertificates: ['{root}']\n"),
            Some("CertificateRevoked"),
        ),
    ];
    for (fields, want) in cases {
        let got = permit(&root_policy(&fields), "signatures/chain-good.sig", "tiny");
        assert_eq!(
            got.as_ref().err().map(VerifyError::reason),
            want,
            "{fields}: {got:?}"
        );
    }
}

fn pem_der(name: &str) -> Vec<u8> {
    use base64::Engine as _;
    let body: String = fixture::text(name)
        .lines()
        .filter(|line| !line.starts_with("-----"))
        .collect();
    base64::engine::general_purpose::STANDARD
        .decode(body)
        .unwrap()
}

#[test]
fn a_root_in_two_entries_gives_each_identity_its_own_models() {
    let one = root_policy("  identities: ['nobody@example.com']\n  models: ['*']\n");
    let two = root_policy("  identities: ['release@example.com']\n  models: ['tiny']\n")
        .replace("roots:\n", "")
        .replace("corp", "corp-release");
    let both = format!("{one}{two}");
    assert_eq!(
        permit(&both, "signatures/chain-good.sig", "tiny")
            .unwrap()
            .id,
        "corp-release"
    );
    assert_eq!(
        permit(&both, "signatures/chain-good.sig", "other")
            .unwrap_err()
            .reason(),
        "KeyNotPermitted"
    );
}

#[test]
fn a_wrong_policy_is_refused_whole_and_names_the_place() {
    let good = key_policy("  models: ['*']\n");
    let twice = format!(
        "{good}{}",
        good.replace("keys:\n", "").replace("release", "again")
    );
    let root = root_policy("  identities: ['*']\n  models: ['*']\n");
    let cases = [
        (
            good.replace("BEGIN PUBLIC", "BEGIN SECRET"),
            "keys[\"release\"].publicKey cannot be read",
        ),
        (
            key_policy("  models: []\n"),
            "keys[\"release\"].models is empty",
        ),
        (
            key_policy(
                "  models: ['*']\n  notBefore: 2027-01-01T00:00:00Z\n  notAfter: 2026-01-01T00:00:00Z\n",
            ),
            "notAfter is not after",
        ),
        (
            format!("{good}{}", good.replace("keys:\n", "")),
            "the id \"release\" is used twice",
        ),
        (twice, "is also the key of \"release\""),
        (
            root_policy("  identities: []\n  models: ['*']\n"),
            "roots[\"corp\"].identities is empty",
        ),
        (
            root.replace("BEGIN CERTIFICATE", "BEGIN CERT"),
            "roots[\"corp\"].certificates has no readable",
        ),
        (
            key_policy("  models: ['*']\n  revokedd: true\n"),
            "cannot be read",
        ),
        ("keys: 7\n".to_owned(), "cannot be read"),
    ];
    for (yaml, want) in cases {
        let error = TrustPolicy::from_yaml(&yaml).map(|_| ()).unwrap_err();
        assert!(
            error.to_string().contains(want),
            "want {want}: {error}\n{yaml}"
        );
    }
}

#[test]
fn an_empty_policy_trusts_nobody() {
    for yaml in ["", "keys: []\n", "{}", "# nothing\n"] {
        let policy = TrustPolicy::from_yaml(yaml).unwrap();
        assert!(policy.is_empty());
        assert_eq!(
            check_signature(&fixture::bytes("signatures/p256.sig"), &policy, now())
                .unwrap_err()
                .reason(),
            "KeyUnknown"
        );
    }
}

#[test]
fn a_config_map_holds_the_policy_whole_or_in_lists() {
    let keys = key_policy("  models: ['*']\n");
    let roots = root_policy("  identities: ['*']\n  models: ['*']\n");
    let data = |entries: &[(&str, &str)]| {
        entries
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect::<BTreeMap<_, _>>()
    };
    let lists = data(&[
        ("keys", keys.strip_prefix("keys:\n").unwrap()),
        ("roots", roots.strip_prefix("roots:\n").unwrap()),
    ]);
    for data in [data(&[("policy.yaml", &format!("{keys}{roots}"))]), lists] {
        let policy = TrustPolicy::from_config_map(&data).unwrap();
        check_signature(&fixture::bytes("signatures/p256.sig"), &policy, now()).unwrap();
        check_signature(&fixture::bytes("signatures/chain-good.sig"), &policy, now()).unwrap();
    }
    let error = TrustPolicy::from_config_map(&data(&[("key", "[]")]))
        .map(|_| ())
        .unwrap_err();
    assert!(error.to_string().contains("\"key\""), "{error}");
}
