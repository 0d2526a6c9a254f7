//! What is known of a file.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weir_protocol::error::ErrorCode;
use weir_store::{Expect, Object, ObjectWrite, Store};

use crate::clock::{new_run_id, now_ms};
use crate::error::{ApiError, ApiResult};

pub(super) const FILES: &str = "file";

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Purpose {
    /// Requests, one a line.
    Batch,
    /// Results or errors of a batch.
    BatchOutput,
}

impl Purpose {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::BatchOutput => "batch_output",
        }
    }
}

/// The document of a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct FileMeta {
    pub(crate) id: String,
    pub(crate) bytes: u64,
    pub(crate) pieces: u32,
    pub(crate) created_at_ms: u64,
    pub(crate) filename: String,
    pub(crate) purpose: Purpose,
    pub(crate) expires_at_ms: u64,
}

impl FileMeta {
    pub(super) fn is_over(&self) -> bool {
        self.expires_at_ms <= now_ms()
    }

    /// As clients read it.
    pub(super) fn view(&self) -> Value {
        json!({
            "id": self.id, "object": "file", "bytes": self.bytes, "created_at": self.created_at_ms / 1000,
            "expires_at": self.expires_at_ms / 1000, "filename": self.filename, "purpose": self.purpose.as_str(),
            "status": "processed", "status_details": null,
        })
    }

    /// Makes the file known.
    pub(crate) fn write(&self, tenant: &str, expect: Expect) -> ObjectWrite {
        ObjectWrite {
            space: FILES,
            owner: tenant.to_owned(),
            name: self.id.clone(),
            expect,
            data: Some(to_bytes(self)),
        }
    }
}

/// A name that sorts by time.
pub(crate) fn new_id(prefix: &str) -> String {
    let id = new_run_id().to_string();
    format!("{prefix}{}", id.strip_prefix("run_").unwrap_or(&id))
}

/// A file of this tenant; one that is over is not there any more.
pub(crate) async fn find(store: &dyn Store, tenant: &str, id: &str) -> ApiResult<FileMeta> {
    let found = store.object(FILES, tenant, id).await?;
    let meta = found.map(|object| read::<FileMeta>(&object)).transpose()?;
    meta.filter(|meta| !meta.is_over()).ok_or_else(|| {
        ApiError::new(
            ErrorCode::FileNotFound,
            format!("no such file {id:?}: it is unknown, was deleted, or has expired"),
        )
        .param("file_id")
    })
}

pub(crate) fn to_bytes<T: Serialize>(value: &T) -> Bytes {
    serde_json::to_vec(value)
        .expect("documents have string keys")
        .into()
}

pub(crate) fn read<T: for<'de> Deserialize<'de>>(object: &Object) -> ApiResult<T> {
    serde_json::from_slice(&object.data).map_err(|error| {
        tracing::error!(name = object.name, %error, "a document cannot be read");
        ApiError::new(ErrorCode::Internal, "a stored document cannot be read")
    })
}
