//! Brings a whole version into the cache.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _};
use parking_lot::Mutex;
use weir_manifest::{Digest, FileEntry, FilePath, MANIFEST_FILE, MAX_BUNDLE_BYTES};

use crate::blob::{self, Means, blocking};
use crate::cache::{Cache, Lease, Record};
use crate::meter::Meter;
use crate::partial::{Finished, Partial};
use crate::rate::TokenBucket;
use crate::source::Source;
use crate::{FetchError, Location, client};

/// How often a version is put together anew because a file went meanwhile.
const TURNS: usize = 3;

/// How to fetch.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Files at the same time.
    pub parallel: usize,
    /// Bytes a second over all files; none means as fast as they come.
    pub bytes_per_second: Option<u64>,
    /// Hosts (`HOST:PORT`) that are spoken to without TLS. What comes is checked all the same; credentials can be read on the way.
    pub plain_http: Vec<String>,
    /// Bearer tokens for web servers, by host.
    pub web_tokens: BTreeMap<String, String>,
    /// Settings and credentials of object stores under the names that the environment has for them; they come before the environment's.
    pub stores: BTreeMap<String, String>,
    /// Credentials of registries, as docker keeps them in its `config.json`; files of this machine where there are none.
    pub registries: Option<Vec<u8>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            // Four connections fill most links, and no server takes offence.
            parallel: 4,
            bytes_per_second: None,
            plain_http: Vec::new(),
            web_tokens: BTreeMap::new(),
            stores: BTreeMap::new(),
            registries: None,
        }
    }
}

impl Settings {
    /// What the environment adds: `WEIR_FETCH_PLAIN_HTTP` (hosts, with commas between), and `WEIR_FETCH_TOKENS`, a file with a host and a
    /// token on each line.
    ///
    /// # Errors
    /// The file of tokens cannot be read.
    pub fn with_env(mut self) -> Result<Self, FetchError> {
        self.plain(&std::env::var("WEIR_FETCH_PLAIN_HTTP").unwrap_or_default());
        if let Some(path) = std::env::var_os("WEIR_FETCH_TOKENS").map(PathBuf::from) {
            let text = std::fs::read_to_string(&path)
                .map_err(FetchError::cache("read the tokens in", &path))?;
            self.tokens(&text);
        }
        Ok(self)
    }

    /// What a Secret adds: `.dockerconfigjson` or `config.json` for registries, `tokens` with a host and a token on each line,
    /// `WEIR_FETCH_PLAIN_HTTP`, and everything else for object stores under the names of the environment.
    pub fn with_secret(mut self, entries: BTreeMap<String, Vec<u8>>) -> Self {
        for (name, bytes) in entries {
            let text = String::from_utf8_lossy(&bytes).trim().to_owned();
            match name.as_str() {
                ".dockerconfigjson" | "config.json" => self.registries = Some(bytes),
                "tokens" => self.tokens(&text),
                "WEIR_FETCH_PLAIN_HTTP" => self.plain(&text),
                _ => drop(self.stores.insert(name, text)),
            }
        }
        self
    }

    /// As [`Settings::with_secret`], of a Secret that is mounted at a folder.
    ///
    /// # Errors
    /// The folder or a file of it cannot be read.
    pub fn with_folder(self, folder: &Path) -> Result<Self, FetchError> {
        const DOING: &str = "read the credentials in";
        let mut entries = BTreeMap::new();
        for entry in std::fs::read_dir(folder).map_err(FetchError::cache(DOING, folder))? {
            let path = entry.map_err(FetchError::cache(DOING, folder))?.path();
            let name = path.file_name().map(|name| name.to_string_lossy());
            // Beside the entries lie the folders that kubelet turns them over by.
            if let Some(name) = name.filter(|_| path.is_file()) {
                let bytes = std::fs::read(&path).map_err(FetchError::cache(DOING, &path))?;
                entries.insert(name.into_owned(), bytes);
            }
        }
        Ok(self.with_secret(entries))
    }

    fn plain(&mut self, hosts: &str) {
        let hosts = hosts.split(',').map(str::trim);
        let named = hosts.filter(|host| !host.is_empty());
        self.plain_http.extend(named.map(str::to_owned));
    }

    fn tokens(&mut self, text: &str) {
        let token = |line: &str| {
            line.trim()
                .split_once(char::is_whitespace)
                .map(|(host, token)| (host.to_owned(), token.trim().to_owned()))
        };
        self.web_tokens.extend(text.lines().filter_map(token));
    }
}

/// Bytes a second, shared by all files.
pub(crate) struct Limiter(Option<(Instant, Mutex<TokenBucket>)>);

impl Limiter {
    fn new(bytes_per_second: Option<u64>) -> Self {
        Self(bytes_per_second.map(|rate| (Instant::now(), Mutex::new(TokenBucket::new(rate, 0)))))
    }

    pub(crate) async fn take(&self, bytes: u64) {
        if let Some((start, bucket)) = &self.0 {
            let now = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
            let wait = bucket.lock().take(bytes, now);
            if wait > 0 {
                tokio::time::sleep(Duration::from_millis(wait)).await;
            }
        }
    }
}

/// What to say of a signature that is a file of the artifact: nothing is known of it before, so whoever asks for it judges it.
pub struct Signature<'a> {
    /// Its name.
    pub path: FilePath,
    /// Whether the bytes are a signature of this version.
    pub accept: &'a (dyn Fn(&[u8]) -> Result<(), String> + Send + Sync),
}

/// Which version, and where it is.
pub struct Request<'a> {
    /// The artifact's URI.
    pub uri: &'a str,
    /// Its name in the cache.
    pub name: &'a str,
    /// The files to bring, as they were signed.
    pub files: &'a [FileEntry],
    /// The signature, where it is a file.
    pub signature: Option<Signature<'a>>,
}

/// A version in the cache.
#[derive(Debug)]
pub struct Fetched {
    /// The folder with its files.
    pub dir: PathBuf,
    /// Keeps it from being evicted.
    pub lease: Lease,
}

/// Fetches versions into one cache.
pub struct Fetcher {
    cache: Cache,
    settings: Settings,
    client: reqwest::Client,
    limiter: Limiter,
}

impl Fetcher {
    /// A fetcher for a cache.
    ///
    /// # Errors
    /// The client cannot be made: the system's certificates cannot be read.
    pub fn new(cache: Cache, settings: Settings) -> Result<Self, FetchError> {
        Ok(Self {
            cache,
            client: client::make()?,
            limiter: Limiter::new(settings.bytes_per_second),
            settings,
        })
    }

    /// The cache.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// The name in the cache of a version with all its files.
    pub fn name_of(digest: &Digest) -> String {
        digest.to_hex()
    }

    /// Brings a version's files, those that are missing, and gives them their names. Dropping the future stops it; what came is kept.
    ///
    /// # Errors
    /// The first fault that trying again does not mend.
    pub async fn fetch(&self, request: &Request<'_>, meter: &Meter) -> Result<Fetched, FetchError> {
        let location = Location::parse(request.uri)?;
        let total = request.files.iter().map(|file| file.size).sum();
        meter.begin(total);
        let mut record = Record {
            uri: request.uri.to_owned(),
            files: request.files.to_vec(),
            signature: self.known_signature(request),
        };
        let fetched = |lease| Fetched {
            dir: self.cache.model(request.name),
            lease,
        };
        let lease = self.cache.hold(request.name, &record).await?;
        if (request.signature.is_none() || record.signature.is_some())
            && self.cache.link(request.name, &record).await?
        {
            meter.have(total);
            return Ok(fetched(lease));
        }
        let source = Source::new(location, &self.client, &self.settings)?;
        if let (Some(signature), None) = (&request.signature, &record.signature) {
            record.signature = Some(self.signature(&source, signature).await?);
            // What was held without its signature is held on: two leases of one version do no harm.
            drop(self.cache.hold(request.name, &record).await?);
        }
        for _ in 0..TURNS {
            self.blobs(&source, &record, meter).await?;
            if self.cache.link(request.name, &record).await? {
                return Ok(fetched(lease));
            }
            meter.begin(total);
        }
        Err(FetchError::Cache {
            doing: "keep the files of a version in",
            path: self.cache.root().to_owned(),
            source: std::io::Error::other(
                "they go as fast as they come: another process empties the cache",
            ),
        })
    }

    /// Every file that is not here. Small ones first: where the place is wrong, that shows at once.
    async fn blobs(
        &self,
        source: &Source,
        record: &Record,
        meter: &Meter,
    ) -> Result<(), FetchError> {
        let mut seen = BTreeSet::new();
        let mut files: Vec<&FileEntry> = Vec::new();
        for file in &record.files {
            if seen.insert(file.sha256) {
                files.push(file);
            } else {
                meter.have(file.size);
            }
        }
        files.sort_by_key(|file| (file.path.as_str() != MANIFEST_FILE, file.size));
        let partial = |file: &FileEntry| {
            std::fs::metadata(self.cache.partial(&file.sha256)).map_or(0, |meta| meta.len())
        };
        let missing = files.iter().filter(|file| !self.cache.has(file));
        let needed: u64 = missing
            .map(|file| file.size.saturating_sub(partial(file)))
            .sum();
        if needed > 0 {
            self.cache.make_room(needed).await?;
        }
        let means = Means {
            cache: &self.cache,
            source,
            limiter: &self.limiter,
            meter,
        };
        let mut fetches = Vec::new();
        for file in files {
            fetches.push(blob::fetch(means, file));
        }
        futures::stream::iter(fetches)
            .buffer_unordered(self.settings.parallel.max(1))
            .try_collect::<()>()
            .await
    }

    /// The signature that was accepted before, if it still would be.
    fn known_signature(&self, request: &Request<'_>) -> Option<FileEntry> {
        let signature = request.signature.as_ref()?;
        let known = self.cache.record(request.name)?.signature?;
        let bytes = std::fs::read(self.cache.blob(&known.sha256)).ok()?;
        let is_same = known.path == signature.path && Digest::of(&bytes) == known.sha256;
        (is_same && (signature.accept)(&bytes).is_ok()).then_some(known)
    }

    async fn signature(
        &self,
        source: &Source,
        signature: &Signature<'_>,
    ) -> Result<FileEntry, FetchError> {
        let place = source.shown(&signature.path);
        let mut backoff = crate::retry::Backoff::default();
        let bytes = loop {
            match read_small(source, signature).await {
                Err(error) if error.is_transient() => match backoff.after(0, u32::MAX) {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => return Err(error),
                },
                done => break done?,
            }
        };
        (signature.accept)(&bytes).map_err(|cause| FetchError::Signature { place, cause })?;
        let entry = FileEntry {
            path: signature.path.clone(),
            sha256: Digest::of(&bytes),
            size: bytes.len() as u64,
        };
        let _lock = self.cache.lock_blob(&entry.sha256).await?;
        if self.cache.has(&entry) {
            return Ok(entry);
        }
        let (cache, want) = (self.cache.clone(), entry.clone());
        blocking(move || {
            let mut partial = Partial::open(&cache, &want)?;
            let rest = bytes
                .get(usize::try_from(partial.len()).unwrap_or(usize::MAX)..)
                .unwrap_or_default();
            partial.write(rest, want.size)?;
            match partial.finish(&cache, &want)? {
                Finished::Whole => Ok(()),
                Finished::Wrong(_) => Err(FetchError::Cache {
                    doing: "write",
                    path: cache.blob(&want.sha256),
                    source: std::io::Error::other("the disk does not keep what is written to it"),
                }),
            }
        })
        .await?;
        Ok(entry)
    }
}

async fn read_small(source: &Source, signature: &Signature<'_>) -> Result<Vec<u8>, FetchError> {
    let mut opened = source.open_unknown(&signature.path).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = opened.body.next().await {
        let piece = opened.wanted_of(piece?);
        bytes.extend_from_slice(&piece);
        if bytes.len() > MAX_BUNDLE_BYTES {
            return Err(FetchError::Signature {
                place: source.shown(&signature.path),
                cause: format!("it is larger than {MAX_BUNDLE_BYTES} bytes"),
            });
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_says_how_registries_web_servers_and_stores_are_spoken_to() {
        let folder = tempfile::tempdir().unwrap();
        let entries = [
            (".dockerconfigjson", "{}"),
            ("tokens", "models.example t1\nother.example t2\n"),
            ("WEIR_FETCH_PLAIN_HTTP", "one:80, two:80"),
            ("AWS_SECRET_ACCESS_KEY", "s\n"),
        ];
        for (name, text) in entries {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        // As kubelet mounts them: folders beside the entries.
        std::fs::create_dir(folder.path().join("..2026_11_30")).unwrap();
        let settings = Settings::default().with_folder(folder.path()).unwrap();
        assert_eq!(settings.registries.as_deref(), Some(&b"{}"[..]));
        assert_eq!(settings.web_tokens["other.example"], "t2");
        assert_eq!(settings.plain_http, ["one:80", "two:80"]);
        let stores: Vec<_> = settings.stores.iter().collect();
        assert_eq!(
            stores,
            [(&"AWS_SECRET_ACCESS_KEY".to_owned(), &"s".to_owned())]
        );
        let missing = Settings::default().with_folder(&folder.path().join("gone"));
        assert!(missing.unwrap_err().message().contains("gone"));
    }
}
