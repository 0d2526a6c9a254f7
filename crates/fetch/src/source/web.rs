//! Files below a URL.

use futures::{StreamExt as _, TryStreamExt as _};
use reqwest::header::{ACCEPT_ENCODING, CONTENT_RANGE, HeaderMap, RANGE};
use reqwest::{Client, StatusCode};
use weir_manifest::FilePath;

use super::Opened;
use crate::FetchError;
use crate::client::unreachable;
use crate::fetcher::Settings;
use crate::uri::encoded;

/// A folder on a web server.
pub(crate) struct Web {
    client: Client,
    base: String,
    token: Option<String>,
}

impl Web {
    pub(crate) fn new(client: &Client, host: &str, base: &str, settings: &Settings) -> Self {
        let scheme = if settings.plain_http.iter().any(|plain| plain == host) {
            "http"
        } else {
            "https"
        };
        // The hub's token goes to the hub alone.
        let token = match host {
            "huggingface.co" => std::env::var("HF_TOKEN").ok(),
            _ => settings.web_tokens.get(host).cloned(),
        };
        Self {
            client: client.clone(),
            base: format!("{scheme}://{base}"),
            token,
        }
    }

    pub(crate) async fn open(
        &self,
        place: String,
        path: &FilePath,
        offset: u64,
    ) -> Result<Opened, FetchError> {
        let mut request = self
            .client
            .get(format!("{}/{}", self.base, encoded(path)))
            .header(ACCEPT_ENCODING, "identity");
        if offset > 0 {
            request = request.header(RANGE, format!("bytes={offset}-"));
        }
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let response = request
            .send()
            .await
            .map_err(|error| unreachable(&place, error))?;
        let (skip, total) = match response.status() {
            StatusCode::OK => (offset, response.content_length()),
            StatusCode::PARTIAL_CONTENT => match content_range(response.headers()) {
                Some((first, total)) if first <= offset => (offset - first, total),
                found => {
                    let cause =
                        format!("asked for bytes from {offset} on, the server sends {found:?}");
                    return Err(FetchError::Refused { place, cause });
                }
            },
            status => return Err(refused(place, status, response.headers(), "")),
        };
        let body = response
            .bytes_stream()
            .map_err(move |error| unreachable(&place, error))
            .boxed();
        Ok(Opened {
            skip,
            total,
            ends: true,
            body,
        })
    }
}

/// The first byte and the whole size of `bytes FIRST-LAST/SIZE`.
pub(super) fn content_range(headers: &HeaderMap) -> Option<(u64, Option<u64>)> {
    let text = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, _) = range.split_once('-')?;
    Some((first.trim().parse().ok()?, total.trim().parse().ok()))
}

/// What a status means, with the words that came with it.
pub(super) fn refused(
    place: String,
    status: StatusCode,
    headers: &HeaderMap,
    words: &str,
) -> FetchError {
    let cause = match words {
        "" => status.to_string(),
        words => format!("{status}: {words}"),
    };
    match status {
        StatusCode::UNAUTHORIZED
        | StatusCode::FORBIDDEN
        | StatusCode::PROXY_AUTHENTICATION_REQUIRED => FetchError::Denied { place, cause },
        StatusCode::NOT_FOUND | StatusCode::GONE => FetchError::Missing { place, cause },
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => {
            FetchError::Busy { place, cause }
        }
        status if status.is_server_error() => FetchError::Busy { place, cause },
        StatusCode::RANGE_NOT_SATISFIABLE => {
            let text = headers
                .get(CONTENT_RANGE)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default();
            FetchError::Refused {
                place,
                cause: format!("{cause}: the file there is shorter ({text})"),
            }
        }
        _ => FetchError::Refused { place, cause },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_says_where_it_begins_and_how_long_the_whole_is() {
        let of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_RANGE, text.parse().unwrap());
            content_range(&headers)
        };
        assert_eq!(of("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(of("bytes 5-9/*"), Some((5, None)));
        assert_eq!(of("bytes */10"), None);
        assert_eq!(of("lines 5-9/10"), None);
    }
}
