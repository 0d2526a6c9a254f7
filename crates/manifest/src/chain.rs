//! Certificates: from the signer's to a trusted root, offline.
//!
//! The rules are those of RFC 5280 section 6 as far as signing needs them: names chain, every signature holds, every certificate is
//! valid at the time given, authorities are marked as such and may sign certificates, path lengths hold, and a critical extension that is
//! not understood refuses the certificate (name constraints and policies among them). Keys are P-256, P-384 and Ed25519; RSA is refused by
//! name. There are no revocation lists: the trust policy revokes.

use jiff::Timestamp;
use x509_cert::Certificate;
use x509_cert::der::asn1::ObjectIdentifier;
use x509_cert::der::{Decode as _, Encode as _, Reader as _, SliceReader};
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::ext::pkix::{BasicConstraints, ExtendedKeyUsage, KeyUsage, SubjectAltName};

use crate::keys::{Hash, PublicKey};
use crate::{Digest, VerifyError};

const ECDSA_WITH_SHA256: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.2");
const ECDSA_WITH_SHA384: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.3");
const ECDSA_WITH_SHA512: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.4.3.4");
const ED25519: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.101.112");
const CODE_SIGNING: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.3");
const ANY_USAGE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.37.0");
/// Critical extensions that are understood: basic constraints, key usage, extended key usage, subject alternative name.
const UNDERSTOOD: [&str; 4] = ["2.5.29.19", "2.5.29.15", "2.5.29.37", "2.5.29.17"];

/// Before a subject in the list of identities, and in patterns that mean it.
const SUBJECT_PREFIX: &str = "subject:";

/// Longest path from leaf to root.
const MAX_PATH: usize = 8;
/// Most signatures checked for one bundle, so that a hostile set of certificates costs little.
const MAX_SIGNATURE_CHECKS: usize = 64;

/// Is this identity, or pattern, about a subject rather than an alternative name?
pub(crate) fn is_subject(identity: &str) -> bool {
    identity.starts_with(SUBJECT_PREFIX)
}

/// A parsed certificate with the exact bytes that its issuer signed.
#[derive(Clone, Debug)]
pub(crate) struct Cert {
    parsed: Certificate,
    der: Vec<u8>,
    signed_bytes: Vec<u8>,
    pub(crate) subject: String,
}

/// A leaf that leads to a root.
#[derive(Debug)]
pub(crate) struct Anchored {
    pub(crate) key: PublicKey,
    /// Subjects and fingerprints of the path, leaf first, root last.
    pub(crate) path: Vec<(String, Digest)>,
}

impl Cert {
    pub(crate) fn from_der(der: &[u8]) -> Result<Self, VerifyError> {
        let malformed = |e| VerifyError::SignatureMalformed {
            cause: format!("a certificate is not valid DER: {e}"),
        };
        let parsed = Certificate::from_der(der).map_err(malformed)?;
        let signed_bytes = signed_bytes(der).map_err(malformed)?.to_vec();
        let subject = parsed.tbs_certificate().subject().to_string();
        Ok(Self {
            parsed,
            der: der.to_vec(),
            signed_bytes,
            subject,
        })
    }

    /// Every certificate of a PEM file, in its order; text between them is skipped.
    pub(crate) fn from_pem_chain(pem: &str) -> Option<Vec<Self>> {
        let mut certificates = Vec::new();
        let mut rest = pem;
        while let Some(start) = rest.find("-----BEGIN CERTIFICATE-----") {
            let end_marker = "-----END CERTIFICATE-----";
            let end = start + rest.get(start..)?.find(end_marker)? + end_marker.len();
            let (_, der) =
                x509_cert::der::pem::decode_vec(rest.get(start..end)?.as_bytes()).ok()?;
            certificates.push(Self::from_der(&der).ok()?);
            rest = rest.get(end..)?;
        }
        (!certificates.is_empty()).then_some(certificates)
    }

    pub(crate) fn fingerprint(&self) -> Digest {
        Digest::of(&self.der)
    }

    pub(crate) fn der(&self) -> &[u8] {
        &self.der
    }

    pub(crate) fn public_key(&self) -> Result<PublicKey, VerifyError> {
        let info = self.parsed.tbs_certificate().subject_public_key_info();
        let der = info.to_der().map_err(|e| self.invalid(e.to_string()))?;
        PublicKey::from_spki_der(&der).map_err(|_| {
            self.invalid(format!(
                "its key of type {} is not P-256, P-384 or Ed25519",
                info.algorithm.oid
            ))
        })
    }

    /// The begin and end of its validity.
    pub(crate) fn validity(&self) -> (Timestamp, Timestamp) {
        let validity = self.parsed.tbs_certificate().validity();
        let time = |t: x509_cert::time::Time, fallback| {
            i64::try_from(t.to_unix_duration().as_secs())
                .ok()
                .and_then(|s| Timestamp::from_second(s).ok())
                .unwrap_or(fallback)
        };
        // Years beyond 9999 cannot be written in a certificate, so the fallbacks are never taken.
        (
            time(validity.not_before, Timestamp::MAX),
            time(validity.not_after, Timestamp::MIN),
        )
    }

    /// What the certificate says its holder is: alternative names first, then the subject with a prefix of its own. Without the prefix a
    /// pattern such as `*@example.com`, meant for e-mail addresses that an authority has proven, would also match a subject that merely
    /// ends so.
    pub(crate) fn identities(&self) -> Vec<String> {
        let mut identities = Vec::new();
        if let Ok(Some((_, names))) = self
            .parsed
            .tbs_certificate()
            .get_extension::<SubjectAltName>()
        {
            identities.extend(names.0.iter().filter_map(|name| match name {
                GeneralName::Rfc822Name(text)
                | GeneralName::DnsName(text)
                | GeneralName::UniformResourceIdentifier(text) => Some(text.to_string()),
                _ => None,
            }));
        }
        // A URI could be written so that it passes for a subject.
        identities.retain(|name| !is_subject(name));
        identities.push(format!("{SUBJECT_PREFIX}{}", self.subject));
        identities
    }

    fn invalid(&self, cause: impl Into<String>) -> VerifyError {
        VerifyError::CertificateInvalid {
            subject: self.subject.clone(),
            cause: cause.into(),
        }
    }

    fn check_validity(&self, at: Timestamp) -> Result<(), VerifyError> {
        let (not_before, not_after) = self.validity();
        if (not_before..=not_after).contains(&at) {
            return Ok(());
        }
        Err(VerifyError::CertificateExpired {
            subject: self.subject.clone(),
            not_before,
            not_after,
            at,
        })
    }

    fn check_extensions(&self) -> Result<(), VerifyError> {
        for extension in self
            .parsed
            .tbs_certificate()
            .extensions()
            .map_or(&[][..], Vec::as_slice)
        {
            let oid = extension.extn_id.to_string();
            if extension.critical && !UNDERSTOOD.contains(&oid.as_str()) {
                return Err(self.invalid(format!("its critical extension {oid} is not supported")));
            }
        }
        Ok(())
    }

    fn extension<'a, T>(&'a self, name: &str) -> Result<Option<T>, VerifyError>
    where
        T: x509_cert::der::Decode<'a> + x509_cert::der::oid::AssociatedOid,
    {
        let found = self.parsed.tbs_certificate().get_extension::<T>();
        found
            .map(|e| e.map(|(_, value)| value))
            .map_err(|_| self.invalid(format!("its extension {name} is malformed or repeated")))
    }

    /// May this certificate's key sign artifacts?
    fn check_signer(&self) -> Result<(), VerifyError> {
        let usage = self.extension::<KeyUsage>("key usage")?;
        let purposes = self.extension::<ExtendedKeyUsage>("extended key usage")?;
        if usage.is_some_and(|u| !u.digital_signature()) {
            return Err(self.invalid("its key usage does not include digital signatures"));
        }
        let for_code = purposes.as_ref().map(|p| {
            p.0.iter()
                .any(|oid| [CODE_SIGNING, ANY_USAGE].contains(oid))
        });
        match (usage, for_code) {
            // A certificate for servers or mail is no certificate for models, although the Python peer would take it.
            (_, Some(false)) => {
                Err(self.invalid("its extended key usage does not include code signing"))
            }
            (None, None) => {
                Err(self.invalid("it states neither a key usage nor an extended key usage"))
            }
            _ => Ok(()),
        }
    }

    /// May this certificate issue one with `authorities_below` authorities between it and the leaf?
    fn check_authority(&self, authorities_below: usize) -> Result<(), VerifyError> {
        let constraints = self.extension::<BasicConstraints>("basic constraints")?;
        let Some(constraints) = constraints.filter(|c| c.ca) else {
            return Err(self.invalid("it is not marked as a certificate authority"));
        };
        if constraints
            .path_len_constraint
            .is_some_and(|limit| authorities_below > usize::from(limit))
        {
            return Err(self.invalid("its path length is exceeded"));
        }
        if self
            .extension::<KeyUsage>("key usage")?
            .is_some_and(|u| !u.key_cert_sign())
        {
            return Err(self.invalid("its key usage does not include signing certificates"));
        }
        Ok(())
    }

    fn is_named_issuer_of(&self, other: &Self) -> bool {
        self.parsed.tbs_certificate().subject() == other.parsed.tbs_certificate().issuer()
    }

    fn has_issued(&self, other: &Self) -> Result<bool, VerifyError> {
        let algorithm = other.parsed.signature_algorithm();
        // The algorithm inside the signed bytes must be the one outside of them (RFC 5280, 4.1.1.2).
        if algorithm != other.parsed.tbs_certificate().signature() {
            return Err(other.invalid("it names two signature algorithms"));
        }
        let Some(signature) = other.parsed.signature().as_bytes() else {
            return Err(other.invalid("its signature is not a whole number of bytes"));
        };
        let key = self.public_key()?;
        match algorithm.oid {
            ECDSA_WITH_SHA256 => {
                Ok(key.has_signed_with(Hash::Sha256, &other.signed_bytes, signature))
            }
            ECDSA_WITH_SHA384 => {
                Ok(key.has_signed_with(Hash::Sha384, &other.signed_bytes, signature))
            }
            ECDSA_WITH_SHA512 => {
                Ok(key.has_signed_with(Hash::Sha512, &other.signed_bytes, signature))
            }
            ED25519 => Ok(matches!(key, PublicKey::Ed25519(_))
                && key.has_signed(&other.signed_bytes, signature)),
            oid => Err(other.invalid(format!("its signature algorithm {oid} is not supported"))),
        }
    }
}

/// The first element of the outer sequence, exactly as it stands: encoding it again could change what was signed.
fn signed_bytes(der: &[u8]) -> Result<&[u8], x509_cert::der::Error> {
    let mut reader = SliceReader::new(der)?;
    reader.sequence(|inner| {
        let signed = inner.tlv_bytes()?;
        inner.tlv_bytes()?;
        inner.tlv_bytes()?;
        Ok(signed)
    })
}

/// Finds a path from `leaf` over `intermediates` to one of `roots`, all valid at `at`.
pub(crate) fn anchor<'a>(
    leaf: &'a Cert,
    intermediates: &'a [Cert],
    roots: &[&'a Cert],
    at: Timestamp,
) -> Result<Anchored, VerifyError> {
    leaf.check_validity(at)?;
    leaf.check_extensions()?;
    leaf.check_signer()?;
    let key = leaf.public_key()?;
    // A root entry may pin the signer's own certificate.
    if roots.iter().any(|root| root.der == leaf.der) {
        return Ok(Anchored {
            key,
            path: vec![(leaf.subject.clone(), leaf.fingerprint())],
        });
    }
    let mut search = Search {
        intermediates,
        roots,
        at,
        checks_left: MAX_SIGNATURE_CHECKS,
        fault: None,
    };
    let mut path = vec![leaf];
    match search.extend(&mut path) {
        Some(root) => {
            let path = path
                .iter()
                .chain([&root])
                .map(|c| (c.subject.clone(), c.fingerprint()))
                .collect();
            Ok(Anchored { key, path })
        }
        // The fault of the nearest miss says more than "no path".
        None => Err(search
            .fault
            .unwrap_or_else(|| VerifyError::CertificateUntrusted {
                subject: leaf.subject.clone(),
            })),
    }
}

struct Search<'a, 'r> {
    intermediates: &'a [Cert],
    roots: &'r [&'a Cert],
    at: Timestamp,
    checks_left: usize,
    fault: Option<VerifyError>,
}

impl<'a> Search<'a, '_> {
    /// Depth first; roots before intermediates. Leaves the authorities it used in `path`.
    fn extend(&mut self, path: &mut Vec<&'a Cert>) -> Option<&'a Cert> {
        let below = *path.last()?;
        let authorities_below = path.len() - 1;
        let roots = self.roots;
        for root in roots {
            if self.issued(root, below, authorities_below) {
                return Some(root);
            }
        }
        if path.len() >= MAX_PATH {
            return None;
        }
        for candidate in self.intermediates {
            if path.iter().any(|used| used.der == candidate.der)
                || !self.issued(candidate, below, authorities_below)
            {
                continue;
            }
            path.push(candidate);
            if let Some(root) = self.extend(path) {
                return Some(root);
            }
            path.pop();
        }
        None
    }

    fn issued(&mut self, authority: &Cert, below: &Cert, authorities_below: usize) -> bool {
        if !authority.is_named_issuer_of(below) || self.checks_left == 0 {
            return false;
        }
        self.checks_left -= 1;
        let checked = authority
            .check_validity(self.at)
            .and_then(|()| authority.check_extensions())
            .and_then(|()| authority.check_authority(authorities_below))
            .and_then(|()| authority.has_issued(below));
        match checked {
            Ok(true) => true,
            Ok(false) => {
                self.fault.get_or_insert_with(|| {
                    below.invalid(format!("it was not signed by {:?}", authority.subject))
                });
                false
            }
            Err(fault) => {
                self.fault.get_or_insert(fault);
                false
            }
        }
    }
}
