//! The trust policy: which keys and certificate roots may sign which models.
//!
//! A policy is data; the time is an argument. On a cluster it is the `ConfigMap` named `weir-trust`, on one machine the same YAML.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::Digest;
use crate::chain::Cert;
use crate::keys::PublicKey;

/// A public key that may sign, as people write it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrustedKeySpec {
    /// Name of the key in conditions and logs; unique in the policy.
    pub id: String,
    /// PEM (`BEGIN PUBLIC KEY`): P-256, P-384 or Ed25519.
    pub public_key: String,
    /// Patterns (`*`, `?`) of the models it may sign; at least one.
    pub models: Vec<String>,
    /// Not trusted before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// Not trusted after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Timestamp>,
    /// Never trusted again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
}

/// An authority whose certificates may sign, as people write it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrustedRootSpec {
    /// Name of the root in conditions and logs; unique in the policy.
    pub id: String,
    /// PEM of one or more root certificates.
    pub certificates: String,
    /// Patterns of who may sign, at least one: an e-mail, URI or DNS name of the signer's certificate, or `subject:` and its whole subject
    /// (`subject:CN=ci,O=Example`). A `*` alone permits every signer under the root.
    pub identities: Vec<String>,
    /// Patterns of the models they may sign; at least one.
    pub models: Vec<String>,
    /// What a certificate is worth after its end. Bundles carry no trusted time, so `Allowed` judges every certificate by the time of issue
    /// that the signer's own states.
    #[serde(default)]
    pub expired: ExpiredCertificates,
    /// SHA-256 fingerprints of certificates (signer or authority) under this root that are never trusted again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub revoked_certificates: Vec<Digest>,
    /// Not trusted before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Timestamp>,
    /// Not trusted after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<Timestamp>,
    /// Never trusted again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub revoked: bool,
}

/// Whether a certificate may be past its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExpiredCertificates {
    /// Every certificate of the chain must be valid now.
    #[default]
    Denied,
    /// The chain must have been valid when the signer's certificate was issued.
    Allowed,
}

/// The whole policy, as people write it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrustPolicySpec {
    /// Bare keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<TrustedKeySpec>,
    /// Certificate roots.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roots: Vec<TrustedRootSpec>,
}

/// Why a policy was refused. A policy with one wrong entry is refused whole: half a policy could trust less than a person thinks, or
/// forget a revocation.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// Not the YAML of a policy.
    #[error("the trust policy cannot be read; it has the lists \"keys\" and \"roots\"")]
    Shape(#[source] serde_yaml::Error),
    /// The `ConfigMap` has another key.
    #[error(
        "the ConfigMap's data has the unknown key {0:?}; use \"policy.yaml\" for a whole policy, or \"keys\" and \"roots\" for its lists"
    )]
    UnknownData(String),
    /// An entry is wrong.
    #[error("{place} {fault}")]
    Entry {
        /// Which entry and field.
        place: String,
        /// What is wrong, and what to write.
        fault: String,
    },
}

/// A policy whose every key was read.
#[derive(Clone, Debug, Default)]
pub struct TrustPolicy {
    pub(crate) keys: Vec<TrustedKey>,
    pub(crate) roots: Vec<TrustedRoot>,
}

#[derive(Clone, Debug)]
pub(crate) struct TrustedKey {
    pub(crate) key: PublicKey,
    pub(crate) fingerprint: Digest,
    pub(crate) entry: Entry,
}

#[derive(Clone, Debug)]
pub(crate) struct TrustedRoot {
    pub(crate) certificates: Vec<Cert>,
    pub(crate) identities: Vec<String>,
    pub(crate) expired: ExpiredCertificates,
    pub(crate) revoked_certificates: BTreeSet<Digest>,
    pub(crate) entry: Entry,
}

/// What keys and roots share.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: String,
    pub(crate) models: Vec<String>,
    pub(crate) not_before: Option<Timestamp>,
    pub(crate) not_after: Option<Timestamp>,
    pub(crate) revoked: bool,
}

impl TrustPolicySpec {
    /// Reads the `data` of the `ConfigMap` named `weir-trust`: `policy.yaml` with a whole policy, or `keys` and `roots` with one list each;
    /// lists of several entries add up. Keys are not read yet: [`TrustPolicy::new`] does.
    ///
    /// # Errors
    /// Names the entry and field that is wrong.
    pub fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, PolicyError> {
        let mut whole = Self::default();
        for (key, text) in data {
            match key.as_str() {
                "policy.yaml" => {
                    let spec: Option<Self> =
                        serde_yaml::from_str(text).map_err(PolicyError::Shape)?;
                    let spec = spec.unwrap_or_default();
                    whole.keys.extend(spec.keys);
                    whole.roots.extend(spec.roots);
                }
                "keys" => whole
                    .keys
                    .extend(serde_yaml::from_str::<Vec<_>>(text).map_err(PolicyError::Shape)?),
                "roots" => whole
                    .roots
                    .extend(serde_yaml::from_str::<Vec<_>>(text).map_err(PolicyError::Shape)?),
                other => return Err(PolicyError::UnknownData(other.to_owned())),
            }
        }
        Ok(whole)
    }
}

impl TrustPolicy {
    /// Reads a policy from YAML or JSON.
    ///
    /// # Errors
    /// Names the entry and field that is wrong.
    pub fn from_yaml(text: &str) -> Result<Self, PolicyError> {
        // An empty document is an empty policy, which trusts nobody.
        let spec: Option<TrustPolicySpec> =
            serde_yaml::from_str(text).map_err(PolicyError::Shape)?;
        Self::new(spec.unwrap_or_default())
    }

    /// Reads the `data` of the `ConfigMap` named `weir-trust`, as [`TrustPolicySpec::from_config_map`] does.
    ///
    /// # Errors
    /// Names the entry and field that is wrong.
    pub fn from_config_map(data: &BTreeMap<String, String>) -> Result<Self, PolicyError> {
        Self::new(TrustPolicySpec::from_config_map(data)?)
    }

    /// Checks a policy and reads its keys.
    ///
    /// # Errors
    /// Names the entry and field that is wrong.
    pub fn new(spec: TrustPolicySpec) -> Result<Self, PolicyError> {
        let mut ids = BTreeSet::new();
        let keys = spec
            .keys
            .into_iter()
            .map(|key| read_key(key, &mut ids))
            .collect::<Result<Vec<_>, _>>()?;
        let roots = spec
            .roots
            .into_iter()
            .map(|root| read_root(root, &mut ids))
            .collect::<Result<Vec<_>, _>>()?;
        for (index, key) in keys.iter().enumerate() {
            // One key in two entries could be revoked in one and trusted by the other.
            if let Some(first) = keys.iter().take(index).find(|first| first.key == key.key) {
                let place = format!("keys[{:?}].publicKey", key.entry.id);
                return Err(PolicyError::Entry {
                    place,
                    fault: format!(
                        "is also the key of {:?}; merge the two entries",
                        first.entry.id
                    ),
                });
            }
        }
        Ok(Self { keys, roots })
    }

    /// Trusts one key for every model, without end.
    pub fn of_key(id: &str, key: PublicKey) -> Self {
        let entry = Entry {
            id: id.to_owned(),
            models: vec!["*".to_owned()],
            not_before: None,
            not_after: None,
            revoked: false,
        };
        let fingerprint = key.fingerprint();
        Self {
            keys: vec![TrustedKey {
                key,
                fingerprint,
                entry,
            }],
            roots: Vec::new(),
        }
    }

    /// Trusts every certificate for signing under the roots in `pem`, for every model.
    ///
    /// # Errors
    /// When `pem` has no certificate.
    pub fn of_roots(id: &str, pem: &str) -> Result<Self, PolicyError> {
        let root = TrustedRootSpec {
            id: id.to_owned(),
            certificates: pem.to_owned(),
            identities: vec!["*".to_owned()],
            models: vec!["*".to_owned()],
            expired: ExpiredCertificates::Denied,
            revoked_certificates: Vec::new(),
            not_before: None,
            not_after: None,
            revoked: false,
        };
        Self::new(TrustPolicySpec {
            keys: Vec::new(),
            roots: vec![root],
        })
    }

    /// Does it trust nobody?
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.roots.is_empty()
    }
}

impl Entry {
    fn check(&self, list: &str) -> Result<(), PolicyError> {
        let error = |field: &str, fault: &str| {
            let place = format!("{list}[{:?}].{field}", self.id);
            Err(PolicyError::Entry {
                place,
                fault: fault.to_owned(),
            })
        };
        if self.id.is_empty() {
            return error("id", "is empty; give every entry a name");
        }
        if self.models.is_empty() {
            return error("models", "is empty; write [\"*\"] to permit every model");
        }
        if matches!((self.not_before, self.not_after), (Some(begin), Some(end)) if begin >= end) {
            return error("notAfter", "is not after notBefore");
        }
        Ok(())
    }
}

fn read_key(spec: TrustedKeySpec, ids: &mut BTreeSet<String>) -> Result<TrustedKey, PolicyError> {
    let TrustedKeySpec {
        id,
        public_key,
        models,
        not_before,
        not_after,
        revoked,
    } = spec;
    let entry = Entry {
        id,
        models,
        not_before,
        not_after,
        revoked,
    };
    entry.check("keys")?;
    take_id(&entry.id, ids)?;
    let key = PublicKey::from_pem(&public_key).map_err(|e| PolicyError::Entry {
        place: format!("keys[{:?}].publicKey", entry.id),
        fault: format!("cannot be read: {e}"),
    })?;
    Ok(TrustedKey {
        fingerprint: key.fingerprint(),
        key,
        entry,
    })
}

fn read_root(
    spec: TrustedRootSpec,
    ids: &mut BTreeSet<String>,
) -> Result<TrustedRoot, PolicyError> {
    let TrustedRootSpec {
        id,
        certificates,
        identities,
        models,
        expired,
        revoked_certificates,
        not_before,
        not_after,
        revoked,
    } = spec;
    let entry = Entry {
        id,
        models,
        not_before,
        not_after,
        revoked,
    };
    entry.check("roots")?;
    take_id(&entry.id, ids)?;
    let error = |field: &str, fault: &str| PolicyError::Entry {
        place: format!("roots[{:?}].{field}", entry.id),
        fault: fault.to_owned(),
    };
    if identities.is_empty() {
        return Err(error(
            "identities",
            "is empty; write [\"*\"] to permit every signer under this root",
        ));
    }
    let certificates = Cert::from_pem_chain(&certificates).ok_or_else(|| {
        error(
            "certificates",
            "has no readable certificate in PEM form (\"BEGIN CERTIFICATE\")",
        )
    })?;
    Ok(TrustedRoot {
        certificates,
        identities,
        expired,
        revoked_certificates: revoked_certificates.into_iter().collect(),
        entry,
    })
}

fn take_id(id: &str, ids: &mut BTreeSet<String>) -> Result<(), PolicyError> {
    if ids.insert(id.to_owned()) {
        return Ok(());
    }
    Err(PolicyError::Entry {
        place: format!("the id {id:?}"),
        fault: "is used twice; give every key and root its own".to_owned(),
    })
}
