//! Tokenizers and templates of versions whose files are elsewhere, fetched into this gateway's own folder. Weights stay where they are.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use weir_fetch::{Cache, Fetched, Fetcher, Meter, Request, Settings};
use weir_manifest::{Digest, FileEntry};

use super::objects::Elsewhere;

/// Most bytes that are kept: those of hundreds of versions.
const MAX_BYTES: u64 = 4 << 30;
/// How long reading a Secret may take.
const SECRET_WITHIN: Duration = Duration::from_secs(5);

/// Where such files go, and whom to ask for Secrets.
pub(super) struct Place {
    pub(super) folder: PathBuf,
    pub(super) client: Client,
    pub(super) namespace: String,
}

impl Place {
    /// Brings those files of a version that are `wanted`.
    ///
    /// # Errors
    /// What does not come, and why.
    pub(super) async fn bring(
        &self,
        digest: &str,
        from: &Elsewhere,
        wanted: fn(&FileEntry) -> bool,
    ) -> Result<Fetched, String> {
        let digest: Digest = digest
            .parse()
            .map_err(|_| "its digest is none".to_owned())?;
        let files = from.files.iter().filter(|file| wanted(file));
        let files: Vec<FileEntry> = files.cloned().collect();
        let settings = Settings::default().with_env();
        let mut settings = settings.map_err(|error| error.message())?;
        if let Some(name) = &from.secret {
            settings = settings.with_secret(self.secret(name).await?);
        }
        let cache = Cache::open(&self.folder, Some(MAX_BYTES));
        let fetcher = cache.and_then(|cache| Fetcher::new(cache, settings));
        let fetcher = fetcher.map_err(|error| error.message())?;
        // Not the name of the whole version, which a worker beside it may have in a cache that they share.
        let name = format!("{}-text", Fetcher::name_of(&digest));
        let request = Request {
            uri: &from.uri,
            name: &name,
            files: &files,
            signature: None,
        };
        let brought = fetcher.fetch(&request, &Meter::default()).await;
        brought.map_err(|error| format!("{}: {}", error.reason(), error.message()))
    }

    async fn secret(&self, name: &str) -> Result<BTreeMap<String, Vec<u8>>, String> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let read = tokio::time::timeout(SECRET_WITHIN, api.get(name)).await;
        let read = read.map_err(|_| format!("Secret {name:?}: the API server does not answer"))?;
        let secret = read.map_err(|error| format!("Secret {name:?}: {error}"))?;
        let data = secret.data.unwrap_or_default().into_iter();
        Ok(data.map(|(key, value)| (key, value.0)).collect())
    }
}
