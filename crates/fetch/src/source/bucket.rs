//! Objects of S3, Google Cloud Storage and Azure, with the credentials that each cloud's own tools read from the environment.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{HttpClient, HttpConnector};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{
    BackoffConfig, ClientOptions, Error, GetOptions, GetRange, ObjectStore, RetryConfig,
};
use weir_manifest::FilePath;

use super::Opened;
use crate::FetchError;
use crate::error::chain;
use crate::uri::{Cloud, joined};

/// A prefix in a bucket.
pub(crate) struct Bucket {
    store: Arc<dyn ObjectStore>,
    prefix: String,
}

/// The one client for all.
#[derive(Debug)]
struct Shared(reqwest::Client);

impl HttpConnector for Shared {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.0.clone()))
    }
}

impl Bucket {
    pub(crate) fn new(
        client: &reqwest::Client,
        cloud: Cloud,
        (name, prefix): (&str, &str),
        options: &BTreeMap<String, String>,
    ) -> Result<Self, FetchError> {
        // Only so much that a credential's server may be slow once: the fetch itself tries again, from where it ended.
        let retry = RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: 1,
            retry_timeout: Duration::from_secs(20),
        };
        let client = Shared(client.clone());
        let made: object_store::Result<Arc<dyn ObjectStore>> = match cloud {
            Cloud::S3 => {
                let made = known(options)
                    .fold(AmazonS3Builder::from_env(), |made, (key, value)| {
                        made.with_config(key, value)
                    })
                    .with_bucket_name(name)
                    .with_retry(retry)
                    .with_http_connector(client)
                    .build();
                made.map(|store| Arc::new(store) as _)
            }
            Cloud::Google => {
                let made = known(options)
                    .fold(
                        GoogleCloudStorageBuilder::from_env(),
                        |made, (key, value)| made.with_config(key, value),
                    )
                    .with_bucket_name(name)
                    .with_retry(retry)
                    .with_http_connector(client)
                    .build();
                made.map(|store| Arc::new(store) as _)
            }
            Cloud::Azure => {
                let made = known(options)
                    .fold(MicrosoftAzureBuilder::from_env(), |made, (key, value)| {
                        made.with_config(key, value)
                    })
                    .with_container_name(name)
                    .with_retry(retry)
                    .with_http_connector(client)
                    .build();
                made.map(|store| Arc::new(store) as _)
            }
        };
        let store = made.map_err(|error| FetchError::Client {
            place: format!("the bucket {name:?}"),
            cause: chain(&error),
        })?;
        Ok(Self {
            store,
            prefix: prefix.to_owned(),
        })
    }

    pub(crate) async fn open(
        &self,
        place: String,
        path: &FilePath,
        offset: u64,
    ) -> Result<Opened, FetchError> {
        let name =
            object_store::path::Path::parse(joined(&self.prefix, path)).map_err(|error| {
                FetchError::Refused {
                    place: place.clone(),
                    cause: chain(&error),
                }
            })?;
        let ranged = GetOptions::default().with_range(Some(GetRange::Offset(offset)));
        let (mut skip, mut got) = match offset {
            0 => (0, self.store.get_opts(&name, GetOptions::default()).await),
            _ => (0, self.store.get_opts(&name, ranged).await),
        };
        if offset > 0 && matches!(&got, Err(error) if chain(error).contains("non-partial response"))
        {
            // It does not know ranges.
            (skip, got) = (
                offset,
                self.store.get_opts(&name, GetOptions::default()).await,
            );
        }
        let got = got.map_err(|error| fault(place.clone(), &error))?;
        let total = Some(got.meta.size);
        let body = got
            .into_stream()
            .map_err(move |error| fault(place.clone(), &error))
            .boxed();
        Ok(Opened {
            skip,
            total,
            ends: true,
            body,
        })
    }
}

/// The options that a cloud's client knows.
fn known<K: FromStr>(options: &BTreeMap<String, String>) -> impl Iterator<Item = (K, &str)> {
    options.iter().filter_map(|(name, value)| {
        let key = name.to_ascii_lowercase().parse().ok()?;
        Some((key, value.as_str()))
    })
}

fn fault(place: String, error: &Error) -> FetchError {
    let cause = chain(error);
    match error {
        Error::NotFound { .. } => FetchError::Missing { place, cause },
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            FetchError::Denied { place, cause }
        }
        Error::Generic { .. } if cause.contains("416 ") => FetchError::Refused { place, cause },
        Error::Generic { .. } if cause.contains("status code: 5") || cause.contains("429") => {
            FetchError::Busy { place, cause }
        }
        Error::Generic { .. } => FetchError::Unreachable { place, cause },
        _ => FetchError::Refused { place, cause },
    }
}
