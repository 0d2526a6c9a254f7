//! A certificate, its key, and the authorities it takes others by.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::client::Resumption;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::NoServerSessionStorage;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use x509_cert::der::Decode as _;

use crate::error::IdentityError;
use crate::role::Role;
use crate::verify::Callers;

/// Names of the three parts, as Secrets of type `kubernetes.io/tls` and cert-manager have them.
pub(crate) const CERTIFICATE: &str = "tls.crt";
pub(crate) const KEY: &str = "tls.key";
pub(crate) const AUTHORITIES: &str = "ca.crt";

/// What is spoken within a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoken {
    /// One question after the other.
    Http1,
    /// Sessions.
    Http2,
}

impl Spoken {
    fn name(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

/// A certificate, its key, and the authorities it takes others by: two while an authority is replaced.
pub struct Credentials {
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    authorities: Arc<RootCertStore>,
    life: Range<SystemTime>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("authorities", &self.authorities.len())
            .field("life", &self.life)
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// From PEM texts: the certificate and those it depends on, its private key, and the authorities that others must come from.
    ///
    /// # Errors
    /// A text is none, or certificate and key do not belong together.
    pub fn from_pem(
        certificate: &[u8],
        key: &[u8],
        authorities: &[u8],
    ) -> Result<Self, IdentityError> {
        let certificates = read_certificates(CERTIFICATE, certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|source| IdentityError::Pem {
            part: KEY,
            what: "private key",
            source,
        })?;
        let mut roots = RootCertStore::empty();
        for authority in read_certificates(AUTHORITIES, authorities)? {
            roots
                .add(authority)
                .map_err(|error| damaged(AUTHORITIES, &error))?;
        }
        let provider = rustls::crypto::ring::default_provider();
        CertifiedKey::from_der(certificates.clone(), key.clone_key(), &provider)
            .map_err(IdentityError::Pair)?;
        Ok(Self {
            life: life(&certificates[0])?,
            certificates,
            key,
            authorities: Arc::new(roots),
        })
    }

    /// From when until when others take it.
    pub fn life(&self) -> &Range<SystemTime> {
        &self.life
    }

    /// How a server answers that takes only callers of this role.
    ///
    /// # Errors
    /// The authorities cannot be used.
    pub fn server(&self, caller: Role) -> Result<ServerConfig, IdentityError> {
        let callers = Callers::new(Arc::clone(&self.authorities), caller)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(IdentityError::Pair)?
            .with_client_cert_verifier(Arc::new(callers))
            .with_single_cert(self.certificates.clone(), self.key.clone_key())
            .map_err(IdentityError::Pair)?;
        // A session that is resumed shows no certificate: one that expired meanwhile would still do.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    /// How a client calls, whoever it calls.
    ///
    /// # Errors
    /// The key cannot be used.
    pub fn client(&self) -> Result<ClientConfig, IdentityError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(IdentityError::Pair)?
            .with_root_certificates(Arc::clone(&self.authorities))
            .with_client_auth_cert(self.certificates.clone(), self.key.clone_key())
            .map_err(IdentityError::Pair)?;
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    /// Makes sure that at the other end of a connection is this role, and shows it who calls.
    ///
    /// # Errors
    /// The other end is another, its certificate is of an unknown authority or over, or the connection fails.
    pub async fn connect(
        &self,
        stream: TcpStream,
        called: Role,
        spoken: Spoken,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let mut config = self.client().map_err(std::io::Error::other)?;
        config.alpn_protocols = vec![spoken.name().to_vec()];
        let connector = TlsConnector::from(Arc::new(config));
        connector.connect(called.server_name(), stream).await
    }
}

fn read_certificates(
    part: &'static str,
    text: &[u8],
) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let read = read.and_then(|read| {
        let none = read.is_empty();
        if none {
            Err(pem::Error::NoItemsFound)
        } else {
            Ok(read)
        }
    });
    read.map_err(|source| IdentityError::Pem {
        part,
        what: "certificate",
        source,
    })
}

fn life(certificate: &CertificateDer<'_>) -> Result<Range<SystemTime>, IdentityError> {
    let read = x509_cert::Certificate::from_der(certificate);
    let read = read.map_err(|error| damaged(CERTIFICATE, &error))?;
    let validity = read.tbs_certificate().validity();
    let [begin, end]: [Duration; 2] =
        [validity.not_before, validity.not_after].map(x509_cert::time::Time::to_unix_duration);
    Ok(SystemTime::UNIX_EPOCH + begin..SystemTime::UNIX_EPOCH + end)
}

fn damaged(part: &'static str, error: &dyn std::fmt::Display) -> IdentityError {
    IdentityError::Certificate {
        part,
        reason: error.to_string(),
    }
}
