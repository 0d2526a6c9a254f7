//! Where fetched models lie on this machine, and how they are fetched.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use weir_api::QuantityText;
use weir_fetch::{Cache, Fetcher, Settings};

/// The cache of models that are fetched.
#[derive(Clone, Debug, Args)]
pub struct CacheArgs {
    /// Where fetched models lie [default: weir/models in the user's cache folder].
    #[arg(long, value_name = "DIR", env = "WEIR_MODEL_CACHE")]
    pub model_cache: Option<PathBuf>,
    /// Bytes that fetched models may take, such as 200Gi; the least recently used go first, never those in use [default: the volume].
    #[arg(long, value_name = "BYTES", env = "WEIR_MODEL_CACHE_SIZE", value_parser = bytes)]
    pub model_cache_size: Option<u64>,
    /// Bytes a second that fetching may take, such as 100Mi [default: as fast as they come].
    #[arg(long, value_name = "BYTES", env = "WEIR_FETCH_RATE", value_parser = bytes)]
    pub fetch_rate: Option<u64>,
    /// Files fetched at the same time.
    #[arg(long, value_name = "COUNT", default_value_t = Settings::default().parallel)]
    pub fetch_parallel: usize,
}

impl CacheArgs {
    /// Opens the cache.
    ///
    /// # Errors
    /// Its folder cannot be made.
    pub fn cache(&self) -> Result<Cache> {
        let folder = match &self.model_cache {
            Some(folder) => folder.clone(),
            None => default_folder()
                .context("there is no home folder: say where models may lie with --model-cache")?,
        };
        Ok(Cache::open(&folder, self.model_cache_size)?)
    }

    /// Fetches into the cache.
    ///
    /// # Errors
    /// The cache cannot be opened, or the clients cannot be made.
    pub fn fetcher(&self) -> Result<Fetcher> {
        let settings = Settings {
            parallel: self.fetch_parallel,
            bytes_per_second: self.fetch_rate,
            ..Settings::default()
        };
        Ok(Fetcher::new(self.cache()?, settings.with_env()?)?)
    }
}

fn default_folder() -> Option<PathBuf> {
    let folder = |name: &str| {
        std::env::var_os(name)
            .filter(|text| !text.is_empty())
            .map(PathBuf::from)
    };
    let caches = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")))?;
    Some(caches.join("weir/models"))
}

/// A number of bytes of a command line: `5Gi`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    QuantityText::Text(text.to_owned())
        .bytes()
        .map_err(|error| error.to_string())
}
