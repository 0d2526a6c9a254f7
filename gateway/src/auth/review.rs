//! Tokens of Kubernetes service accounts, judged by the API server (`TokenReview`).
//!
//! The server is told which audience is ours and must name it back: a token that it only takes for its own audience was made for it, not
//! for us.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{Request, StatusCode};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;

use super::identity::{AccountRule, ServiceAccountSpec, Who, unavailable};
use crate::error::ApiResult;
use crate::fetch::{Fetch, FetchError};

/// Where a pod finds what it needs.
const POD: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// How long a review may take.
const WITHIN: Duration = Duration::from_secs(3);
/// Reviews at once.
const AT_ONCE: usize = 16;
/// Largest answer.
const MAX_BYTES: usize = 64 << 10;

pub(super) struct Reviewer {
    spec: ServiceAccountSpec,
    places: Semaphore,
    /// The CA file's content and the client that trusts it; the file is replaced when the cluster's CA rotates.
    fetch: Mutex<Option<(Vec<u8>, Fetch)>>,
}

#[derive(Debug, thiserror::Error)]
enum ReviewError {
    #[error("the API server is not named and this is no pod: set apiServer")]
    NoServer,
    #[error("cannot read {path:?}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the API server cannot be reached")]
    Fetch(#[source] FetchError),
    #[error("the API server answered with status {0}; the gateway needs to create tokenreviews")]
    Status(StatusCode),
    #[error("the API server's answer is no TokenReview")]
    Json(#[source] serde_json::Error),
    #[error("the API server did not answer in time")]
    Late,
}

#[derive(Deserialize)]
struct Review {
    #[serde(default)]
    status: ReviewStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ReviewStatus {
    authenticated: bool,
    user: User,
    audiences: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
}

impl Reviewer {
    pub(super) fn new(spec: ServiceAccountSpec) -> Self {
        Self {
            spec,
            places: Semaphore::new(AT_ONCE),
            fetch: Mutex::default(),
        }
    }

    /// Whose token this is, if the API server says that it is good and ours.
    pub(super) async fn who(&self, token: &str) -> ApiResult<Option<Who>> {
        let asked = async {
            let _place = self.places.acquire().await.map_err(|_| ReviewError::Late)?;
            self.review(token).await
        };
        let asked = tokio::time::timeout(WITHIN, asked).await;
        match asked.unwrap_or(Err(ReviewError::Late)) {
            Ok(status) => Ok(self.judge(&status)),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot have a service account's token reviewed"
                );
                Err(unavailable("the cluster's API server"))
            }
        }
    }

    fn judge(&self, status: &ReviewStatus) -> Option<Who> {
        let ours = status.audiences.contains(&self.spec.audience);
        if !status.authenticated || !ours {
            return None;
        }
        let account = status
            .user
            .username
            .strip_prefix("system:serviceaccount:")?;
        let (namespace, name) = account.split_once(':')?;
        let fits = |rule: &&AccountRule| {
            rule.namespace == namespace && rule.name.as_deref().is_none_or(|own| own == name)
        };
        let rule = self.spec.tenants.iter().find(fits)?;
        Some(Who {
            tenant: rule.tenant.clone(),
            caller: format!("serviceaccount:{namespace}:{name}"),
        })
    }

    async fn review(&self, token: &str) -> Result<ReviewStatus, ReviewError> {
        let own = self.spec.token_file.clone();
        let own = read(&own.unwrap_or_else(|| Path::new(POD).join("token"))).await?;
        let own = String::from_utf8_lossy(&own).trim().to_owned();
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self.spec.audience]},
        });
        let request = Request::post(format!(
            "{}/apis/authentication.k8s.io/v1/tokenreviews",
            self.server()?
        ))
        .header(AUTHORIZATION, format!("Bearer {own}"))
        .header(CONTENT_TYPE, "application/json")
        .header(ACCEPT, "application/json");
        let fetch = self.fetch().await?;
        let sent = fetch
            .send(request, body.to_string().into_bytes(), MAX_BYTES)
            .await;
        let (status, answer) = sent.map_err(ReviewError::Fetch)?;
        if !status.is_success() {
            return Err(ReviewError::Status(status));
        }
        let review: Review = serde_json::from_slice(&answer).map_err(ReviewError::Json)?;
        Ok(review.status)
    }

    fn server(&self) -> Result<String, ReviewError> {
        if let Some(server) = &self.spec.api_server {
            return Ok(server.trim_end_matches('/').to_owned());
        }
        let of_pod = |name| std::env::var(name).map_err(|_| ReviewError::NoServer);
        let (host, port) = (
            of_pod("KUBERNETES_SERVICE_HOST")?,
            of_pod("KUBERNETES_SERVICE_PORT")?,
        );
        let host = if host.contains(':') {
            format!("[{host}]")
        } else {
            host
        };
        Ok(format!("https://{host}:{port}"))
    }

    async fn fetch(&self) -> Result<Fetch, ReviewError> {
        let path = self.spec.ca_file.clone();
        let path = path.unwrap_or_else(|| Path::new(POD).join("ca.crt"));
        let pem = read(&path).await?;
        let mut known = self.fetch.lock();
        match &*known {
            Some((same, fetch)) if *same == pem => Ok(fetch.clone()),
            _ => {
                let fetch =
                    Fetch::with_ca(&pem).map_err(|source| ReviewError::Read { path, source })?;
                *known = Some((pem, fetch.clone()));
                Ok(fetch)
            }
        }
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, ReviewError> {
    tokio::fs::read(path)
        .await
        .map_err(|source| ReviewError::Read {
            path: path.to_owned(),
            source,
        })
}
