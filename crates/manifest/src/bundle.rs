//! The Sigstore bundle that carries a signature: its JSON form, its DSSE envelope, and nothing about trust.
//!
//! One envelope with one signature, and either a public key's hint or a chain of certificates. Entries of a transparency log and
//! timestamps may be present and are not used: verification is offline. Fields that are unknown are refused, so that no byte of a bundle
//! can change without notice.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::VerifyError;
use crate::canonical::to_canonical;

/// Largest bundle that is read: 4,096 files need about 1 MiB.
pub const MAX_BUNDLE_BYTES: usize = 8 << 20;

const MEDIA_TYPE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";
const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
/// Most certificates in a bundle.
const MAX_CERTIFICATES: usize = 16;

/// A bundle taken apart; nothing in it is trusted yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bundle {
    pub(crate) material: Material,
    pub(crate) payload: Vec<u8>,
    pub(crate) signature: Vec<u8>,
}

/// How the bundle says who signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Material {
    /// A bare key. Bundles of old releases have no hint.
    Key { hint: Option<String> },
    /// DER certificates, the signer's first.
    Certificates(Vec<Vec<u8>>),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct BundleJson {
    media_type: String,
    verification_material: MaterialJson,
    dsse_envelope: EnvelopeJson,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MaterialJson {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    public_key: Option<KeyJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    x509_certificate_chain: Option<ChainJson>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    certificate: Option<CertificateJson>,
    #[serde(default)]
    tlog_entries: Vec<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    timestamp_verification_data: Option<Value>,
}

/// `rawBytes` and `keyDetails` are what releases before 1.0 wrote beside the hint; the policy's key is used, never the bundle's.
#[derive(Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct KeyJson {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    #[serde(default, skip_serializing)]
    #[expect(dead_code, reason = "accepted and not used")]
    raw_bytes: Option<Value>,
    #[serde(default, skip_serializing)]
    #[expect(dead_code, reason = "accepted and not used")]
    key_details: Option<Value>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChainJson {
    certificates: Vec<CertificateJson>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CertificateJson {
    raw_bytes: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct EnvelopeJson {
    payload: String,
    payload_type: String,
    signatures: Vec<SignatureJson>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignatureJson {
    sig: String,
    #[serde(default)]
    keyid: String,
}

impl Bundle {
    pub(crate) fn from_json(bytes: &[u8]) -> Result<Self, VerifyError> {
        if bytes.len() > MAX_BUNDLE_BYTES {
            return Err(malformed(format!(
                "it is larger than {MAX_BUNDLE_BYTES} bytes"
            )));
        }
        let json: BundleJson =
            serde_json::from_slice(bytes).map_err(|e| malformed(e.to_string()))?;
        if json.media_type != MEDIA_TYPE {
            return Err(VerifyError::SignatureUnsupported {
                what: format!("the bundle type {:?}", json.media_type),
            });
        }
        if json.dsse_envelope.payload_type != PAYLOAD_TYPE {
            return Err(VerifyError::SignatureUnsupported {
                what: format!("the payload type {:?}", json.dsse_envelope.payload_type),
            });
        }
        let [signature] = json.dsse_envelope.signatures.as_slice() else {
            return Err(malformed(format!(
                "it has {} signatures instead of one",
                json.dsse_envelope.signatures.len()
            )));
        };
        if !signature.keyid.is_empty() {
            return Err(malformed(
                "dsseEnvelope.signatures[0].keyid is not empty".to_owned(),
            ));
        }
        Ok(Self {
            material: parse_material(json.verification_material)?,
            payload: decode("dsseEnvelope.payload", &json.dsse_envelope.payload)?,
            signature: decode("dsseEnvelope.signatures[0].sig", &signature.sig)?,
        })
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        let (public_key, chain) = match &self.material {
            Material::Key { hint } => (
                Some(KeyJson {
                    hint: hint.clone(),
                    ..KeyJson::default()
                }),
                None,
            ),
            Material::Certificates(certificates) => {
                let certificates = certificates
                    .iter()
                    .map(|der| CertificateJson {
                        raw_bytes: STANDARD.encode(der),
                    })
                    .collect();
                (None, Some(ChainJson { certificates }))
            }
        };
        to_canonical(&BundleJson {
            media_type: MEDIA_TYPE.to_owned(),
            verification_material: MaterialJson {
                public_key,
                x509_certificate_chain: chain,
                certificate: None,
                tlog_entries: Vec::new(),
                timestamp_verification_data: None,
            },
            dsse_envelope: EnvelopeJson {
                payload: STANDARD.encode(&self.payload),
                payload_type: PAYLOAD_TYPE.to_owned(),
                signatures: vec![SignatureJson {
                    sig: STANDARD.encode(&self.signature),
                    keyid: String::new(),
                }],
            },
        })
        .expect("the bundle holds only strings, lists and maps")
    }
}

/// What is signed in place of the payload: DSSE's pre-authentication encoding.
pub(crate) fn pre_authentication_encoding(payload: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "DSSEv1 {} {PAYLOAD_TYPE} {} ",
        PAYLOAD_TYPE.len(),
        payload.len()
    )
    .into_bytes();
    bytes.extend_from_slice(payload);
    bytes
}

fn parse_material(json: MaterialJson) -> Result<Material, VerifyError> {
    let certificates = match (
        json.public_key,
        json.x509_certificate_chain,
        json.certificate,
    ) {
        (Some(key), None, None) => {
            return Ok(Material::Key {
                hint: key.hint.filter(|hint| !hint.is_empty()),
            });
        }
        (None, Some(chain), None) => chain.certificates,
        (None, None, Some(certificate)) => vec![certificate],
        _ => return Err(malformed(
            "verificationMaterial must have one of publicKey, x509CertificateChain and certificate"
                .to_owned(),
        )),
    };
    if certificates.is_empty() || certificates.len() > MAX_CERTIFICATES {
        return Err(malformed(format!(
            "it has {} certificates, not 1 to {MAX_CERTIFICATES}",
            certificates.len()
        )));
    }
    let ders = certificates
        .iter()
        .map(|c| decode("verificationMaterial certificate", &c.raw_bytes))
        .collect::<Result<_, _>>()?;
    Ok(Material::Certificates(ders))
}

fn decode(place: &str, text: &str) -> Result<Vec<u8>, VerifyError> {
    STANDARD
        .decode(text)
        .map_err(|e| malformed(format!("{place} is not base64: {e}")))
}

fn malformed(cause: String) -> VerifyError {
    VerifyError::SignatureMalformed { cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_encoding_is_that_of_the_dsse_specification() {
        // The worked example of the specification has another payload type, so its lengths differ: 28 here.
        assert_eq!(
            pre_authentication_encoding(b"hello world"),
            b"DSSEv1 28 application/vnd.in-toto+json 11 hello world"
        );
    }

    #[test]
    fn reading_what_was_written_gives_the_bundle_back() {
        for material in [
            Material::Key {
                hint: Some("ab".to_owned()),
            },
            Material::Key { hint: None },
            Material::Certificates(vec![vec![1, 2], vec![3]]),
        ] {
            let bundle = Bundle {
                material,
                payload: b"{}".to_vec(),
                signature: vec![0, 255],
            };
            assert_eq!(Bundle::from_json(&bundle.to_json()).unwrap(), bundle);
        }
    }

    #[test]
    fn malformed_bundles_are_refused_with_the_place() {
        let good = String::from_utf8(
            Bundle {
                material: Material::Key {
                    hint: Some("ab".to_owned()),
                },
                payload: b"{}".to_vec(),
                signature: vec![1],
            }
            .to_json(),
        )
        .unwrap();
        let cases = [
            (good.replace("v0.3", "v0.2"), "v0.2"),
            (good.replace("in-toto", "other"), "payload type"),
            (
                good.replace(r#"[{"keyid":"","sig":"AQ=="}]"#, "[]"),
                "0 signatures",
            ),
            (good.replace(r#""keyid":"""#, r#""keyid":"x""#), "keyid"),
            (good.replace("AQ==", "AR=="), "sig is not base64"),
            (good.replace("tlogEntries", "tlogEntriez"), "tlogEntriez"),
            (
                good.replace(r#""publicKey":{"hint":"ab"},"#, ""),
                "one of publicKey",
            ),
            (good.replace("publicKey", "x509CertificateChain"), "hint"),
            (String::new(), "EOF"),
        ];
        for (bundle, place) in cases {
            let error = Bundle::from_json(bundle.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(place), "{place}: {error}");
        }
    }
}
