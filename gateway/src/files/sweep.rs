//! Takes away what is over: files that were never finished, were deleted, or have expired.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_store::{Expect, ObjectRange, ObjectWrite, Store};

use super::meta::{FILES, FileMeta, read, to_bytes};
use super::pieces::remove_pieces;
use crate::clock::now_ms;
use crate::core::Core;
use crate::error::ApiResult;

const SWEEP: &str = "sweep";
/// How often it is looked for.
const EVERY: Duration = Duration::from_secs(30);
/// Markers looked at in one go.
const AT_ONCE: usize = 64;

/// When to look at something again. It is removed unless it is known and lives longer by then.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Marker {
    tenant: String,
    /// A file, by its id, or else
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    /// a document that is removed as it is, by space and name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    document: Option<String>,
}

/// The space of requests' keys, where they do not name runs.
pub(crate) const KEYS: &str = "key";

impl Marker {
    pub(crate) fn file(tenant: &str, file: &str) -> Self {
        Self {
            tenant: tenant.to_owned(),
            file: Some(file.to_owned()),
            document: None,
        }
    }

    pub(crate) fn key(tenant: &str, name: &str) -> Self {
        Self {
            tenant: tenant.to_owned(),
            file: None,
            document: Some(name.to_owned()),
        }
    }

    pub(crate) fn write(&self, due_ms: u64) -> ObjectWrite {
        let what = self.file.as_ref().or(self.document.as_ref());
        // Names are bounded; what tells two apart is kept.
        let what = blake3::hash(format!("{}/{}", self.tenant, what.map_or("", |w| w)).as_bytes());
        ObjectWrite {
            space: SWEEP,
            owner: String::new(),
            name: format!("{due_ms:016}-{}", what.to_hex()),
            expect: Expect::Any,
            data: Some(to_bytes(self)),
        }
    }
}

/// Sweeps for ever.
pub(crate) async fn keep_swept(core: Arc<Core>) {
    loop {
        match sweep(&*core.store).await {
            Ok(AT_ONCE) => {}
            Ok(_) => tokio::time::sleep(EVERY).await,
            Err(error) => {
                tracing::warn!(error = ?error.body(), "cannot take away what is over");
                tokio::time::sleep(EVERY).await;
            }
        }
    }
}

/// Carries out what is due; how many markers there were.
pub(super) async fn sweep(store: &dyn Store) -> ApiResult<usize> {
    let due = store
        .objects(ObjectRange {
            space: SWEEP,
            owner: String::new(),
            after: String::new(),
            before: Some(format!("{:016}", now_ms() + 1)),
            descending: false,
            limit: AT_ONCE,
        })
        .await?;
    let count = due.len();
    for found in due {
        let marker: Marker = read(&found)?;
        if let Some(file) = &marker.file {
            take_away(store, &marker.tenant, file).await?;
        }
        let mut writes = vec![ObjectWrite {
            space: SWEEP,
            owner: String::new(),
            name: found.name,
            expect: Expect::Any,
            data: None,
        }];
        if let Some(name) = &marker.document {
            writes.push(ObjectWrite {
                space: KEYS,
                owner: marker.tenant.clone(),
                name: name.clone(),
                expect: Expect::Any,
                data: None,
            });
        }
        store.write_objects(writes).await?;
    }
    Ok(count)
}

/// Removes a file unless it is known and lives on.
pub(super) async fn take_away(store: &dyn Store, tenant: &str, file: &str) -> ApiResult<()> {
    if let Some(found) = store.object(FILES, tenant, file).await? {
        if !read::<FileMeta>(&found)?.is_over() {
            return Ok(());
        }
        let document = ObjectWrite {
            space: FILES,
            owner: tenant.to_owned(),
            name: file.to_owned(),
            expect: Expect::Version(found.version),
            data: None,
        };
        store.write_objects(vec![document]).await?;
    }
    remove_pieces(store, tenant, file).await
}
