//! Whom a server lets in: certificates of the install's authority that say the right role.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use crate::error::IdentityError;
use crate::role::Role;

/// Takes callers of one role. The usual verifier looks at authority, time and use, and takes any name.
#[derive(Debug)]
pub(crate) struct Callers {
    usual: Arc<dyn ClientCertVerifier>,
    name: ServerName<'static>,
}

impl Callers {
    pub(crate) fn new(authorities: Arc<RootCertStore>, role: Role) -> Result<Self, IdentityError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let usual = WebPkiClientVerifier::builder_with_provider(authorities, provider).build();
        let usual = usual.map_err(|error| IdentityError::Certificate {
            part: crate::credentials::AUTHORITIES,
            reason: error.to_string(),
        })?;
        Ok(Self {
            usual,
            name: role.server_name(),
        })
    }
}

impl ClientCertVerifier for Callers {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.usual.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self
            .usual
            .verify_client_cert(end_entity, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.usual.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}
