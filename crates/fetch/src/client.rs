//! One client for all: TLS by rustls with the roots of the system (`SSL_CERT_FILE` names others), proxies from the environment.

use std::time::Duration;

use crate::FetchError;

/// A place that does not even take a connection is tried again rather than waited for.
const CONNECT: Duration = Duration::from_secs(10);
/// Nothing may take longer to come than this; the reader of a body has the same patience.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);

/// Makes the client. A system without any authorities is no fault: places without TLS need none, and the others are refused when they are
/// spoken to.
pub(crate) fn make() -> Result<reqwest::Client, FetchError> {
    // The cryptography that everything else in a process uses. Fails only where one is installed, which will do.
    drop(rustls::crypto::ring::default_provider().install_default());
    let made = builder().build().or_else(|error| {
        tracing::warn!(
            error = crate::error::chain(&error),
            "no certificates of authorities can be read; only places without TLS can be fetched from. Name a file of them in SSL_CERT_FILE, or install the package ca-certificates"
        );
        builder().tls_certs_only([]).build()
    });
    made.map_err(|error| FetchError::Client {
        place: "https".to_owned(),
        cause: crate::error::chain(&error),
    })
}

fn builder() -> reqwest::ClientBuilder {
    let redirects = reqwest::redirect::Policy::custom(|attempt| {
        let was_secret = attempt
            .previous()
            .last()
            .is_some_and(|url| url.scheme() == "https");
        if was_secret && attempt.url().scheme() != "https" {
            attempt.error("redirected from https to http")
        } else if attempt.previous().len() > 10 {
            attempt.error("redirected more than ten times")
        } else {
            attempt.follow()
        }
    });
    reqwest::Client::builder()
        .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT)
        .read_timeout(SILENCE)
        .redirect(redirects)
}

/// The fault of a place that does not answer, or no longer.
pub(crate) fn unreachable(place: &str, error: reqwest::Error) -> FetchError {
    FetchError::Unreachable {
        place: place.to_owned(),
        cause: crate::error::chain(&error.without_url()),
    }
}
