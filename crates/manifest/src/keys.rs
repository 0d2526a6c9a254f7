//! Signing keys: ECDSA P-256 and P-384, and Ed25519, as PEM files.
//!
//! Private keys are PKCS#8 (SEC1 `EC PRIVATE KEY` is read too), public keys are `SubjectPublicKeyInfo`. ECDSA signs with the nonce of
//! RFC 6979, so that the same key and content give the same bytes.

use std::fmt;

use ed25519_dalek::pkcs8::{
    DecodePrivateKey, DecodePublicKey, EncodePrivateKey, EncodePublicKey,
    spki::der::pem::LineEnding,
};
use p256::ecdsa::signature::hazmat::PrehashVerifier;
use p256::ecdsa::signature::{Signer as _, Verifier as _};
use p256::elliptic_curve::Generate as _;
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use zeroize::Zeroizing;

use crate::Digest;

/// A signature algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// ECDSA on P-256 with SHA-256.
    P256,
    /// ECDSA on P-384 with SHA-384.
    P384,
    /// Ed25519. The Python peer of the format has no such keys; Weir's own artifacts may use it.
    Ed25519,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::P256 => "ecdsa-p256",
            Self::P384 => "ecdsa-p384",
            Self::Ed25519 => "ed25519",
        })
    }
}

/// A key that cannot be read or made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Not a public key that is supported.
    #[error(
        "the text is not a public key in PEM form (\"BEGIN PUBLIC KEY\") of type P-256, P-384 or Ed25519"
    )]
    PublicKey,
    /// Not a private key that is supported.
    #[error(
        "the text is not an unencrypted private key in PEM form (\"BEGIN PRIVATE KEY\" or \"BEGIN EC PRIVATE KEY\") of type P-256, P-384 or Ed25519"
    )]
    PrivateKey,
    /// The system gives no random numbers.
    #[error("the system gives no random numbers")]
    Random,
}

/// A public key.
#[derive(Clone, PartialEq, Eq)]
pub enum PublicKey {
    /// On P-256.
    P256(p256::ecdsa::VerifyingKey),
    /// On P-384.
    P384(p384::ecdsa::VerifyingKey),
    /// Ed25519.
    Ed25519(ed25519_dalek::VerifyingKey),
}

/// The hash under a certificate's ECDSA signature, which need not be the one of the curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

impl PublicKey {
    /// Reads `BEGIN PUBLIC KEY`.
    ///
    /// # Errors
    /// When the text is not such a key, or of a type that is not supported.
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let pem = pem.trim();
        p256::PublicKey::from_public_key_pem(pem)
            .map(|key| Self::P256(key.into()))
            .or_else(|_| {
                p384::PublicKey::from_public_key_pem(pem).map(|key| Self::P384(key.into()))
            })
            .or_else(|_| ed25519_dalek::VerifyingKey::from_public_key_pem(pem).map(Self::Ed25519))
            .map_err(|_| KeyError::PublicKey)
    }

    /// Reads the DER form of a `SubjectPublicKeyInfo`.
    ///
    /// # Errors
    /// As [`PublicKey::from_pem`].
    pub fn from_spki_der(der: &[u8]) -> Result<Self, KeyError> {
        p256::PublicKey::from_public_key_der(der)
            .map(|key| Self::P256(key.into()))
            .or_else(|_| {
                p384::PublicKey::from_public_key_der(der).map(|key| Self::P384(key.into()))
            })
            .or_else(|_| ed25519_dalek::VerifyingKey::from_public_key_der(der).map(Self::Ed25519))
            .map_err(|_| KeyError::PublicKey)
    }

    /// The `BEGIN PUBLIC KEY` form, with a final newline.
    pub fn to_pem(&self) -> String {
        match self {
            Self::P256(key) => key.to_public_key_pem(LineEnding::LF),
            Self::P384(key) => key.to_public_key_pem(LineEnding::LF),
            Self::Ed25519(key) => key.to_public_key_pem(LineEnding::LF),
        }
        .expect("a valid key always has an encoding")
    }

    /// SHA-256 over the PEM form: what the format calls the key's hint.
    pub fn fingerprint(&self) -> Digest {
        Digest::of(self.to_pem().as_bytes())
    }

    /// Its algorithm.
    pub const fn algorithm(&self) -> Algorithm {
        match self {
            Self::P256(_) => Algorithm::P256,
            Self::P384(_) => Algorithm::P384,
            Self::Ed25519(_) => Algorithm::Ed25519,
        }
    }

    /// Did this key sign `message`? ECDSA signatures are in DER form, with the hash of the curve.
    pub fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::P256(key) => p256::ecdsa::DerSignature::try_from(signature)
                .is_ok_and(|s| key.verify(message, &s).is_ok()),
            Self::P384(key) => p384::ecdsa::DerSignature::try_from(signature)
                .is_ok_and(|s| key.verify(message, &s).is_ok()),
            Self::Ed25519(key) => ed25519_dalek::Signature::from_slice(signature)
                .is_ok_and(|s| key.verify_strict(message, &s).is_ok()),
        }
    }

    /// As [`PublicKey::has_signed`] for ECDSA with a named hash. Never true for Ed25519.
    pub(crate) fn has_signed_with(&self, hash: Hash, message: &[u8], signature: &[u8]) -> bool {
        let prehash = match hash {
            Hash::Sha256 => Sha256::digest(message).to_vec(),
            Hash::Sha384 => Sha384::digest(message).to_vec(),
            Hash::Sha512 => Sha512::digest(message).to_vec(),
        };
        match self {
            Self::P256(key) => p256::ecdsa::DerSignature::try_from(signature)
                .is_ok_and(|s| key.verify_prehash(&prehash, &s).is_ok()),
            Self::P384(key) => p384::ecdsa::DerSignature::try_from(signature)
                .is_ok_and(|s| key.verify_prehash(&prehash, &s).is_ok()),
            Self::Ed25519(_) => false,
        }
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({}, {})", self.algorithm(), self.fingerprint())
    }
}

/// A private key. Its memory is cleared when it is dropped.
pub enum SigningKey {
    /// On P-256.
    P256(p256::SecretKey),
    /// On P-384.
    P384(p384::SecretKey),
    /// Ed25519.
    Ed25519(Box<ed25519_dalek::SigningKey>),
}

impl SigningKey {
    /// A new random key.
    ///
    /// # Errors
    /// When the system gives no random numbers.
    pub fn generate(algorithm: Algorithm) -> Result<Self, KeyError> {
        Ok(match algorithm {
            Algorithm::P256 => {
                Self::P256(p256::SecretKey::try_generate().map_err(|_| KeyError::Random)?)
            }
            Algorithm::P384 => {
                Self::P384(p384::SecretKey::try_generate().map_err(|_| KeyError::Random)?)
            }
            Algorithm::Ed25519 => {
                let mut seed = Zeroizing::new([0_u8; 32]);
                getrandom::fill(seed.as_mut()).map_err(|_| KeyError::Random)?;
                Self::Ed25519(Box::new(ed25519_dalek::SigningKey::from_bytes(&seed)))
            }
        })
    }

    /// Reads a private key.
    ///
    /// # Errors
    /// When the text is not an unencrypted key of a supported type.
    pub fn from_pem(pem: &str) -> Result<Self, KeyError> {
        let pem = pem_block(pem, "PRIVATE KEY").ok_or(KeyError::PrivateKey)?;
        if let Ok(key) = p256::SecretKey::from_pem(pem) {
            return Ok(Self::P256(key));
        }
        if let Ok(key) = p384::SecretKey::from_pem(pem) {
            return Ok(Self::P384(key));
        }
        ed25519_dalek::SigningKey::from_pkcs8_pem(pem)
            .map(|key| Self::Ed25519(Box::new(key)))
            .map_err(|_| KeyError::PrivateKey)
    }

    /// The PKCS#8 form, with a final newline.
    pub fn to_pem(&self) -> Zeroizing<String> {
        match self {
            Self::P256(key) => key.to_pkcs8_pem(LineEnding::LF),
            Self::P384(key) => key.to_pkcs8_pem(LineEnding::LF),
            Self::Ed25519(key) => key.to_pkcs8_pem(LineEnding::LF),
        }
        .expect("a valid key always has an encoding")
    }

    /// The key that verifies what this one signs.
    pub fn public_key(&self) -> PublicKey {
        match self {
            Self::P256(key) => PublicKey::P256(key.public_key().into()),
            Self::P384(key) => PublicKey::P384(key.public_key().into()),
            Self::Ed25519(key) => PublicKey::Ed25519(key.verifying_key()),
        }
    }

    /// Signs `message`; the same key and message always give the same bytes.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        match self {
            Self::P256(key) => {
                let signature: p256::ecdsa::DerSignature =
                    p256::ecdsa::SigningKey::from(key).sign(message);
                signature.as_bytes().to_vec()
            }
            Self::P384(key) => {
                let signature: p384::ecdsa::DerSignature =
                    p384::ecdsa::SigningKey::from(key).sign(message);
                signature.as_bytes().to_vec()
            }
            Self::Ed25519(key) => key.sign(message).to_bytes().to_vec(),
        }
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({:?})", self.public_key())
    }
}

/// The last block whose label ends in `label`: files made by `openssl ecparam` have a block of parameters before the key.
fn pem_block<'a>(pem: &'a str, label: &str) -> Option<&'a str> {
    let end_marker = format!("{label}-----");
    let end = pem.rfind(&end_marker)? + end_marker.len();
    let head = pem.get(..end)?;
    let start = head.rfind("-----BEGIN ")?;
    head.get(start..)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Algorithm; 3] = [Algorithm::P256, Algorithm::P384, Algorithm::Ed25519];

    #[test]
    fn keys_survive_their_pem_form_and_verify_what_they_signed() {
        for algorithm in ALL {
            let key = SigningKey::generate(algorithm).unwrap();
            let again = SigningKey::from_pem(&key.to_pem()).unwrap();
            let public = PublicKey::from_pem(&key.public_key().to_pem()).unwrap();
            assert_eq!(public.algorithm(), algorithm);
            let signature = again.sign(b"message");
            assert_eq!(
                signature,
                key.sign(b"message"),
                "{algorithm} signs deterministically"
            );
            assert!(public.has_signed(b"message", &signature));
            assert!(!public.has_signed(b"massage", &signature));
            for other in ALL {
                let other = SigningKey::generate(other).unwrap().public_key();
                assert!(!other.has_signed(b"message", &signature));
            }
        }
    }

    #[test]
    fn a_private_key_never_shows_in_debug_output() {
        for algorithm in ALL {
            let key = SigningKey::generate(algorithm).unwrap();
            let secret: String = key.to_pem().lines().nth(1).unwrap().to_owned();
            assert!(!format!("{key:?}").contains(&secret[..16]));
        }
    }

    #[test]
    fn what_is_not_a_supported_key_is_refused() {
        let key = SigningKey::generate(Algorithm::P256).unwrap();
        assert_eq!(
            SigningKey::from_pem(&key.public_key().to_pem()).err(),
            Some(KeyError::PrivateKey)
        );
        assert_eq!(
            PublicKey::from_pem(&key.to_pem()).err(),
            Some(KeyError::PublicKey)
        );
        assert_eq!(PublicKey::from_pem("").err(), Some(KeyError::PublicKey));
    }

    #[test]
    fn a_block_of_parameters_before_the_key_is_skipped() {
        let key = SigningKey::generate(Algorithm::P256).unwrap();
        let SigningKey::P256(secret) = &key else {
            unreachable!()
        };
        let sec1 = secret.to_sec1_pem(LineEnding::LF).unwrap();
        let file = format!(
            "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n{}",
            sec1.as_str()
        );
        assert_eq!(
            SigningKey::from_pem(&file).unwrap().public_key(),
            key.public_key()
        );
    }
}
