//! `/console`: pools, queues, rollouts and runs for people to look at, in one page without a build step.
//!
//! It is served on the admin port alone, never on the clients' listener: whoever reaches that port may already read every tenant's usage,
//! and nothing here adds a second way to log in. What tenants wrote and were answered is more than that, so events come without their text
//! unless the request brings a key of the tenant itself. Nothing here changes anything.
//!
//! A page on the web could have its own name resolve to this machine and then read what is here; so these paths answer only where they are
//! asked for by an address, or by a name that cannot be on the web.

mod guard;
mod runs;
mod state;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde_json::json;
use weir_telemetry::admin::{Page, Site, Sites};

use crate::core::Core;
use crate::error::{ApiError, ApiResult};
use crate::gateway::Gateway;

const HTML: &str = include_str!("console/index.html");
const STYLE: &str = include_str!("console/style.css");
const SCRIPT: &str = include_str!("console/app.js");
const PLOTS: &str = include_str!("console/plots.js");

/// Its own script and style, its own data, and nothing else from anywhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

type Answer = Response<Full<Bytes>>;

impl Gateway {
    /// The console. `rollouts` is a page with the course of rollouts, where this process decides on them.
    pub fn console(&self, rollouts: Option<Page>) -> Sites {
        let core = Arc::clone(self.core());
        let site = Site(Arc::new(move |parts| {
            let (core, rollouts) = (Arc::clone(&core), rollouts.clone());
            Box::pin(async move { answer(&core, rollouts, &parts).await })
        }));
        Sites::from([("/console", site)])
    }
}

async fn answer(core: &Arc<Core>, rollouts: Option<Page>, parts: &Parts) -> Answer {
    if let Err(why) = guard::check(parts) {
        return body(
            StatusCode::MISDIRECTED_REQUEST,
            "text/plain; charset=utf-8",
            why,
        );
    }
    let data = match parts.uri.path() {
        "/console" => return body(StatusCode::OK, "text/html; charset=utf-8", HTML),
        "/console/style.css" => return body(StatusCode::OK, "text/css; charset=utf-8", STYLE),
        "/console/app.js" => return script(SCRIPT),
        "/console/plots.js" => return script(PLOTS),
        "/console/state" => Ok(state::state(core)),
        "/console/rollouts" => Ok(rollouts.map_or_else(|| "{}".to_owned(), |Page(make)| make())),
        "/console/runs" => runs::runs(core, parts).await,
        "/console/events" => runs::events(core, parts).await,
        path => Err(not_found(path)),
    };
    match data {
        Ok(text) => body(StatusCode::OK, "application/json", text),
        Err(error) => body(
            error.code().status(),
            "application/json",
            json!({"error": error.body()}).to_string(),
        ),
    }
}

fn not_found(path: &str) -> ApiError {
    ApiError::new(
        weir_protocol::error::ErrorCode::NotFound,
        format!("no such path {path:?}; the console is at /console"),
    )
}

fn script(text: &'static str) -> Answer {
    body(StatusCode::OK, "text/javascript; charset=utf-8", text)
}

fn body(status: StatusCode, kind: &'static str, text: impl Into<Bytes>) -> Answer {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    response
}

/// Parameters of a query, none but `known`.
fn parameters(parts: &Parts, known: &[&str]) -> ApiResult<Vec<(String, String)>> {
    crate::http::route::parameters(parts.uri.query().unwrap_or_default(), known)
}
