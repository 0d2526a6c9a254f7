//! The places as streams of bytes: a file from an offset on.

mod bucket;
mod registry;
mod web;

use bytes::Bytes;
use futures::stream::BoxStream;
use weir_manifest::{FileEntry, FilePath};

use crate::fetcher::Settings;
use crate::uri::Place;
use crate::{FetchError, Location};

/// A file that is being read.
pub(crate) struct Opened {
    /// Bytes to be thrown away before what was asked for: a server need not begin where it was asked to.
    pub(crate) skip: u64,
    /// The whole file's size, where the server says one.
    pub(crate) total: Option<u64>,
    /// Whether the stream ends where the file does.
    pub(crate) ends: bool,
    /// The bytes.
    pub(crate) body: BoxStream<'static, Result<Bytes, FetchError>>,
}

impl Opened {
    /// What was asked for of a piece that came: a server that ignores where to begin sends what is before it too.
    pub(crate) fn wanted_of(&mut self, mut piece: Bytes) -> Bytes {
        let skipped = self.skip.min(piece.len() as u64);
        self.skip -= skipped;
        piece.split_off(usize::try_from(skipped).unwrap_or(usize::MAX))
    }
}

/// A place with its client and credentials.
pub(crate) struct Source {
    location: Location,
    kind: Kind,
}

enum Kind {
    Web(web::Web),
    Bucket(bucket::Bucket),
    Registry(Box<registry::Registry>),
}

impl Source {
    pub(crate) fn new(
        location: Location,
        client: &reqwest::Client,
        settings: &Settings,
    ) -> Result<Self, FetchError> {
        let kind = match location.place() {
            Place::Web { host, base } => Kind::Web(web::Web::new(client, host, base, settings)),
            Place::Bucket {
                cloud,
                name,
                prefix,
            } => {
                let options = &settings.stores;
                Kind::Bucket(bucket::Bucket::new(
                    client,
                    *cloud,
                    (name, prefix),
                    options,
                )?)
            }
            Place::Registry { reference } => Kind::Registry(Box::new(registry::Registry::new(
                client, reference, settings,
            )?)),
        };
        Ok(Self { location, kind })
    }

    pub(crate) fn shown(&self, path: &FilePath) -> String {
        self.location.shown(path)
    }

    /// Opens a file from an offset on.
    pub(crate) async fn open(&self, want: &FileEntry, offset: u64) -> Result<Opened, FetchError> {
        let place = self.shown(&want.path);
        match &self.kind {
            Kind::Web(web) => web.open(place, &want.path, offset).await,
            Kind::Bucket(bucket) => bucket.open(place, &want.path, offset).await,
            Kind::Registry(registry) => registry.open(place, want, offset).await,
        }
    }

    /// Opens a file of which nothing is known but its name.
    pub(crate) async fn open_unknown(&self, path: &FilePath) -> Result<Opened, FetchError> {
        let place = self.shown(path);
        match &self.kind {
            Kind::Web(web) => web.open(place, path, 0).await,
            Kind::Bucket(bucket) => bucket.open(place, path, 0).await,
            Kind::Registry(registry) => registry.open_named(place, path).await,
        }
    }
}
