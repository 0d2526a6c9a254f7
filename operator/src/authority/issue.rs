//! Keys and certificates: made here, and read back from what was stored.

use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use weir_identity::Role;
use x509_cert::der::DecodePem as _;

use super::life::{Life, SKEW};

/// A certificate and its key, PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// What is read of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) life: Life,
    /// Whose it is, as the certificate names them.
    pub(crate) subject: String,
    pub(crate) issuer: String,
}

/// An authority whose name nobody had before: two are told apart by it while one takes the place of the other.
pub(crate) fn authority(namespace: &str, life: Duration, now_s: u64) -> Result<Pair, rcgen::Error> {
    let key = KeyPair::generate()?;
    let mut parameters = authority_named(&format!("weir {namespace} {now_s}"));
    set_life(&mut parameters, life, now_s);
    Ok(Pair {
        certificate: parameters.self_signed(&key)?.pem(),
        key: key.serialize_pem(),
    })
}

fn authority_named(name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    // Without what the library puts there by itself.
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters
}

/// A certificate for a role, good for both ends of a connection.
pub(crate) fn certificate(
    by: &Pair,
    role: Role,
    life: Duration,
    now_s: u64,
) -> Result<Pair, String> {
    let about = about(&by.certificate).ok_or("the authority's certificate cannot be read")?;
    let name = about.subject.strip_prefix("CN=");
    let name = name.ok_or("the authority's certificate has another name than Weir gives")?;
    let made = || -> Result<Pair, rcgen::Error> {
        let issuer = Issuer::new(authority_named(name), KeyPair::from_pem(&by.key)?);
        let key = KeyPair::generate()?;
        let mut parameters = CertificateParams::new([role.name().to_owned()])?;
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters
            .distinguished_name
            .push(DnType::CommonName, role.name());
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        set_life(&mut parameters, life, now_s);
        Ok(Pair {
            certificate: parameters.signed_by(&key, &issuer)?.pem(),
            key: key.serialize_pem(),
        })
    };
    made().map_err(|error| format!("the authority's key cannot be used: {error}"))
}

fn set_life(parameters: &mut CertificateParams, life: Duration, now_s: u64) {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now_s);
    parameters.not_before = (now - SKEW).into();
    parameters.not_after = (now + life).into();
}

/// What a certificate says; `None` where it is none.
pub(crate) fn about(pem: &str) -> Option<About> {
    let read = x509_cert::Certificate::from_pem(pem).ok()?;
    let certificate = read.tbs_certificate();
    let validity = certificate.validity();
    Some(About {
        life: Life {
            begin_s: validity.not_before.to_unix_duration().as_secs(),
            end_s: validity.not_after.to_unix_duration().as_secs(),
        },
        subject: certificate.subject().to_string(),
        issuer: certificate.issuer().to_string(),
    })
}

#[cfg(test)]
mod tests {
    use weir_identity::Credentials;

    use super::*;

    const NOW: u64 = 1_800_000_000;

    #[test]
    fn what_is_issued_is_read_back_and_others_take_it() {
        let by = authority("prod", Duration::from_hours(12), NOW).unwrap();
        let about_authority = about(&by.certificate).unwrap();
        assert_eq!(about_authority.subject, format!("CN=weir prod {NOW}"));
        let made = certificate(&by, Role::Gateway, Duration::from_hours(1), NOW).unwrap();
        let made_about = about(&made.certificate).unwrap();
        assert_eq!(made_about.issuer, about_authority.subject);
        assert_eq!(made_about.life.end_s, NOW + 3_600);
        assert!(made_about.life.begin_s < NOW, "clocks are not one");
        Credentials::from_pem(
            made.certificate.as_bytes(),
            made.key.as_bytes(),
            by.certificate.as_bytes(),
        )
        .unwrap();
        assert_eq!(about("nothing"), None);
        let broken = Pair {
            key: "nothing".to_owned(),
            ..by
        };
        let error = certificate(&broken, Role::Worker, Duration::from_hours(1), NOW).unwrap_err();
        assert!(error.contains("key cannot be used"), "{error}");
    }
}
