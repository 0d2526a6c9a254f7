//! A hash chain as lines of text, page by page.

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use weir_ledger::{Chain, Day, Page, encode_link};
use weir_protocol::error::ErrorCode;
use weir_store::Store;

use crate::error::{ApiError, ApiResult};
use crate::http::body::Body;
use crate::http::route::Call;

/// The content type of an export.
pub(crate) const NDJSON: &str = "application/x-ndjson";
/// Links of a page, where nothing is said: some hundred kilobytes.
const PAGE: usize = 1000;
const MAX_PAGE: usize = 10_000;

/// Which part of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Export {
    pub(crate) day: Option<Day>,
    pub(crate) after: u64,
    pub(crate) limit: usize,
}

impl Export {
    /// From `day`, `after` and `limit`.
    pub(crate) fn read(parameters: &[(String, String)]) -> ApiResult<Self> {
        let mut export = Self {
            day: None,
            after: 0,
            limit: PAGE,
        };
        for (name, text) in parameters {
            let number = || {
                text.parse::<u64>()
                    .map_err(|_| ApiError::invalid(name, format!("{name} must be a number")))
            };
            match name.as_str() {
                "day" => {
                    let day = text.parse();
                    export.day = Some(day.map_err(|why: String| ApiError::invalid("day", why))?);
                }
                "after" => export.after = number()?,
                "limit" => {
                    let limit = usize::try_from(number()?).unwrap_or(usize::MAX);
                    export.limit = limit.clamp(1, MAX_PAGE);
                }
                _ => {}
            }
        }
        Ok(export)
    }
}

pub(crate) async fn ledger(call: &Call) -> ApiResult<Response<Body>> {
    let asked = Export::read(&call.query(&["day", "after", "limit"])?)?;
    let chain = Chain::Ledger(call.tenant.name.clone());
    let text = export(&*call.core.store, chain, &asked).await?;
    let mut response = Response::new(Body::from(text.into_bytes()));
    *response.status_mut() = StatusCode::OK;
    let kind = HeaderValue::from_static(NDJSON);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    Ok(response)
}

/// One page: a line for each link, then the page's own.
pub(crate) async fn export(store: &dyn Store, chain: Chain, asked: &Export) -> ApiResult<String> {
    let (first, last, mut page) = match asked.day {
        None => {
            let head = store.chain_head(chain.clone()).await?;
            let page = Page::of_chain(&chain, &head);
            (1, head.number, page)
        }
        Some(day) => {
            let span = store.chain_day(chain.clone(), day).await?;
            let span = span.ok_or_else(|| {
                ApiError::new(
                    ErrorCode::NotFound,
                    format!("{:?} has no record of {day}", chain.name()),
                )
            })?;
            let page = Page {
                chain: chain.name(),
                day: Some(day.to_string()),
                previous_root: span.previous_root.to_string(),
                root: span.root.to_string(),
                records: span.last.saturating_sub(span.first).saturating_add(1),
                open: span.open,
                next: None,
            };
            (span.first, span.last, page)
        }
    };
    let after = asked.after.max(first.saturating_sub(1));
    let left = usize::try_from(last.saturating_sub(after)).unwrap_or(usize::MAX);
    let links = store.chain(chain, after, asked.limit.min(left)).await?;
    let end = links.last().map_or(after, |link| link.number);
    page.next = (end < last).then_some(end);
    let mut text = String::new();
    for link in &links {
        text.push_str(&String::from_utf8_lossy(&encode_link(link)));
        text.push('\n');
    }
    let page = serde_json::json!({ "page": page });
    text.push_str(&page.to_string());
    text.push('\n');
    Ok(text)
}
