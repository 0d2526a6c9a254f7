//! Short questions to pods of the namespace, with a deadline and a bound: in plain HTTP, or in TLS to gateways that prove to be some.

mod connect;

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;

use self::connect::Connector;
pub use self::connect::Proof;

/// Longest answer: histograms of many models.
const MAX_ANSWER: usize = 8 << 20;

/// A client with a deadline. Cloning shares its connections.
#[derive(Clone)]
pub struct Http {
    client: Client<Connector, Full<Bytes>>,
    within: Duration,
}

impl Http {
    /// Answers must come within this time; with a proof, from gateways that prove who they are.
    pub fn new(within: Duration, proof: Option<Proof>) -> Self {
        let connector = Connector::new(within, proof);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Self { client, within }
    }

    /// A GET whose answer is JSON.
    ///
    /// # Errors
    /// What went wrong, for a log.
    pub async fn get_json<T: DeserializeOwned>(&self, url: &str) -> Result<T, String> {
        let body = self.send(Method::GET, url, Bytes::new()).await?;
        serde_json::from_slice(&body)
            .map_err(|error| format!("{url} answers no such JSON: {error}"))
    }

    /// A POST of JSON.
    ///
    /// # Errors
    /// What went wrong, for a log.
    pub async fn post(&self, url: &str, body: String) -> Result<Bytes, String> {
        self.send(Method::POST, url, Bytes::from(body)).await
    }

    async fn send(&self, method: Method, url: &str, body: Bytes) -> Result<Bytes, String> {
        let request = Request::builder()
            .method(method)
            .uri(url)
            .body(Full::new(body));
        let request = request.map_err(|error| format!("{url} is no address: {error}"))?;
        let exchange = async {
            let response = self.client.request(request).await;
            let response =
                response.map_err(|error| format!("{url} does not answer: {}", causes(&error)))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER)
                .collect()
                .await;
            let body = body
                .map_err(|error| format!("{url} broke off: {error}"))?
                .to_bytes();
            if status.is_success() {
                Ok(body)
            } else {
                Err(format!(
                    "{url} answers {status}: {}",
                    String::from_utf8_lossy(&body).trim()
                ))
            }
        };
        let answer = tokio::time::timeout(self.within, exchange).await;
        answer.map_err(|_| format!("{url} does not answer within {:?}", self.within))?
    }
}

/// An error with what is behind it: a handshake that failed is told by its last cause alone.
fn causes(error: &dyn std::error::Error) -> String {
    let mut told = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        told = format!("{told}: {error}");
        cause = error.source();
    }
    told
}
