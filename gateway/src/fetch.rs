//! Small requests to other services, with bounds: issuers' keys, the cluster's API server, checkers of text.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, StatusCode, request};
use http_body_util::{BodyExt, Full, Limited};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// A client for one service.
#[derive(Clone)]
pub(crate) struct Fetch {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// A request could not be carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("cannot build the request")]
    Build(#[source] http::Error),
    #[error("cannot reach it")]
    Send(#[source] hyper_util::client::legacy::Error),
    #[error("its answer is longer than {0} bytes or broke off")]
    Body(usize),
}

impl Fetch {
    /// Trusts what the system trusts.
    pub(crate) fn system() -> Self {
        let connector = hyper_rustls::HttpsConnectorBuilder::new();
        // A system without certificates can still speak plain HTTP to a checker beside it.
        match connector.with_provider_and_native_roots(rustls::crypto::ring::default_provider()) {
            Ok(connector) => Self::of(connector.https_or_http().enable_http1().build()),
            Err(_) => Self::trusting(RootCertStore::empty()),
        }
    }

    /// Trusts the certificates of this PEM text and no others.
    pub(crate) fn with_ca(pem: &[u8]) -> io::Result<Self> {
        let wrong = |error: &dyn std::fmt::Display| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("no certificates in PEM: {error}"),
            )
        };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|error| wrong(&error))?;
            roots.add(certificate).map_err(|error| wrong(&error))?;
        }
        if roots.is_empty() {
            return Err(wrong(&"it is empty"));
        }
        Ok(Self::trusting(roots))
    }

    fn trusting(roots: RootCertStore) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("ring has the default versions of TLS")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(config);
        Self::of(connector.https_or_http().enable_http1().build())
    }

    fn of(connector: HttpsConnector<HttpConnector>) -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
        }
    }

    /// The status and the body, which may have `max_bytes`. The caller sets the time limit.
    pub(crate) async fn send(
        &self,
        request: request::Builder,
        body: Vec<u8>,
        max_bytes: usize,
    ) -> Result<(StatusCode, Bytes), FetchError> {
        let request: Request<Full<Bytes>> = request
            .body(Full::new(body.into()))
            .map_err(FetchError::Build)?;
        let answer = self
            .client
            .request(request)
            .await
            .map_err(FetchError::Send)?;
        let (parts, body) = answer.into_parts();
        let body = Limited::new(body, max_bytes).collect().await;
        let body = body.map_err(|_| FetchError::Body(max_bytes))?;
        Ok((parts.status, body.to_bytes()))
    }
}
