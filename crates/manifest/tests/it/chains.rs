//! Chains of certificates that each break one rule; the signatures are good.

use weir_manifest::{TrustPolicy, check_signature};

use crate::fixture::{self, now};

#[test]
fn every_broken_chain_is_refused_with_its_reason() {
    let policy = TrustPolicy::of_roots("corp", &fixture::text("certs/root.pem")).unwrap();
    let cases = [
        ("good", None),
        ("good-unordered", None),
        ("no-middle", Some(("CertificateUntrusted", "Release"))),
        ("expired-leaf", Some(("CertificateExpired", "Release"))),
        (
            "expired-middle",
            Some(("CertificateExpired", "Test Middle")),
        ),
        ("not-authority", Some(("CertificateInvalid", "authority"))),
        (
            "not-issuing",
            Some(("CertificateInvalid", "signing certificates")),
        ),
        ("path-length", Some(("CertificateInvalid", "path length"))),
        ("other-root", Some(("CertificateInvalid", "not signed by"))),
        ("forged-leaf", Some(("CertificateInvalid", "not signed by"))),
        (
            "no-signing",
            Some(("CertificateInvalid", "digital signatures")),
        ),
        ("no-usage", Some(("CertificateInvalid", "neither"))),
        ("for-servers", Some(("CertificateInvalid", "code signing"))),
        (
            "unknown-critical",
            Some(("CertificateInvalid", "1.3.6.1.4.1.99999.1")),
        ),
    ];
    let mut failures = Vec::new();
    for (name, want) in cases {
        let result = check_signature(
            &fixture::bytes(&format!("signatures/chain-{name}.sig")),
            &policy,
            now(),
        );
        let got = result.as_ref().err().map(|e| (e.reason(), e.to_string()));
        let good = match (want, &got) {
            (None, None) => true,
            (Some((reason, words)), Some((got, message))) => {
                reason == *got && message.contains(words)
            }
            _ => false,
        };
        if !good {
            failures.push(format!("{name}: want {want:?}, got {got:?}"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn a_chain_to_another_root_of_the_same_name_is_refused() {
    let policy = TrustPolicy::of_roots("corp", &fixture::text("certs/other-root.pem")).unwrap();
    let error =
        check_signature(&fixture::bytes("signatures/chain-good.sig"), &policy, now()).unwrap_err();
    assert_eq!(error.reason(), "CertificateInvalid", "{error}");
    let none = TrustPolicy::of_key("release", fixture::public_key("p256"));
    let error =
        check_signature(&fixture::bytes("signatures/chain-good.sig"), &none, now()).unwrap_err();
    assert_eq!(error.reason(), "CertificateUntrusted", "{error}");
}

#[test]
fn the_signers_own_certificate_may_be_the_root() {
    let pinned = TrustPolicy::of_roots("pinned", &fixture::text("certs/leaf.pem")).unwrap();
    check_signature(&fixture::bytes("signatures/chain-good.sig"), &pinned, now()).unwrap();
}

#[test]
fn certificates_are_judged_at_the_time_given() {
    let policy = TrustPolicy::of_roots("corp", &fixture::text("certs/root.pem")).unwrap();
    for (time, valid) in [
        ("2025-12-31T23:59:59Z", false),
        ("2026-01-01T00:00:00Z", true),
        ("2126-01-01T00:00:00Z", true),
        ("2126-01-01T00:00:01Z", false),
    ] {
        let result = check_signature(
            &fixture::bytes("signatures/chain-good.sig"),
            &policy,
            time.parse().unwrap(),
        );
        assert_eq!(result.is_ok(), valid, "{time}: {result:?}");
    }
}

#[test]
fn an_expired_certificate_counts_where_the_root_allows_it() {
    let yaml = |expired: &str| {
        let pem = fixture::text("certs/root.pem").replace('\n', "\n    ");
        format!(
            "roots:\n- id: corp\n  certificates: |\n    {pem}\n  identities: ['*']\n  models: ['*']\n  expired: {expired}\n"
        )
    };
    let bundle = fixture::bytes("signatures/chain-expired-leaf.sig");
    let denied = TrustPolicy::from_yaml(&yaml("Denied")).unwrap();
    assert_eq!(
        check_signature(&bundle, &denied, now())
            .unwrap_err()
            .reason(),
        "CertificateExpired"
    );
    let allowed = TrustPolicy::from_yaml(&yaml("Allowed")).unwrap();
    check_signature(&bundle, &allowed, now()).unwrap();
    let before_issue = "2025-12-31T00:00:00Z".parse().unwrap();
    assert_eq!(
        check_signature(&bundle, &allowed, before_issue)
            .unwrap_err()
            .reason(),
        "CertificateExpired"
    );
}
