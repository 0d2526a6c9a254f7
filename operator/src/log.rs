//! A model's rollout log: one `ControllerRevision` a record, whose data nobody can change. Creating it under a name that must not exist is
//! the compare-and-swap.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::api::{DeleteParams, ObjectMeta, PostParams, Preconditions};
use kube::{Api, ResourceExt as _};
use weir_api::{ANNOTATION_MODEL, LABEL_MODEL};
use weir_rollout::Record;
use weir_rollout::record::{RecordError, decode, encode, name};

use crate::names;

/// Only labels of Weir: a `StatefulSet` adopts revisions that its selector matches.
pub const LABEL_LOG: &str = "weir.dev/log";
/// Value of [`LABEL_LOG`].
pub const ROLLOUT: &str = "rollout";

/// Why a record was not written.
#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    /// Another operator was first: its record is to be read.
    #[error("another operator wrote a record in its place")]
    Taken,
    /// The record cannot be.
    #[error("cannot encode a record; this is a fault in Weir")]
    Encode(#[source] RecordError),
    /// The API server refuses or is away.
    #[error("cannot create the ControllerRevision of a record")]
    Create(#[source] kube::Error),
}

/// The model and the record that a revision holds, or what is wrong with it.
///
/// # Errors
/// It is no record.
pub fn read(revision: &ControllerRevision) -> Result<(String, Record), RecordError> {
    let model = revision.annotations().get(ANNOTATION_MODEL);
    let data = revision.data.as_ref().map(|data| data.0.to_string());
    let record = decode(data.unwrap_or_default().as_bytes())?;
    Ok((model.cloned().unwrap_or_default(), record))
}

/// Creates a record.
///
/// # Errors
/// See [`AppendError`].
pub async fn append(
    api: &Api<ControllerRevision>,
    model: &str,
    record: &Record,
) -> Result<ControllerRevision, AppendError> {
    let bytes = encode(record).map_err(AppendError::Encode)?;
    let data = serde_json::from_slice(&bytes)
        .map_err(|error| AppendError::Encode(RecordError::Decode(error)))?;
    let revision = ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name(model, record.stamp)),
            labels: Some(BTreeMap::from([
                (LABEL_LOG.to_owned(), ROLLOUT.to_owned()),
                (LABEL_MODEL.to_owned(), names::model_label(model)),
            ])),
            annotations: Some(BTreeMap::from([(
                ANNOTATION_MODEL.to_owned(),
                model.to_owned(),
            )])),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(data)),
        revision: i64::try_from(record.stamp.revision).unwrap_or(i64::MAX),
    };
    match api.create(&PostParams::default(), &revision).await {
        Ok(created) => Ok(created),
        Err(kube::Error::Api(status)) if status.code == 409 => Err(AppendError::Taken),
        Err(error) => Err(AppendError::Create(error)),
    }
}

/// Records that are no longer needed, the oldest first: beyond the bound, and not the one in which stable became stable.
pub fn surplus(records: &[Record]) -> Vec<&Record> {
    let stable = records.last().and_then(|head| head.stable.clone());
    let promotion = records.iter().find(|record| record.stable == stable);
    let promotion = promotion.map(|record| record.stamp);
    let beyond = records.len().saturating_sub(Record::KEPT_IN_LOG);
    records[..beyond]
        .iter()
        .filter(|record| Some(record.stamp) != promotion)
        .collect()
}

/// Deletes a record that is not needed.
///
/// # Errors
/// The API server refuses or is away.
pub async fn delete(
    api: &Api<ControllerRevision>,
    revision: &ControllerRevision,
) -> kube::Result<()> {
    let fenced = DeleteParams {
        preconditions: Some(Preconditions {
            uid: revision.uid(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match api.delete(&revision.name_any(), &fenced).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use weir_rollout::{Stamp, VersionId};

    use super::*;

    fn record(revision: u64, stable: u32) -> Record {
        Record {
            stamp: Stamp { epoch: 1, revision },
            stable: Some(VersionId::new(stable, format!("sha256:{stable}"))),
            ..Record::empty()
        }
    }

    #[test]
    fn a_log_stays_short_and_keeps_the_last_promotion_and_its_head() {
        let short: Vec<Record> = (1..=16).map(|revision| record(revision, 1)).collect();
        assert!(surplus(&short).is_empty());
        let long: Vec<Record> = (1..=20)
            .map(|r| record(r, if r < 3 { 1 } else { 2 }))
            .collect();
        let gone: Vec<u64> = surplus(&long)
            .iter()
            .map(|record| record.stamp.revision)
            .collect();
        assert_eq!(gone, [1, 2, 4], "the third made the present version stable");
    }
}
