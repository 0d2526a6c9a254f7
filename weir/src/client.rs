//! A small HTTP client for the commands that talk to a gateway or an admin port.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;

/// Where a gateway is, and who asks it.
#[derive(Debug, clap::Args)]
pub struct Access {
    /// Where the gateway is.
    #[arg(long, env = "WEIR_URL", default_value = "http://127.0.0.1:8080")]
    pub url: String,
    /// API key of the tenant.
    #[arg(
        long,
        env = "WEIR_API_KEY",
        default_value = "acme-dev-key",
        hide_env_values = true
    )]
    pub key: String,
    /// PEM file of the certificates that an https gateway is trusted by; the system's where absent.
    #[arg(long, value_name = "FILE", env = "WEIR_CA")]
    pub ca: Option<PathBuf>,
}

/// Where the admin port is.
#[derive(Debug, clap::Args)]
pub struct Admin {
    /// Where the admin port is.
    #[arg(
        long,
        env = "WEIR_ADMIN",
        default_value = ADMIN,
        global = true
    )]
    pub admin: String,
}

/// Where the admin port of `weir up` is unless somebody says otherwise.
pub const ADMIN: &str = "http://127.0.0.1:9090";

/// What answers at an admin port.
pub fn admin(url: &str) -> Server<'_> {
    Server {
        base: url.trim_end_matches('/'),
        key: None,
        ca: None,
    }
}

impl Access {
    /// The gateway, for this tenant.
    pub fn server(&self) -> Server<'_> {
        Server {
            base: self.url.trim_end_matches('/'),
            key: Some(&self.key),
            ca: self.ca.as_deref(),
        }
    }
}

impl Admin {
    /// The admin port.
    pub fn server(&self) -> Server<'_> {
        admin(&self.admin)
    }
}

/// Something that answers HTTP.
#[derive(Clone, Copy, Debug)]
pub struct Server<'a> {
    base: &'a str,
    key: Option<&'a str>,
    ca: Option<&'a Path>,
}

/// An answer whose body has not been read yet.
pub type Answer = Response<Incoming>;

impl Server<'_> {
    /// Sends one request on a connection of its own.
    ///
    /// # Errors
    /// The address is no URL, nobody listens there, its certificate is not trusted, or the connection breaks.
    pub async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer> {
        let base = self.base;
        let uri: Uri = format!("{base}{path}").parse().with_context(|| {
            format!("{base:?} is not a URL; write http://HOST:PORT or https://HOST:PORT")
        })?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
            bail!("{base:?} is not a URL; write http://HOST:PORT or https://HOST:PORT");
        }
        let mut request = Request::builder().method(method).uri(uri.clone());
        if let Some(key) = self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let bytes = match body {
            Some(body) => {
                request = request.header("content-type", "application/json");
                Bytes::from(body.to_string())
            }
            None => Bytes::new(),
        };
        let client: Client<_, Full<Bytes>> =
            Client::builder(TokioExecutor::new()).build(connector(&uri, self.ca)?);
        let answer = client.request(request.body(Full::new(bytes))?).await;
        answer.with_context(|| match uri.scheme_str() {
            Some("https") => format!(
                "cannot reach {base}; is `weir up` running there with a certificate, and does --ca name who vouches for it?"
            ),
            _ => format!("cannot reach {base}; is `weir up` running, and without a certificate?"),
        })
    }

    /// Reads something as JSON.
    ///
    /// # Errors
    /// As [`Server::send`] and [`json`].
    pub async fn get(&self, path: &str) -> Result<Value> {
        json(self.send("GET", path, None).await?).await
    }

    /// Asks for something, and reads the answer as JSON.
    ///
    /// # Errors
    /// As [`Server::send`] and [`json`].
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        json(self.send("POST", path, Some(body)).await?).await
    }

    /// The whole of an export that comes in pages. `path` ends with `?` or `&`.
    ///
    /// # Errors
    /// Nothing answers, or the answer is no export.
    pub async fn pages(&self, path: &str) -> Result<String> {
        let (mut all, mut after) = (String::new(), 0);
        loop {
            let page = format!("{path}after={after}");
            let (status, bytes) = whole(self.send("GET", &page, None).await?).await?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if !status.is_success() {
                bail!("{status}: {}", text.trim_end());
            }
            let last = text.lines().last().unwrap_or_default();
            let page: Value = serde_json::from_str(last).context("the answer is no export")?;
            all.push_str(&text);
            match page["page"]["next"].as_u64() {
                Some(next) => after = next,
                None => return Ok(all),
            }
        }
    }
}

/// Connections as this address needs them; certificates are only looked at for https.
fn connector(uri: &Uri, ca: Option<&Path>) -> Result<HttpsConnector<HttpConnector>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = HttpsConnectorBuilder::new();
    let builder = match ca {
        _ if uri.scheme_str() == Some("http") => {
            builder.with_tls_config(trusting(provider, RootCertStore::empty())?)
        }
        Some(path) => builder.with_tls_config(trusting(provider, roots(path)?)?),
        None => builder
            .with_provider_and_native_roots(provider)
            .context("this system trusts no certificates; name the gateway's with --ca")?,
    };
    Ok(builder.https_or_http().enable_http1().build())
}

fn trusting(
    provider: Arc<rustls::crypto::CryptoProvider>,
    roots: RootCertStore,
) -> Result<ClientConfig> {
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("TLS has no versions")?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

fn roots(path: &Path) -> Result<RootCertStore> {
    let name = path.display();
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(path);
    for certificate in certificates.with_context(|| format!("cannot read {name} (--ca)"))? {
        let certificate = certificate.with_context(|| format!("{name} (--ca) is no PEM file"))?;
        let added = roots.add(certificate);
        added.with_context(|| format!("{name} (--ca) has a certificate that cannot be used"))?;
    }
    if roots.is_empty() {
        bail!("{name} (--ca) has no certificate");
    }
    Ok(roots)
}

async fn whole(answer: Answer) -> Result<(StatusCode, Bytes)> {
    let status = answer.status();
    let body = answer.into_body().collect().await;
    let body = body.context("the answer broke off; try again")?;
    Ok((status, body.to_bytes()))
}

/// The whole body as JSON, or the server's own error as this one's text.
///
/// # Errors
/// The body breaks off, is not JSON, or the status says that the call failed.
pub async fn json(answer: Answer) -> Result<Value> {
    let (status, bytes) = whole(answer).await?;
    let body: Value = serde_json::from_slice(&bytes).with_context(|| {
        format!(
            "the answer ({status}) is not JSON; is this Weir's address and port? It said: {}",
            String::from_utf8_lossy(&bytes)
        )
    })?;
    if !status.is_success() {
        bail!(
            "{}",
            error_text(&body).unwrap_or_else(|| format!("{status}: {body}"))
        );
    }
    Ok(body)
}

/// The whole body as text, or the server's own refusal as this one's text.
///
/// # Errors
/// The body breaks off, or the status says that the call failed.
pub async fn text(answer: Answer) -> Result<String> {
    let (status, bytes) = whole(answer).await?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if !status.is_success() {
        bail!("{}", text.trim_end());
    }
    Ok(text)
}

/// `code: message` of an error body.
pub fn error_text(body: &Value) -> Option<String> {
    let error = body.get("error")?;
    Some(format!(
        "{}: {}",
        error["code"].as_str()?,
        error["message"].as_str()?
    ))
}

/// Reads server-sent events, `data` by `data`.
pub struct Events {
    body: Incoming,
    buffer: Vec<u8>,
}

impl Events {
    /// Of an answer with status 200.
    pub fn new(answer: Answer) -> Self {
        Self {
            body: answer.into_body(),
            buffer: Vec::new(),
        }
    }

    /// The next event's `data`; `None` at the end.
    ///
    /// # Errors
    /// The stream breaks off.
    pub async fn next_data(&mut self) -> Result<Option<String>> {
        loop {
            if let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
                let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
                let text = String::from_utf8_lossy(&event);
                if let Some(data) = text.lines().find_map(|line| line.strip_prefix("data: ")) {
                    return Ok(Some(data.to_owned()));
                }
                continue;
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame
                        .context("the stream broke off; try again")?
                        .into_data()
                    {
                        self.buffer.extend_from_slice(&data);
                    }
                }
            }
        }
    }
}
