//! Layers of an artifact in a registry: each file a layer (as `ModelPack`'s raw layers and plain artifacts have it), or files in an
//! uncompressed archive. Which layer holds a file is told by the signed digest, not by what the manifest says of itself.

mod challenge;
mod talk;

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use oci_client::Reference;
use oci_client::manifest::{
    IMAGE_MANIFEST_LIST_MEDIA_TYPE, IMAGE_MANIFEST_MEDIA_TYPE, OCI_IMAGE_INDEX_MEDIA_TYPE,
    OCI_IMAGE_MEDIA_TYPE, OciDescriptor, OciManifest,
};
use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use reqwest::{Response, StatusCode};
use tokio::sync::OnceCell;
use weir_manifest::{Digest, FileEntry, FilePath};

use self::talk::Talk;
use super::{Opened, web};
use crate::client::unreachable;
use crate::fetcher::Settings;
use crate::tape::{Extent, Reader};
use crate::{FetchError, docker};

/// What says a layer's file name: plain artifacts, and `ModelPack`.
const NAMES: [&str; 2] = ["org.opencontainers.image.title", "org.cncf.model.filepath"];

/// What registries take for a manifest, as their specification has it.
const MAX_MANIFEST: usize = 4 << 20;
/// The manifests that are asked for; indexes are refused with words of our own.
const MANIFESTS: [&str; 4] = [
    OCI_IMAGE_MEDIA_TYPE,
    IMAGE_MANIFEST_MEDIA_TYPE,
    OCI_IMAGE_INDEX_MEDIA_TYPE,
    IMAGE_MANIFEST_LIST_MEDIA_TYPE,
];

/// An artifact in a registry.
pub(crate) struct Registry {
    talk: Talk,
    reference: Reference,
    layers: OnceCell<Vec<OciDescriptor>>,
    /// Files in archives, with the layer's place in the list.
    packed: OnceCell<BTreeMap<FilePath, (usize, Extent)>>,
}

impl Registry {
    pub(crate) fn new(
        client: &reqwest::Client,
        reference: &str,
        settings: &Settings,
    ) -> Result<Self, FetchError> {
        let client_fault = |cause: String| FetchError::Client {
            place: format!("oci://{reference}"),
            cause,
        };
        let parsed: Reference = reference
            .parse()
            .map_err(|error| client_fault(format!("{error}")))?;
        let given = settings.registries.as_deref();
        let auth = docker::credentials(given, parsed.resolve_registry(), parsed.repository())
            .map_err(client_fault)?;
        Ok(Self {
            talk: Talk::new(client, &parsed, auth, &settings.plain_http),
            reference: parsed,
            layers: OnceCell::new(),
            packed: OnceCell::new(),
        })
    }

    pub(crate) async fn open(
        &self,
        place: String,
        want: &FileEntry,
        offset: u64,
    ) -> Result<Opened, FetchError> {
        let layers = self.layers(&place).await?;
        let digest = want.sha256.to_string();
        if let Some(layer) = layers.iter().find(|layer| layer.digest == digest) {
            return self.range(place, layer, (0, want.size), offset).await;
        }
        let packed = self.packed(&place).await?;
        if let Some((index, extent)) = packed.get(&want.path)
            && let Some(layer) = layers.get(*index)
        {
            if extent.size != want.size {
                return Err(FetchError::WrongLength {
                    place,
                    expected: want.size,
                    found: extent.size,
                });
            }
            return self
                .range(place, layer, (extent.offset, extent.size), offset)
                .await;
        }
        if layers.iter().any(|layer| is_named(layer, &want.path)) {
            let cause =
                format!("the artifact's layer of that name has not the signed digest {digest}");
            return Err(FetchError::Refused { place, cause });
        }
        Err(missing(place, layers))
    }

    /// By name alone: the signature.
    pub(crate) async fn open_named(
        &self,
        place: String,
        path: &FilePath,
    ) -> Result<Opened, FetchError> {
        let layers = self.layers(&place).await?;
        if let Some(layer) = layers.iter().find(|layer| is_named(layer, path)) {
            let size = u64::try_from(layer.size).unwrap_or(0);
            return self.range(place, layer, (0, size), 0).await;
        }
        let packed = self.packed(&place).await?;
        match packed
            .get(path)
            .and_then(|(index, extent)| Some((layers.get(*index)?, extent)))
        {
            Some((layer, extent)) => {
                self.range(place, layer, (extent.offset, extent.size), 0)
                    .await
            }
            None => Err(missing(place, layers)),
        }
    }

    async fn layers(&self, place: &str) -> Result<&[OciDescriptor], FetchError> {
        let read = || async {
            let refused = |cause: String| FetchError::Refused {
                place: place.to_owned(),
                cause,
            };
            let bytes = self.manifest(place).await?;
            match serde_json::from_slice(&bytes) {
                Ok(OciManifest::Image(manifest)) => Ok(manifest.layers),
                Ok(OciManifest::ImageIndex(_)) => Err(refused(
                    "the reference names an index of several platforms; name one manifest by its digest".to_owned(),
                )),
                Err(error) => Err(refused(format!("the registry sends no manifest: {error}"))),
            }
        };
        self.layers.get_or_try_init(read).await.map(Vec::as_slice)
    }

    async fn manifest(&self, place: &str) -> Result<Vec<u8>, FetchError> {
        let mut headers = HeaderMap::new();
        for kind in MANIFESTS {
            headers.append(ACCEPT, HeaderValue::from_static(kind));
        }
        let digest = self.reference.digest();
        let name = digest.or(self.reference.tag()).unwrap_or("latest");
        let what = format!("manifests/{name}");
        let mut response = self.talk.ask(place, &what, &headers).await?;
        let refused = |cause: String| FetchError::Refused {
            place: place.to_owned(),
            cause,
        };
        let mut bytes = Vec::new();
        while let Some(piece) = response
            .chunk()
            .await
            .map_err(|error| unreachable(place, error))?
        {
            bytes.extend_from_slice(&piece);
            if bytes.len() > MAX_MANIFEST {
                let cause = format!("its manifest is larger than {MAX_MANIFEST} bytes");
                return Err(refused(cause));
            }
        }
        let found = Digest::of(&bytes).to_string();
        match digest {
            Some(digest) if digest.starts_with("sha256:") && digest != found => Err(refused(
                format!("the manifest that came has the digest {found}"),
            )),
            _ => Ok(bytes),
        }
    }

    async fn packed(
        &self,
        place: &str,
    ) -> Result<&BTreeMap<FilePath, (usize, Extent)>, FetchError> {
        let read = || async {
            let mut all = BTreeMap::new();
            for (index, layer) in self.layers(place).await?.iter().enumerate() {
                if !is_archive(&layer.media_type) {
                    continue;
                }
                let mut reader = Reader::default();
                let mut is_broken = None;
                while let Some((offset, len)) = reader.wants() {
                    let bytes = self.piece(place, layer, offset, len).await?;
                    if let Err(fault) = reader.take(&bytes) {
                        is_broken = Some(fault);
                        break;
                    }
                }
                if let Some(fault) = is_broken {
                    // Tools that pack single files call them archives too.
                    tracing::debug!(
                        place,
                        layer = layer.digest,
                        fault,
                        "a layer is not read as an archive"
                    );
                    continue;
                }
                all.extend(
                    reader
                        .files()
                        .into_iter()
                        .map(|(path, extent)| (path, (index, extent))),
                );
            }
            Ok(all)
        };
        self.packed.get_or_try_init(read).await
    }

    /// A few bytes of a layer.
    async fn piece(
        &self,
        place: &str,
        layer: &OciDescriptor,
        offset: u64,
        len: u64,
    ) -> Result<Bytes, FetchError> {
        let mut opened = self
            .range(place.to_owned(), layer, (offset, len), 0)
            .await?;
        let mut bytes = Vec::new();
        let wanted = usize::try_from(len).unwrap_or(0);
        while bytes.len() < wanted {
            let Some(piece) = opened.body.next().await else {
                break;
            };
            let piece = opened.wanted_of(piece?);
            bytes.extend_from_slice(&piece);
        }
        bytes.truncate(wanted);
        Ok(bytes.into())
    }

    /// Opens `extent` of a layer, from `offset` of it on.
    async fn range(
        &self,
        place: String,
        layer: &OciDescriptor,
        extent: (u64, u64),
        offset: u64,
    ) -> Result<Opened, FetchError> {
        let (from, size) = (extent.0 + offset, extent.1.saturating_sub(offset));
        let is_whole = from == 0 && u64::try_from(layer.size) == Ok(size);
        let length = (!is_whole).then_some(size);
        let what = format!("blobs/{}", layer.digest);
        let headers = talk::range(from, length);
        let response = self.talk.ask(&place, &what, &headers).await?;
        Ok(Opened {
            skip: skipped(&place, &response, from)?,
            total: None,
            ends: is_whole,
            body: response
                .bytes_stream()
                .map_err(move |error| unreachable(&place, error))
                .boxed(),
        })
    }
}

/// Bytes that come before those that were asked for.
fn skipped(place: &str, response: &Response, from: u64) -> Result<u64, FetchError> {
    if response.status() != StatusCode::PARTIAL_CONTENT {
        return Ok(from);
    }
    match web::content_range(response.headers()) {
        Some((first, _)) if first <= from => Ok(from - first),
        found => Err(FetchError::Refused {
            place: place.to_owned(),
            cause: format!("asked for bytes from {from} on, the registry sends {found:?}"),
        }),
    }
}

fn is_named(layer: &OciDescriptor, path: &FilePath) -> bool {
    let annotations = layer.annotations.as_ref();
    let name = |key: &str| {
        annotations
            .and_then(|all| all.get(key))
            .map(|name| name.trim_start_matches("./"))
    };
    !is_archive_of_model(&layer.media_type)
        && NAMES.iter().any(|key| name(key) == Some(path.as_str()))
}

/// `ModelPack`'s archives carry the name of what is in them; those of other tools do not.
fn is_archive_of_model(media_type: &str) -> bool {
    media_type.starts_with("application/vnd.cncf.model.") && is_archive(media_type)
}

fn is_archive(media_type: &str) -> bool {
    media_type.rsplit(['.', '+']).next() == Some("tar")
}

fn missing(place: String, layers: &[OciDescriptor]) -> FetchError {
    let packed = layers.iter().find(|layer| {
        ["gzip", "zstd"]
            .iter()
            .any(|kind| layer.media_type.ends_with(kind))
    });
    match packed {
        Some(layer) => FetchError::Refused {
            place,
            cause: format!(
                "no layer has it, and layers of the type {} are not unpacked: push files raw, or in uncompressed archives",
                layer.media_type
            ),
        },
        None => FetchError::Missing {
            place,
            cause: "no layer of the artifact has it".to_owned(),
        },
    }
}
