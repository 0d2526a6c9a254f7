//! HTTPS on the listener: certificate and key from files, taken over when their content changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Handshakes at once: each is a millisecond of work for strangers.
pub(crate) const HANDSHAKES: usize = 256;

/// Where a listener's certificate is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM file with the certificate and those it depends on.
    pub cert: PathBuf,
    /// PEM file with its private key.
    pub key: PathBuf,
}

/// A certificate that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path:?}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{path:?} has no usable PEM {what}")]
    Pem {
        /// Which.
        path: PathBuf,
        /// What should be in it.
        what: &'static str,
        /// Why not.
        #[source]
        source: rustls::pki_types::pem::Error,
    },
    /// Key and certificate do not belong together, or are of no known kind.
    #[error("the certificate in {cert:?} cannot be used with the key in {key:?}")]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// Why not.
        #[source]
        source: rustls::Error,
    },
}

/// A listener's certificate, as new as its files.
pub struct Tls {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
    /// What `config` was made of at first: whatever differs from it is new, also before anybody looks.
    opened: Mutex<Option<Content>>,
}

/// What was read: compared before anything is made of it.
#[derive(PartialEq, Eq)]
struct Content {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl Tls {
    /// Reads the files. A listener without a usable certificate does not start.
    ///
    /// # Errors
    /// They cannot be read or used.
    pub fn open(files: TlsFiles) -> Result<Self, TlsError> {
        let content = files.read()?;
        let config = files.config(&content)?;
        Ok(Self {
            opened: Mutex::new(Some(content)),
            config: ArcSwap::from_pointee(config),
            files,
        })
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.load_full()
    }

    /// Takes new content over until `stop`. What cannot be used changes nothing; it is said once, and counted.
    pub(crate) async fn follow(&self, metrics: Arc<Metrics>, stop: CancellationToken) {
        let mut seen = self.opened.lock().take();
        while stop
            .run_until_cancelled(tokio::time::sleep(LOOK_EVERY))
            .await
            .is_some()
        {
            let files = self.files.clone();
            let Ok(read) = tokio::task::spawn_blocking(move || files.read()).await else {
                return;
            };
            // Half a replacement is seen as a pair that does not fit; the next look sees the whole.
            let made = match read {
                Ok(content) if seen.as_ref() == Some(&content) => continue,
                Ok(content) => {
                    let made = self.files.config(&content);
                    seen = Some(content);
                    made
                }
                Err(_) if seen.is_none() => continue,
                Err(error) => {
                    seen = None;
                    Err(error)
                }
            };
            match made {
                Ok(config) => {
                    self.config.store(Arc::new(config));
                    metrics.tls_reload("taken");
                    tracing::info!(cert = %self.files.cert.display(), "certificate taken over");
                }
                Err(error) => {
                    metrics.tls_reload("refused");
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "the certificate was not taken; the one before serves on"
                    );
                }
            }
        }
    }
}

impl TlsFiles {
    fn read(&self) -> Result<Content, TlsError> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|source| TlsError::Read {
                path: path.clone(),
                source,
            })
        };
        Ok(Content {
            cert: read(&self.cert)?,
            key: read(&self.key)?,
        })
    }

    fn config(&self, content: &Content) -> Result<ServerConfig, TlsError> {
        let certs = CertificateDer::pem_slice_iter(&content.cert).collect::<Result<Vec<_>, _>>();
        let certs = certs.and_then(|certs| {
            let none = rustls::pki_types::pem::Error::NoItemsFound;
            if certs.is_empty() {
                Err(none)
            } else {
                Ok(certs)
            }
        });
        let certs = certs.map_err(|source| TlsError::Pem {
            path: self.cert.clone(),
            what: "certificate",
            source,
        })?;
        let key = PrivateKeyDer::from_pem_slice(&content.key).map_err(|source| TlsError::Pem {
            path: self.key.clone(),
            what: "private key",
            source,
        })?;
        let pair = |source| TlsError::Pair {
            cert: self.cert.clone(),
            key: self.key.clone(),
            source,
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(pair)?
            .with_no_client_auth()
            .with_single_cert(certs, key)
            .map_err(pair)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}
