//! `/healthz`, `/readyz` and `/metrics` on a port of their own, and what else a program shows or lets its operator do there.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::{self, Write};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ORIGIN, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{Metrics, Readiness};

/// A probe or a scraper sends its request at once; who does not is dropped.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Connections served at the same time: a scraper, a kubelet and some people; more wait in the listen queue.
const MAX_CONNECTIONS: usize = 64;

/// Longest body of an action.
const MAX_BODY: usize = 64 * 1024;

/// What the admin server shows.
#[derive(Clone, Debug)]
pub struct Admin {
    /// Behind `/readyz`.
    pub readiness: Readiness,
    /// Behind `/metrics`.
    pub metrics: Metrics,
    /// Further pages by path.
    pub pages: BTreeMap<&'static str, Page>,
    /// What a POST asks for, by path.
    pub actions: BTreeMap<&'static str, Action>,
    /// What a GET asks for, by path: the query instead of a body.
    pub queries: BTreeMap<&'static str, Query>,
}

/// Answers a GET, in its own content type.
#[derive(Clone, Debug)]
pub struct Query {
    /// Of the answer.
    pub content_type: &'static str,
    /// Takes the query, without its question mark.
    pub answer: Action,
}

/// Carries out what a POST asks for: its body in, a page of JSON out, or what is wrong with the request.
#[derive(Clone)]
pub struct Action(pub Arc<dyn Fn(Bytes) -> Acted + Send + Sync>);

/// What an [`Action`] comes to.
pub type Acted = Pin<Box<dyn Future<Output = Result<String, String>> + Send>>;

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Action")
    }
}

/// A page of JSON, made anew for each request.
#[derive(Clone)]
pub struct Page(pub Arc<dyn Fn() -> String + Send + Sync>);

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Page")
    }
}

/// Answers every GET at a path and below it, headers and status its own.
#[derive(Clone)]
pub struct Site(pub Arc<dyn Fn(Parts) -> Sited + Send + Sync>);

/// What a [`Site`] comes to.
pub type Sited = Pin<Box<dyn Future<Output = Response<Full<Bytes>>> + Send>>;

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Site")
    }
}

/// Sites by the path that they begin with.
pub type Sites = BTreeMap<&'static str, Site>;

impl Admin {
    /// Serves until the token is cancelled; open connections are then dropped, since no answer takes longer than a moment.
    ///
    /// Liveness (`/healthz`) is 200 whenever this task runs: a process whose runtime stands still does not answer.
    ///
    /// # Errors
    /// The listener fails in a way that will not pass.
    pub async fn serve(self, listener: TcpListener, shutdown: CancellationToken) -> io::Result<()> {
        self.serve_with(Sites::new(), listener, shutdown).await
    }

    /// Serves as [`Admin::serve`] does, and `sites` beside its own pages.
    ///
    /// # Errors
    /// As [`Admin::serve`].
    pub async fn serve_with(
        self,
        sites: Sites,
        listener: TcpListener,
        shutdown: CancellationToken,
    ) -> io::Result<()> {
        let sites = Arc::new(sites);
        let permits = Arc::new(tokio::sync::Semaphore::new(MAX_CONNECTIONS));
        loop {
            let permit = tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                permit = Arc::clone(&permits).acquire_owned() => permit,
            };
            let stream = tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) if is_passing(&error) => {
                        // Out of descriptors: give connections time to end instead of spinning.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            let (admin, shutdown) = (self.clone(), shutdown.clone());
            let sites = Arc::clone(&sites);
            tokio::spawn(async move {
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    () = admin.serve_connection(stream, sites) => {}
                }
                drop(permit);
            });
        }
    }

    /// Serves a connection that was taken elsewhere, until it ends.
    pub async fn serve_stream<S>(self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        self.serve_connection(stream, Arc::default()).await;
    }

    async fn serve_connection<S>(self, stream: S, sites: Arc<Sites>)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let service = service_fn(move |request: Request<Incoming>| {
            let (admin, sites) = (self.clone(), Arc::clone(&sites));
            async move {
                let mut response = match site_of(&sites, &request) {
                    Some(Site(answer)) => answer(request.into_parts().0).await,
                    None => admin.answer_any(request).await,
                };
                harden(response.headers_mut());
                Ok::<_, Infallible>(response)
            }
        });
        let mut server = auto::Builder::new(TokioExecutor::new());
        server
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT);
        if let Err(error) = server.serve_connection(TokioIo::new(stream), service).await {
            tracing::debug!(%error, "admin connection ended");
        }
    }

    async fn answer_any(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        if let Some(query) = self
            .queries
            .get(path)
            .filter(|_| request.method() == Method::GET)
        {
            return answer_query(query, request.uri().query().unwrap_or_default()).await;
        }
        if request.method() == Method::POST && request.headers().contains_key(ORIGIN) {
            let message = "this port is not for web pages\n".to_owned();
            return text(StatusCode::FORBIDDEN, message);
        }
        let action = self.actions.get(path);
        let Some(Action(act)) = action.filter(|_| request.method() == Method::POST) else {
            return self.answer(&request);
        };
        let body = Limited::new(request.into_body(), MAX_BODY).collect().await;
        let Ok(body) = body else {
            let message = format!("the body must arrive whole and have at most {MAX_BODY} bytes\n");
            return text(StatusCode::PAYLOAD_TOO_LARGE, message);
        };
        match act(body.to_bytes()).await {
            Ok(page) => json(page),
            Err(message) => text(StatusCode::BAD_REQUEST, format!("{message}\n")),
        }
    }

    fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "use GET\n".to_owned());
        }
        match request.uri().path() {
            "/healthz" => text(StatusCode::OK, "ok\n".to_owned()),
            "/readyz" => self.answer_readiness(),
            "/metrics" => self.answer_metrics(request),
            path => match self.pages.get(path) {
                Some(Page(make)) => json(make()),
                None => text(StatusCode::NOT_FOUND, self.what_there_is()),
            },
        }
    }

    fn what_there_is(&self) -> String {
        let own = ["/healthz", "/readyz", "/metrics"];
        let more = self.pages.keys().chain(self.queries.keys()).copied();
        let pages: Vec<&str> = own.into_iter().chain(more).collect();
        let mut text = format!("try {}", pages.join(", "));
        for path in self.actions.keys() {
            let _ = write!(text, ", POST {path}");
        }
        text.push('\n');
        text
    }

    fn answer_readiness(&self) -> Response<Full<Bytes>> {
        let reasons = self.readiness.reasons();
        if reasons.is_empty() {
            return text(StatusCode::OK, "ready\n".to_owned());
        }
        let mut body = "not ready\n".to_owned();
        for (component, reason) in reasons {
            let _ = writeln!(body, "{component}: {reason}");
        }
        text(StatusCode::SERVICE_UNAVAILABLE, body)
    }

    fn answer_metrics<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let wants_open_metrics = request
            .headers()
            .get(ACCEPT)
            .and_then(|accept| accept.to_str().ok())
            .is_some_and(|accept| accept.contains("application/openmetrics-text"));
        let (body, kind) = if wants_open_metrics {
            (
                self.metrics.open_metrics_text(),
                "application/openmetrics-text; version=1.0.0; charset=utf-8",
            )
        } else {
            (
                self.metrics.prometheus_text(),
                "text/plain; version=0.0.4; charset=utf-8",
            )
        };
        let mut response = text(StatusCode::OK, body);
        response
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        response
    }
}

/// The site that a request is for: pages of its own path come before.
fn site_of<'a>(sites: &'a Sites, request: &Request<Incoming>) -> Option<&'a Site> {
    let path = request.uri().path();
    let is_below = |begin: &str| {
        let rest = path.strip_prefix(begin);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let mut found = sites.iter().filter(|(begin, _)| is_below(begin));
    let (_, site) = found.next()?;
    (request.method() == Method::GET).then_some(site)
}

/// Nothing here is for other pages, to be kept, or to be taken for what it does not say it is.
fn harden(headers: &mut HeaderMap) {
    headers
        .entry(CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static(
            "default-src 'none'; frame-ancestors 'none'",
        ));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

fn json(page: String) -> Response<Full<Bytes>> {
    let mut response = text(StatusCode::OK, page);
    let kind = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

async fn answer_query(query: &Query, given: &str) -> Response<Full<Bytes>> {
    let Action(answer) = &query.answer;
    match answer(Bytes::copy_from_slice(given.as_bytes())).await {
        Ok(page) => {
            let mut response = text(StatusCode::OK, page);
            let kind = HeaderValue::from_static(query.content_type);
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        Err(message) => text(StatusCode::BAD_REQUEST, format!("{message}\n")),
    }
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}

/// Whether accepting can succeed later: a peer that left, or descriptors that ran out.
fn is_passing(error: &io::Error) -> bool {
    const EMFILE: i32 = 24;
    const ENFILE: i32 = 23;
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
            | io::ErrorKind::OutOfMemory
    ) || matches!(error.raw_os_error(), Some(EMFILE | ENFILE))
}

#[cfg(test)]
mod tests;
