//! One client for all: TLS by rustls with the roots of the system (`SSL_CERT_FILE` names others), proxies from the environment.

use std::time::Duration;

use crate::FetchError;

/// A place that does not even take a connection is tried again rather than waited for.
const CONNECT: Duration = Duration::from_secs(10);
/// Nothing may take longer to come than this; the reader of a body has the same patience.
pub(crate) const SILENCE: Duration = Duration::from_secs(30);

/// Makes the client.
pub(crate) fn make() -> Result<reqwest::Client, FetchError> {
    install_provider();
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
    let made = reqwest::Client::builder()
        .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT)
        .read_timeout(SILENCE)
        .redirect(redirects)
        .build();
    made.map_err(|error| FetchError::Client {
        place: "https".to_owned(),
        cause: crate::error::chain(&error),
    })
}

/// The cryptography that everything else in a process uses. The registry's client makes its own connections and asks for it.
pub(crate) fn install_provider() {
    // Fails only where one is installed, which will do.
    drop(rustls::crypto::ring::default_provider().install_default());
}
