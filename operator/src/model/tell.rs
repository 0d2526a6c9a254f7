//! What is told of each version, and when.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt as _;
use weir_rollout::decide::VersionStatus;

use super::memory::Memory;
use super::see::{is_of, refusal};
use super::{Look, Models, status};
use crate::apply::ApplyError;

impl Models {
    /// Requests and records that cannot be read, told once each.
    pub(super) async fn complain(&self, look: &Look<'_>, memory: &mut Memory) {
        let (_, wrong) = look.view.requests();
        for (object, message) in wrong {
            let message = format!("annotation {:?} {message}", weir_api::ANNOTATION_REQUEST);
            if memory.told.insert(message.clone()) {
                self.events
                    .tell(&*object, "RequestRefused", &message, true)
                    .await;
            }
        }
        for damaged in &look.view.damaged {
            if memory.told.insert(damaged.clone()) {
                let message = format!("a rollout record cannot be read and is left out: {damaged}");
                self.events
                    .on_versions(&look.view.versions, "RecordDamaged", &message, true)
                    .await;
            }
        }
    }

    /// Writes what is to be told of each version; after how long there is more to tell.
    pub(super) async fn tell(
        &self,
        look: &Look<'_>,
        rollout: &[VersionStatus],
        contested: &BTreeMap<String, Vec<String>>,
    ) -> Result<Option<Duration>, ApplyError> {
        let mut due: Option<Duration> = None;
        for seen in &look.view.versions {
            let object = &*seen.object;
            let name = object.name_any();
            let version = rollout.iter().find(|status| is_of(seen, &status.id));
            let progress = version.and_then(|version| self.fetches.of(look.model, &version.id));
            let facts = status::Facts {
                object,
                valid: seen.valid.as_ref().map_err(Vec::as_slice),
                verdict: look.verdicts.get(&name),
                refusal: refusal(&look.view, seen),
                rollout: version.and_then(|version| Some((version, look.view.log.last()?))),
                fetch: progress.as_ref(),
                contested: contested.get(&name).map_or(&[], Vec::as_slice),
            };
            let new = status::status(&facts, Timestamp::now());
            let later = self
                .statuses
                .tell(&self.applier, object, &object.status, &new)
                .await?;
            due = due.into_iter().chain(later).min();
        }
        Ok(due)
    }
}
