//! Which pages in browsers may call. Off unless origins are listed.
//!
//! Keys come in a header that a page must set itself; no answer ever allows cookies, so `*` gives a page nothing that it does not have.

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, HeaderValue, ORIGIN, VARY,
};
use http::{Method, Response, StatusCode};

use super::body::Body;
use crate::settings::CorsSpec;

/// What scripts may read beside the body.
const EXPOSED: HeaderValue = HeaderValue::from_static(
    "x-request-id, x-run-id, x-model-version, x-error-code, x-should-retry, retry-after, retry-after-ms, \
     x-ratelimit-limit-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-requests, x-ratelimit-remaining-tokens, \
     x-ratelimit-reset-requests, x-ratelimit-reset-tokens",
);
const METHODS: HeaderValue = HeaderValue::from_static("GET, POST, DELETE");
/// Where the browser does not say which it wants.
const HEADERS: HeaderValue = HeaderValue::from_static("authorization, content-type");
const MAX_AGE_SECONDS: u32 = 600;

/// The answer to a browser that asks whether a page may call; none where this is no such question.
pub(crate) fn preflight(
    cors: &CorsSpec,
    method: &Method,
    headers: &HeaderMap,
) -> Option<Response<Body>> {
    let asks = method == Method::OPTIONS
        && headers.contains_key(ORIGIN)
        && headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    if !asks {
        return None;
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    if allow(cors, headers.get(ORIGIN), response.headers_mut()) {
        let answer = response.headers_mut();
        answer.insert(ACCESS_CONTROL_ALLOW_METHODS, METHODS);
        let wanted = headers.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned();
        answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.unwrap_or(HEADERS));
        let seconds = match cors.max_age_seconds {
            0 => MAX_AGE_SECONDS,
            seconds => seconds,
        };
        answer.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from(seconds));
    }
    Some(response)
}

/// Lets the page that called read the answer, where it may.
pub(crate) fn expose(cors: &CorsSpec, origin: Option<&HeaderValue>, answer: &mut HeaderMap) {
    if allow(cors, origin, answer) {
        answer.insert(ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
    }
}

fn allow(cors: &CorsSpec, origin: Option<&HeaderValue>, answer: &mut HeaderMap) -> bool {
    if cors.origins.is_empty() {
        return false;
    }
    // Whatever is allowed, caches must not give one page's answer to another.
    answer.append(VARY, HeaderValue::from_static("origin"));
    let Some(origin) = origin else {
        return false;
    };
    let listed = |one: &String| one == "*" || one.as_bytes() == origin.as_bytes();
    if !cors.origins.iter().any(listed) {
        return false;
    }
    answer.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| {
                (
                    http::HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect()
    }

    fn cors(origins: &[&str]) -> CorsSpec {
        CorsSpec {
            origins: origins.iter().map(|&origin| origin.to_owned()).collect(),
            max_age_seconds: 0,
        }
    }

    #[test]
    fn only_listed_origins_are_answered_and_cookies_never_allowed() {
        let asked = |origin| {
            headers(&[
                ("origin", origin),
                ("access-control-request-method", "POST"),
                (
                    "access-control-request-headers",
                    "authorization,content-type,x-stainless-lang",
                ),
            ])
        };
        let good = "https://chat.example.com";
        for (origins, origin, allowed) in [
            (&[good][..], good, true),
            (&[good], "https://evil.example.com", false),
            (&[good], "https://chat.example.com.evil.com", false),
            (&[good], "http://chat.example.com", false),
            (&[good], "null", false),
            (&["*"], "https://any.example.com", true),
            (&[], good, false),
        ] {
            let answer = preflight(&cors(origins), &Method::OPTIONS, &asked(origin)).unwrap();
            assert_eq!(answer.status(), 204);
            let got = answer.headers();
            let named = got
                .get(ACCESS_CONTROL_ALLOW_ORIGIN)
                .map(|value| value.to_str().unwrap());
            assert_eq!(named, allowed.then_some(origin), "{origins:?} {origin}");
            assert_eq!(got.contains_key("access-control-allow-headers"), allowed);
            assert!(!got.contains_key("access-control-allow-credentials"));
            assert_eq!(got.contains_key(VARY), !origins.is_empty());
        }
    }

    #[test]
    fn other_requests_are_no_preflight() {
        let none = headers(&[]);
        assert!(preflight(&cors(&["*"]), &Method::OPTIONS, &none).is_none());
        let get = headers(&[
            ("origin", "https://a.example"),
            ("access-control-request-method", "POST"),
        ]);
        assert!(preflight(&cors(&["*"]), &Method::GET, &get).is_none());
        let mut answer = HeaderMap::new();
        expose(&cors(&["https://a.example"]), get.get(ORIGIN), &mut answer);
        assert_eq!(answer["access-control-allow-origin"], "https://a.example");
        assert!(
            answer["access-control-expose-headers"]
                .to_str()
                .unwrap()
                .contains("x-run-id")
        );
    }
}
