//! From a request line to its handler. Every answer has the same headers, every refusal the same shape.

use std::sync::Arc;

use http::header::{ALLOW, CONNECTION, HeaderMap, HeaderValue, ORIGIN};
use http::{Method, Request, Response};
use hyper::body::{Body as _, Incoming};
use weir_protocol::error::ErrorCode;

use super::body::Body;
use super::cors;
use super::paths::Route;
use super::rates;
use super::receive::{Share, receive};
use super::reply::{self, X_REQUEST_ID};
use crate::admit::draining;
use crate::auth::authenticate;
use crate::clock::random_u128;
use crate::core::Core;
use crate::error::{ApiError, ApiResult};
use crate::snapshot::Tenant;
use crate::{batches, files, native, openai};

/// A request that was authenticated, with its body still on the way.
pub(crate) struct Call {
    pub(crate) core: Arc<Core>,
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) headers: HeaderMap,
    pub(crate) query: String,
    body: Option<Incoming>,
    /// Room for the body, until the request is done with.
    share: Option<Share>,
}

/// Answers one request.
pub(crate) async fn handle(core: Arc<Core>, request: Request<Incoming>) -> Response<Body> {
    let request_id = request_id(request.headers());
    let path = request.uri().path().to_owned();
    let route = Route::find(&path);
    let has_body = !request.body().is_end_stream();
    let metrics = Arc::clone(&core.metrics);
    let mut rates = HeaderMap::new();
    let directory = core.directory.load_full();
    if let Some(response) = cors::preflight(&directory.cors, request.method(), request.headers()) {
        return response;
    }
    let origin = request.headers().get(ORIGIN).cloned();
    let outcome = match route {
        None => Err(ApiError::new(
            ErrorCode::NotFound,
            format!(
                "no such path {path:?}; there are /inference, /runs/RUN, /runs/RUN/events, /usage, /usage/ledger, /tenant/content and OpenAI's paths below /v1"
            ),
        )),
        Some(route) => dispatch(core, route, request, &mut rates).await,
    };
    let mut response = outcome.unwrap_or_else(|error| {
        tracing::debug!(code = ?error.code(), request = request_id.to_str().unwrap_or(""), "refused");
        reply::error(&error)
    });
    if response.status() == http::StatusCode::METHOD_NOT_ALLOWED
        && let Some(route) = route
    {
        let allowed = HeaderValue::from_static(route.methods());
        response.headers_mut().insert(ALLOW, allowed);
    }
    response.headers_mut().extend(rates);
    response.headers_mut().insert(X_REQUEST_ID, request_id);
    if has_body && leaves_body_unread(response.status()) {
        // The connection ends after this answer: a client that is not told would send its next request into the void.
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
    cors::expose(&directory.cors, origin.as_ref(), response.headers_mut());
    metrics.request(
        route.map_or("none", Route::name),
        response.status().as_u16(),
    );
    response
}

/// Answers a request that came after the last one this gateway takes.
pub(crate) fn refuse(core: &Core, request: &Request<Incoming>) -> Response<Body> {
    let mut response = reply::error(&draining());
    let headers = response.headers_mut();
    headers.insert(X_REQUEST_ID, request_id(request.headers()));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    let route = Route::find(request.uri().path()).map_or("none", Route::name);
    core.metrics.request(route, response.status().as_u16());
    response
}

/// Refusals that are made before the body is looked at.
fn leaves_body_unread(status: http::StatusCode) -> bool {
    use http::StatusCode as S;
    matches!(
        status,
        S::UNAUTHORIZED | S::NOT_FOUND | S::METHOD_NOT_ALLOWED
    )
}

async fn dispatch(
    core: Arc<Core>,
    route: Route<'_>,
    request: Request<Incoming>,
    rates: &mut HeaderMap,
) -> ApiResult<Response<Body>> {
    let (parts, body) = request.into_parts();
    let tenant = authenticate(&core, &parts.headers).await?;
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let call = Call {
        core,
        tenant,
        headers: parts.headers,
        query,
        body: Some(body),
        share: None,
    };
    let method = parts.method;
    let counted = (route.makes_runs() && method == Method::POST)
        .then(|| (Arc::clone(&call.core), Arc::clone(&call.tenant)));
    let (metrics, tenant) = (Arc::clone(&call.core.metrics), Arc::clone(&call.tenant));
    let outcome = answer(call, route, method).await;
    if let Err(error) = &outcome {
        metrics.refused(&tenant.name, error.code());
    }
    if let Some((core, tenant)) = counted {
        *rates = rates::headers(&core, &tenant).await;
    }
    outcome
}

async fn answer(call: Call, route: Route<'_>, method: Method) -> ApiResult<Response<Body>> {
    use openai::responses;
    match (route, method) {
        (Route::Inference, Method::POST) => native::inference(call).await,
        (Route::Run(run), Method::GET) => native::run(&call, run).await,
        (Route::Run(run), Method::DELETE) => native::cancel(&call, run).await,
        (Route::Events(run), Method::GET) => native::events(&call, run).await,
        (Route::Usage, Method::GET) => native::usage(&call).await,
        (Route::Ledger, Method::GET) => native::ledger(&call).await,
        (Route::Content, Method::DELETE) => crate::content::delete(&call).await,
        (Route::Chat, Method::POST) => openai::chat(call).await,
        (Route::Completions, Method::POST) => openai::completions(call).await,
        (Route::Responses, Method::POST) => responses::create(call).await,
        (Route::Response(id), Method::GET) => responses::retrieve(&call, id).await,
        (Route::Response(id), Method::DELETE) => responses::delete(&call, id).await,
        (Route::ResponseCancel(id), Method::POST) => responses::cancel(&call, id).await,
        (Route::ResponseItems(id), Method::GET) => responses::input_items(&call, id).await,
        (Route::Files, Method::POST) => files::upload(call).await,
        (Route::Files, Method::GET) => files::list(&call).await,
        (Route::File(id), Method::GET) => files::retrieve(&call, id).await,
        (Route::File(id), Method::DELETE) => files::delete(&call, id).await,
        (Route::FileContent(id), Method::GET) => files::content(&call, id).await,
        (Route::Batches, Method::POST) => batches::create(call).await,
        (Route::Batches, Method::GET) => batches::list(&call).await,
        (Route::Batch(id), Method::GET) => batches::retrieve(&call, id).await,
        (Route::BatchCancel(id), Method::POST) => batches::cancel(&call, id).await,
        (Route::Models, Method::GET) => openai::models(&call),
        (Route::Model(model), Method::GET) => openai::model(&call, model),
        (Route::Unsupported(path), _) => Err(openai::unsupported(path)),
        (route, method) => Err(ApiError::new(
            ErrorCode::MethodNotAllowed,
            format!("{method} is not possible here; use {}", route.methods()),
        )),
    }
}

/// The client's own id where it is short and plain, else a new one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    let own = headers.get(X_REQUEST_ID).filter(|value| {
        let bytes = value.as_bytes();
        (1..=64).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    });
    own.cloned().unwrap_or_else(|| {
        HeaderValue::try_from(format!("req_{:032x}", random_u128())).expect("hex is ASCII")
    })
}

impl Call {
    /// A call that the gateway makes for a tenant by itself.
    pub(crate) fn internal(core: Arc<Core>, tenant: Arc<Tenant>, headers: HeaderMap) -> Self {
        Self {
            core,
            tenant,
            headers,
            query: String::new(),
            body: None,
            share: None,
        }
    }

    /// The body as it comes, which can be taken once.
    pub(crate) fn take_body(&mut self) -> Option<Incoming> {
        self.body.take()
    }

    /// The body, which can be taken once.
    pub(crate) async fn read_body(&mut self) -> ApiResult<bytes::Bytes> {
        match self.body.take() {
            Some(body) => {
                let share = self.core.bodies.share(&self.tenant.name);
                let share = self.share.insert(share);
                receive(&self.core.config, &self.headers, body, share).await
            }
            None => Ok(bytes::Bytes::new()),
        }
    }

    /// A header's text, where it is there.
    pub(crate) fn header(&self, name: &str) -> ApiResult<Option<&str>> {
        self.headers
            .get(name)
            .map(|value| {
                value.to_str().map_err(|_| {
                    ApiError::invalid(name, format!("header {name} must be plain ASCII"))
                })
            })
            .transpose()
    }

    /// Parameters of the query, each at most once, none but `known`.
    pub(crate) fn query(&self, known: &[&str]) -> ApiResult<Vec<(String, String)>> {
        parameters(&self.query, known)
    }
}

/// Parameters of a query, each at most once, none but `known`.
pub(crate) fn parameters(query: &str, known: &[&str]) -> ApiResult<Vec<(String, String)>> {
    let mut all: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (percent_decode(name), percent_decode(value));
        if !known.contains(&name.as_str()) {
            return Err(ApiError::invalid(
                &name,
                format!("unknown parameter {name:?}; known are {}", known.join(", ")),
            ));
        }
        if all.iter().any(|(other, _)| *other == name) {
            return Err(ApiError::invalid(&name, format!("{name:?} is given twice")));
        }
        all.push((name, value));
    }
    Ok(all)
}

/// The values of the only parameter that a query may have, and may have several times.
pub(crate) fn repeated(query: &str, name: &str) -> ApiResult<Vec<String>> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let each = pairs.map(|pair| parameters(pair, &[name]));
    let all: Vec<_> = each.collect::<ApiResult<_>>()?;
    Ok(all.into_iter().flatten().map(|(_, value)| value).collect())
}

pub(crate) fn percent_decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let hex = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16));
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let rest = bytes.clone();
                if let (Some(high), Some(low)) = (hex(bytes.next()), hex(bytes.next())) {
                    out.push((high * 16 + low) as u8);
                } else {
                    out.push(b'%');
                    bytes = rest;
                }
            }
            byte => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_signs_decode_and_broken_ones_stay() {
        assert_eq!(
            percent_decode("2026-01-01T00%3A00%3a00%2B01:00"),
            "2026-01-01T00:00:00+01:00"
        );
        assert_eq!(percent_decode("a+b%zz%4"), "a b%zz%4");
    }

    #[test]
    fn one_parameter_may_be_given_several_times_where_that_is_meant() {
        let all = |query| repeated(query, "evidence").ok();
        let models = vec!["a/b".to_owned(), "c".to_owned()];
        assert_eq!(all("evidence=a%2Fb&evidence=c"), Some(models));
        assert_eq!(all(""), Some(Vec::new()));
        assert_eq!(all("evidence=a&other=b"), None);
        assert!(parameters("evidence=a&evidence=b", &["evidence"]).is_err());
    }
}
