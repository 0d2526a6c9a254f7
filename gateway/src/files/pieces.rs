//! The content of a file in the store: written piece by piece with the tenant's quota, read by lines or as it is.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use weir_protocol::error::ErrorCode;
use weir_store::{Expect, Object, ObjectRange, ObjectWrite, Store, Written};

use super::meta::{FileMeta, read, to_bytes};
use crate::error::{ApiError, ApiResult};

pub(super) const BLOBS: &str = "blob";
const QUOTAS: &str = "quota";
/// Large enough that a file of 200 MiB is 800 commits, small enough that the events of a step hardly wait for one.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces removed in one commit.
const REMOVE: usize = 8;
/// How often a quota that others change as well is tried.
const TRIES: usize = 64;

pub(super) fn piece_name(file: &str, piece: u32) -> String {
    format!("{file}/{piece:08}")
}

/// What a tenant's files take.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Quota {
    bytes: u64,
}

/// Writes a file's content. What it wrote is billed to the tenant's quota piece by piece, in the piece's own commit.
pub(crate) struct PieceWriter {
    store: Arc<dyn Store>,
    tenant: String,
    file: String,
    /// Refuse beyond this; none for what the gateway writes for the tenant.
    most: Option<u64>,
    buffer: BytesMut,
    pub(crate) pieces: u32,
    pub(crate) bytes: u64,
}

impl PieceWriter {
    pub(crate) fn new(store: Arc<dyn Store>, tenant: &str, file: &str, most: Option<u64>) -> Self {
        Self {
            store,
            tenant: tenant.to_owned(),
            file: file.to_owned(),
            most,
            buffer: BytesMut::new(),
            pieces: 0,
            bytes: 0,
        }
    }

    pub(crate) async fn push(&mut self, mut data: &[u8]) -> ApiResult<()> {
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min(PIECE_BYTES - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            data = later;
            if self.buffer.len() == PIECE_BYTES {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Writes what is left.
    pub(crate) async fn finish(&mut self) -> ApiResult<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.flush().await
    }

    async fn flush(&mut self) -> ApiResult<()> {
        let data = self.buffer.split().freeze();
        let added = data.len() as u64;
        let piece = ObjectWrite {
            space: BLOBS,
            owner: self.tenant.clone(),
            name: piece_name(&self.file, self.pieces),
            expect: Expect::Absent,
            data: Some(data),
        };
        let most = self.most;
        with_quota(&*self.store, &self.tenant, vec![piece], |used| {
            let next = used.saturating_add(added);
            match most {
                Some(most) if next > most => Err(full(used, most)),
                _ => Ok(next),
            }
        })
        .await?;
        self.pieces += 1;
        self.bytes += added;
        Ok(())
    }
}

fn full(used: u64, most: u64) -> ApiError {
    ApiError::new(
        ErrorCode::StorageExceeded,
        format!("files of this tenant take {used} of {most} bytes; delete some"),
    )
    .details(serde_json::json!({"usedBytes": used, "limitBytes": most}))
}

/// Writes pieces and the quota they change in one commit.
async fn with_quota(
    store: &dyn Store,
    tenant: &str,
    writes: Vec<ObjectWrite>,
    next: impl Fn(u64) -> ApiResult<u64>,
) -> ApiResult<()> {
    for _ in 0..TRIES {
        let found = store.object(QUOTAS, tenant, "files").await?;
        let used = match &found {
            Some(found) => read::<Quota>(found)?.bytes,
            None => 0,
        };
        let quota = Quota { bytes: next(used)? };
        let mut all = vec![ObjectWrite {
            space: QUOTAS,
            owner: tenant.to_owned(),
            name: "files".to_owned(),
            expect: found.map_or(Expect::Absent, |found| Expect::Version(found.version)),
            data: Some(to_bytes(&quota)),
        }];
        all.extend(writes.iter().cloned());
        match store.write_objects(all).await? {
            Written::Done => return Ok(()),
            // Another file of the tenant changed the quota.
            Written::Conflict(0) => tokio::task::yield_now().await,
            // Somebody else did the same work on the pieces.
            Written::Conflict(_) => {
                return Err(ApiError::new(
                    ErrorCode::Internal,
                    "the file was changed by someone else meanwhile",
                ));
            }
        }
    }
    Err(ApiError::new(
        ErrorCode::StoreUnavailable,
        "too many files of this tenant change at once; try again",
    )
    .retry_after_ms(100))
}

/// Takes all pieces of a file away and gives their space back, however often and by how many it is begun.
pub(crate) async fn remove_pieces(store: &dyn Store, tenant: &str, file: &str) -> ApiResult<()> {
    loop {
        let found = store
            .objects(ObjectRange {
                space: BLOBS,
                owner: tenant.to_owned(),
                after: format!("{file}/"),
                before: Some(format!("{file}0")),
                descending: false,
                limit: REMOVE,
            })
            .await?;
        if found.is_empty() {
            return Ok(());
        }
        let freed: u64 = found.iter().map(|piece| piece.data.len() as u64).sum();
        let remove = |piece: &Object| ObjectWrite {
            space: BLOBS,
            owner: tenant.to_owned(),
            name: piece.name.clone(),
            // Whoever comes second frees nothing.
            expect: Expect::Version(piece.version),
            data: None,
        };
        let writes = found.iter().map(remove).collect();
        let freeing = with_quota(store, tenant, writes, |used| Ok(used.saturating_sub(freed)));
        match freeing.await {
            Err(error) if error.code() == ErrorCode::Internal => {}
            other => other?,
        }
    }
}

/// One piece of a file.
pub(super) async fn piece(
    store: &dyn Store,
    tenant: &str,
    file: &str,
    piece: u32,
) -> ApiResult<Bytes> {
    let found = store
        .object(BLOBS, tenant, &piece_name(file, piece))
        .await?;
    found.map(|found| found.data).ok_or_else(|| {
        ApiError::new(
            ErrorCode::FileNotFound,
            format!("the content of file {file:?} was deleted"),
        )
    })
}

/// Reads a file line by line, holding one piece and one line.
pub(crate) struct LineReader {
    store: Arc<dyn Store>,
    tenant: String,
    file: FileMeta,
    next: u32,
    piece: Bytes,
    most: usize,
    number: u32,
}

/// A line of a file.
pub(crate) struct Line {
    /// From 1.
    pub(crate) number: u32,
    /// Without its end; none where it is longer than is read.
    pub(crate) text: Option<Bytes>,
}

impl LineReader {
    /// Lines of more than `most` bytes are told from, not read.
    pub(crate) fn new(store: Arc<dyn Store>, tenant: &str, file: FileMeta, most: usize) -> Self {
        Self {
            store,
            tenant: tenant.to_owned(),
            file,
            next: 0,
            piece: Bytes::new(),
            most,
            number: 0,
        }
    }

    /// The next line that is not blank.
    pub(crate) async fn next(&mut self) -> ApiResult<Option<Line>> {
        loop {
            let Some(line) = self.any().await? else {
                return Ok(None);
            };
            let blank = |text: &Bytes| text.iter().all(u8::is_ascii_whitespace);
            if !line.text.as_ref().is_some_and(blank) {
                return Ok(Some(line));
            }
        }
    }

    async fn any(&mut self) -> ApiResult<Option<Line>> {
        let mut text = BytesMut::new();
        let (mut began, mut too_long) = (false, false);
        loop {
            if self.piece.is_empty() {
                if self.next >= self.file.pieces {
                    break;
                }
                self.piece = piece(&*self.store, &self.tenant, &self.file.id, self.next).await?;
                self.next += 1;
                continue;
            }
            began = true;
            let end = self.piece.iter().position(|byte| *byte == b'\n');
            let part = self.piece.split_to(end.unwrap_or(self.piece.len()));
            too_long |= text.len() + part.len() > self.most;
            if too_long {
                text.clear();
            } else {
                text.extend_from_slice(&part);
            }
            if end.is_some() {
                let _newline = self.piece.split_to(1);
                break;
            }
        }
        if !began {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some(Line {
            number: self.number,
            text: (!too_long).then(|| text.freeze()),
        }))
    }
}
