//! The document of a batch.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use weir_protocol::error::ErrorCode;
use weir_run::Usage;
use weir_store::{Expect, Object, ObjectRange, ObjectWrite, Store};

use crate::error::{ApiError, ApiResult};
use crate::files::{read, to_bytes};

pub(super) const BATCHES: &str = "batch";
/// Names of batches that are not done, each with its tenant; of no owner, so that a gateway finds them all.
pub(super) const OPEN: &str = "open-batch";
/// Open batches looked at in one read.
pub(super) const PAGE: usize = 256;

/// Where a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    Validating,
    Failed,
    InProgress,
    Finalizing,
    Completed,
    Expired,
    Cancelling,
    Cancelled,
}

impl Status {
    pub(super) fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Failed | Self::Completed | Self::Expired | Self::Cancelled
        )
    }
}

/// What a batch's lines ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Endpoint {
    #[serde(rename = "/v1/chat/completions")]
    Chat,
    #[serde(rename = "/v1/completions")]
    Completions,
    #[serde(rename = "/v1/responses")]
    Responses,
}

impl Endpoint {
    pub(super) const ALL: [Self; 3] = [Self::Chat, Self::Completions, Self::Responses];

    pub(super) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Responses => "/v1/responses",
        }
    }
}

/// What makes a batch as a whole impossible.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Fault {
    pub(super) code: String,
    pub(super) message: String,
    pub(super) line: Option<u32>,
    pub(super) param: Option<String>,
}

/// Lines by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Counts {
    pub(super) total: u32,
    pub(super) completed: u32,
    pub(super) failed: u32,
}

/// Lines that have their result: all below one, and some beyond.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Progress {
    /// Every line with a lower number is done.
    pub(super) below: u32,
    /// Lines above it that are done, in order; at most as many as are in work at once, and a window.
    pub(super) beyond: Vec<u32>,
}

/// How far beyond the first unfinished line others may be.
pub(super) const WINDOW: u32 = 512;

impl Progress {
    pub(super) fn is_done(&self, line: u32) -> bool {
        line < self.below || self.beyond.binary_search(&line).is_ok()
    }

    /// Notes a line, by its place among the lines (from 0).
    pub(super) fn done(&mut self, line: u32) {
        if let Err(place) = self.beyond.binary_search(&line)
            && line >= self.below
        {
            self.beyond.insert(place, line);
        }
        let whole = self
            .beyond
            .iter()
            .zip(self.below..)
            .take_while(|(done, next)| *done == next)
            .count();
        self.beyond.drain(..whole);
        self.below += u32::try_from(whole).unwrap_or(u32::MAX);
    }
}

/// Who works on it, until when. The times are of the holder's clock: a skewed one costs work twice, never a result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Lease {
    pub(super) holder: String,
    pub(super) epoch: u64,
    pub(super) until_ms: u64,
}

/// When what happened, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Times {
    pub(super) in_progress: Option<u64>,
    pub(super) finalizing: Option<u64>,
    pub(super) completed: Option<u64>,
    pub(super) failed: Option<u64>,
    pub(super) expired: Option<u64>,
    pub(super) cancelling: Option<u64>,
    pub(super) cancelled: Option<u64>,
}

/// A batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Batch {
    pub(super) id: String,
    pub(super) tenant: String,
    pub(super) endpoint: Endpoint,
    pub(super) input_file_id: String,
    pub(super) completion_window: String,
    pub(super) output_life_s: u64,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) created_at_ms: u64,
    pub(super) expires_at_ms: u64,
    pub(super) status: Status,
    pub(super) times: Times,
    pub(super) counts: Counts,
    pub(super) usage: Usage,
    pub(super) faults: Vec<Fault>,
    pub(super) output_file_id: Option<String>,
    pub(super) error_file_id: Option<String>,
    pub(super) progress: Progress,
    pub(super) lease: Lease,
}

impl Batch {
    /// As clients read it.
    pub(super) fn view(&self) -> Value {
        let seconds = |ms: Option<u64>| ms.map(|ms| ms / 1000);
        let errors =
            (!self.faults.is_empty()).then(|| json!({"object": "list", "data": self.faults}));
        // The files' names are known before the files are.
        let done = self.status.is_terminal();
        let shown = |file: &Option<String>| file.clone().filter(|_| done);
        json!({
            "id": self.id, "object": "batch", "endpoint": self.endpoint, "input_file_id": self.input_file_id,
            "completion_window": self.completion_window, "status": self.status, "errors": errors,
            "output_file_id": shown(&self.output_file_id), "error_file_id": shown(&self.error_file_id),
            "created_at": self.created_at_ms / 1000, "expires_at": self.expires_at_ms / 1000,
            "in_progress_at": seconds(self.times.in_progress), "finalizing_at": seconds(self.times.finalizing),
            "completed_at": seconds(self.times.completed), "failed_at": seconds(self.times.failed),
            "expired_at": seconds(self.times.expired), "cancelling_at": seconds(self.times.cancelling),
            "cancelled_at": seconds(self.times.cancelled), "request_counts": self.counts, "metadata": self.metadata,
            "usage": {
                "input_tokens": self.usage.prompt_tokens, "input_tokens_details": {"cached_tokens": self.usage.cached_tokens},
                "output_tokens": self.usage.output_tokens, "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self.usage.prompt_tokens + self.usage.output_tokens,
            },
        })
    }

    pub(super) fn write(&self, expect: Expect) -> ObjectWrite {
        ObjectWrite {
            space: BATCHES,
            owner: self.tenant.clone(),
            name: self.id.clone(),
            expect,
            data: Some(to_bytes(self)),
        }
    }

    /// Lists it among those that are not done, or takes it from there.
    pub(super) fn list(&self, open: bool) -> ObjectWrite {
        ObjectWrite {
            space: OPEN,
            owner: String::new(),
            name: self.id.clone(),
            expect: Expect::Any,
            data: open.then(|| self.tenant.clone().into()),
        }
    }
}

/// A batch of this tenant, with the version of its document.
pub(super) async fn load(store: &dyn Store, tenant: &str, id: &str) -> ApiResult<(Batch, u64)> {
    let found = store.object(BATCHES, tenant, id).await?;
    let found = found.ok_or_else(|| {
        ApiError::new(ErrorCode::BatchNotFound, format!("no such batch {id:?}")).param("batch_id")
    })?;
    Ok((read(&found)?, found.version))
}

/// Batches that are not done: their ids and tenants, oldest first.
pub(super) async fn open(store: &dyn Store) -> ApiResult<Vec<(String, String)>> {
    let mut all: Vec<(String, String)> = Vec::new();
    loop {
        let found = store
            .objects(ObjectRange {
                space: OPEN,
                owner: String::new(),
                after: all.last().map_or(String::new(), |(id, _)| id.clone()),
                before: None,
                descending: false,
                limit: PAGE,
            })
            .await?;
        let whole = found.len() == PAGE;
        all.extend(
            found.into_iter().map(|Object { name, data, .. }| {
                (name, String::from_utf8_lossy(&data).into_owned())
            }),
        );
        if !whole {
            return Ok(all);
        }
    }
}

/// The batch of this tenant that still reads a file.
pub(crate) async fn reading(
    store: &dyn Store,
    tenant: &str,
    file: &str,
) -> ApiResult<Option<String>> {
    for (id, owner) in open(store).await? {
        if owner == tenant
            && let Ok((batch, _)) = load(store, tenant, &id).await
            && !batch.status.is_terminal()
            && batch.input_file_id == file
        {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn progress_knows_exactly_the_lines_that_are_done(lines in proptest::collection::vec(0_u32..40, 0..80)) {
            let mut progress = Progress::default();
            let mut known = std::collections::BTreeSet::new();
            for line in lines {
                progress.done(line);
                known.insert(line);
                for line in 0..41 {
                    prop_assert_eq!(progress.is_done(line), known.contains(&line), "{} in {:?}", line, progress);
                }
                prop_assert!(!progress.beyond.contains(&progress.below));
            }
        }
    }
}
