//! A small HTTP client for the commands that talk to a gateway or an admin port.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
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
}

/// An answer whose body has not been read yet.
pub type Answer = Response<Incoming>;

/// Sends one request on a connection of its own.
///
/// # Errors
/// The address is no `http://` URL, nobody listens there, or the connection breaks.
pub async fn send(
    method: &str,
    url: &str,
    headers: &[(&str, String)],
    body: Option<&Value>,
) -> Result<Answer> {
    let uri: Uri = url
        .parse()
        .with_context(|| format!("{url:?} is not a URL; write http://HOST:PORT"))?;
    if uri.scheme_str() != Some("http") {
        bail!(
            "{url:?} does not begin with http://, which is all this command speaks; ask a gateway with a certificate with curl or an OpenAI client"
        );
    }
    let authority = uri
        .authority()
        .with_context(|| format!("{url:?} names no host; write http://HOST:PORT"))?
        .clone();
    let address = format!(
        "{}:{}",
        authority.host(),
        authority.port_u16().unwrap_or(80)
    );
    let stream = tokio::net::TcpStream::connect(&address)
        .await
        .with_context(|| format!("cannot reach {address}; is `weir up` running?"))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", authority.as_str());
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    let bytes = match body {
        Some(body) => {
            request = request.header("content-type", "application/json");
            Bytes::from(body.to_string())
        }
        None => Bytes::new(),
    };
    sender
        .send_request(request.body(Full::new(bytes))?)
        .await
        .with_context(|| format!("the connection to {address} broke; try again"))
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

/// The whole of an export that comes in pages. `url` ends with `?` or `&`.
///
/// # Errors
/// Nothing answers, or the answer is no export.
pub async fn pages(url: &str, headers: &[(&str, String)]) -> Result<String> {
    let (mut all, mut after) = (String::new(), 0);
    loop {
        let answer = send("GET", &format!("{url}after={after}"), headers, None).await?;
        let (status, bytes) = whole(answer).await?;
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
