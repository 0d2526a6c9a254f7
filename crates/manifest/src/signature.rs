//! Makes and checks signatures over statements. Pure: bytes in, bytes or a verdict out; the time is an argument.

use jiff::Timestamp;

use crate::bundle::{Bundle, Material, pre_authentication_encoding};
use crate::chain::{self, Anchored, Cert};
use crate::keys::SigningKey;
use crate::statement::Statement;
use crate::trust::{Entry, ExpiredCertificates, TrustPolicy, TrustedRoot};
use crate::{Digest, VerifyError};

/// Who signed, as far as the trust policy knows.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Signer {
    /// Id of the key or root in the trust policy.
    pub id: String,
    /// What the certificate says its holder is; none for a bare key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// SHA-256 of the public key's PEM form, or of the certificate's DER form.
    pub fingerprint: Digest,
}

/// A statement whose signature holds under a trusted key. Which models the key may sign is still open: [`SignedStatement::permit`].
#[derive(Debug)]
pub struct SignedStatement {
    statement: Statement,
    /// The entries that accept the signature, at least one; each with the models it may sign.
    grants: Vec<(Signer, Vec<String>)>,
}

impl SignedStatement {
    /// The statement, if a signer may sign `model`.
    ///
    /// # Errors
    /// [`VerifyError::KeyNotPermitted`].
    pub fn permit(&self, model: &str) -> Result<(&Statement, &Signer), VerifyError> {
        if let Some((signer, _)) = self
            .grants
            .iter()
            .find(|(_, models)| crate::glob::any_matches(models, model))
        {
            return Ok((&self.statement, signer));
        }
        let id = self
            .grants
            .first()
            .map(|(signer, _)| signer.id.clone())
            .unwrap_or_default();
        Err(VerifyError::KeyNotPermitted {
            id,
            model: model.to_owned(),
        })
    }

    /// The statement before anybody asked which model it is for. Use it to find the model's name, then [`SignedStatement::permit`].
    pub fn unpermitted(&self) -> &Statement {
        &self.statement
    }
}

/// Signs `statement` with a bare key and returns the bundle.
pub fn sign_with_key(statement: &Statement, key: &SigningKey) -> Vec<u8> {
    let hint = Some(key.public_key().fingerprint().to_hex());
    sign(statement, key, Material::Key { hint })
}

/// Signs `statement` with the key of the first certificate in `chain_pem`; the others lead to a root, which may be left out.
///
/// # Errors
/// When the PEM has no certificate, or its first one belongs to another key.
pub fn sign_with_certificates(
    statement: &Statement,
    key: &SigningKey,
    chain_pem: &str,
) -> Result<Vec<u8>, VerifyError> {
    let chain = Cert::from_pem_chain(chain_pem).ok_or_else(|| VerifyError::SignatureMalformed {
        cause: "the chain has no certificate in PEM form".to_owned(),
    })?;
    let leaf = chain.first().expect("a parsed chain has a certificate");
    if leaf.public_key()? != key.public_key() {
        return Err(VerifyError::CertificateInvalid {
            subject: leaf.subject.clone(),
            cause: "it is the first of the chain, but belongs to another private key".to_owned(),
        });
    }
    Ok(sign(
        statement,
        key,
        Material::Certificates(chain.iter().map(|c| c.der().to_vec()).collect()),
    ))
}

fn sign(statement: &Statement, key: &SigningKey, material: Material) -> Vec<u8> {
    let payload = statement.to_payload();
    let signature = key.sign(&pre_authentication_encoding(&payload));
    Bundle {
        material,
        payload,
        signature,
    }
    .to_json()
}

/// Checks a bundle against the policy at time `now`.
///
/// # Errors
/// Names the key or certificate and what is wrong with it.
pub fn check_signature(
    bundle: &[u8],
    policy: &TrustPolicy,
    now: Timestamp,
) -> Result<SignedStatement, VerifyError> {
    let bundle = Bundle::from_json(bundle)?;
    let message = pre_authentication_encoding(&bundle.payload);
    let grants = match &bundle.material {
        Material::Key { hint } => vec![check_key(
            policy,
            hint.as_deref(),
            (&message, &bundle.signature),
            now,
        )?],
        Material::Certificates(ders) => {
            check_certificates(policy, ders, (&message, &bundle.signature), now)?
        }
    };
    Ok(SignedStatement {
        statement: Statement::from_payload(&bundle.payload)?,
        grants,
    })
}

type Signed<'a> = (&'a [u8], &'a [u8]);

fn check_key(
    policy: &TrustPolicy,
    hint: Option<&str>,
    (message, signature): Signed<'_>,
    now: Timestamp,
) -> Result<(Signer, Vec<String>), VerifyError> {
    let trusted = match hint {
        Some(hint) => policy
            .keys
            .iter()
            .find(|key| key.fingerprint.to_hex() == hint)
            .ok_or_else(|| VerifyError::KeyUnknown {
                fingerprint: hint.chars().take(64).collect(),
            })?,
        // Without a hint the signature itself tells whose it is.
        None => policy
            .keys
            .iter()
            .find(|key| key.key.has_signed(message, signature))
            .ok_or_else(|| VerifyError::KeyUnknown {
                fingerprint: "none given".to_owned(),
            })?,
    };
    check_entry(&trusted.entry, now)?;
    if !trusted.key.has_signed(message, signature) {
        return Err(VerifyError::SignatureInvalid {
            signer: trusted.entry.id.clone(),
        });
    }
    let signer = Signer {
        id: trusted.entry.id.clone(),
        identity: None,
        fingerprint: trusted.fingerprint,
    };
    Ok((signer, trusted.entry.models.clone()))
}

fn check_entry(entry: &Entry, now: Timestamp) -> Result<(), VerifyError> {
    if entry.revoked {
        return Err(VerifyError::KeyRevoked {
            id: entry.id.clone(),
        });
    }
    if let Some(not_before) = entry.not_before.filter(|begin| now < *begin) {
        return Err(VerifyError::KeyNotYetValid {
            id: entry.id.clone(),
            not_before,
        });
    }
    if let Some(not_after) = entry.not_after.filter(|end| now > *end) {
        return Err(VerifyError::KeyExpired {
            id: entry.id.clone(),
            not_after,
        });
    }
    Ok(())
}

fn check_certificates(
    policy: &TrustPolicy,
    ders: &[Vec<u8>],
    signed: Signed<'_>,
    now: Timestamp,
) -> Result<Vec<(Signer, Vec<String>)>, VerifyError> {
    let certificates = ders
        .iter()
        .map(|der| Cert::from_der(der))
        .collect::<Result<Vec<_>, _>>()?;
    let (leaf, intermediates) = certificates
        .split_first()
        .expect("a bundle has at least one certificate");
    let mut grants = Vec::new();
    let mut fault = None;
    for root in &policy.roots {
        match check_root(root, leaf, intermediates, signed, now) {
            Ok(grant) => grants.push(grant),
            // A revocation counts whatever another entry says.
            Err(
                revoked @ (VerifyError::KeyRevoked { .. } | VerifyError::CertificateRevoked { .. }),
            ) => return Err(revoked),
            // "No chain to this root" is the least telling of the faults.
            Err(untrusted @ VerifyError::CertificateUntrusted { .. }) => {
                fault.get_or_insert(untrusted);
            }
            Err(telling) => fault = Some(telling),
        }
    }
    if grants.is_empty() {
        return Err(fault.unwrap_or_else(|| VerifyError::CertificateUntrusted {
            subject: leaf.subject.clone(),
        }));
    }
    Ok(grants)
}

fn check_root(
    root: &TrustedRoot,
    leaf: &Cert,
    intermediates: &[Cert],
    (message, signature): Signed<'_>,
    now: Timestamp,
) -> Result<(Signer, Vec<String>), VerifyError> {
    let at = match root.expired {
        ExpiredCertificates::Denied => now,
        // Never later than now: a certificate of the future is not valid yet.
        ExpiredCertificates::Allowed => leaf.validity().0,
    };
    let anchors: Vec<&Cert> = root.certificates.iter().collect();
    let Anchored { key, path } = chain::anchor(leaf, intermediates, &anchors, at)?;
    if at > now {
        let (not_before, not_after) = leaf.validity();
        return Err(VerifyError::CertificateExpired {
            subject: leaf.subject.clone(),
            not_before,
            not_after,
            at: now,
        });
    }
    check_entry(&root.entry, now)?;
    if let Some((subject, fingerprint)) = path
        .iter()
        .find(|(_, fingerprint)| root.revoked_certificates.contains(fingerprint))
    {
        return Err(VerifyError::CertificateRevoked {
            subject: subject.clone(),
            fingerprint: fingerprint.to_string(),
        });
    }
    if !key.has_signed(message, signature) {
        return Err(VerifyError::SignatureInvalid {
            signer: leaf.subject.clone(),
        });
    }
    let identities = leaf.identities();
    let Some(identity) = identities
        .iter()
        .find(|identity| is_permitted(&root.identities, identity))
    else {
        let identity = identities.first().cloned().unwrap_or_default();
        return Err(VerifyError::IdentityNotPermitted {
            identity,
            root: root.entry.id.clone(),
        });
    };
    let signer = Signer {
        id: root.entry.id.clone(),
        identity: Some(identity.clone()),
        fingerprint: leaf.fingerprint(),
    };
    Ok((signer, root.entry.models.clone()))
}

/// A pattern for alternative names never matches a subject, whatever stars it has; only `*` alone and `subject:…` do.
fn is_permitted(patterns: &[String], identity: &str) -> bool {
    let of_subject = chain::is_subject(identity);
    patterns
        .iter()
        .filter(|pattern| *pattern == "*" || chain::is_subject(pattern) == of_subject)
        .any(|pattern| crate::glob::matches(pattern, identity))
}
