//! What happened, told to people as events on the objects it happened to. Repeats are folded into series.

use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource, ResourceExt as _};
use weir_api::{MANAGER, ModelVersion};
use weir_rollout::decide::Note;

/// Longest note that an API server takes.
const MAX_NOTE: usize = 1024;

/// Writes events. What cannot be written is logged: an event is news, not a record.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
}

impl Events {
    /// In the name of this process.
    pub fn new(client: Client, instance: &str) -> Self {
        let reporter = Reporter {
            controller: MANAGER.to_owned(),
            instance: Some(instance.to_owned()),
        };
        Self {
            recorder: Recorder::new(client, reporter),
        }
    }

    /// An event on one object.
    pub async fn tell<K>(&self, object: &K, reason: &str, message: &str, is_fault: bool)
    where
        K: Resource<DynamicType = ()>,
    {
        let event = Event {
            type_: if is_fault {
                EventType::Warning
            } else {
                EventType::Normal
            },
            reason: reason.to_owned(),
            note: Some(message.chars().take(MAX_NOTE).collect()),
            action: reason.to_owned(),
            secondary: None,
        };
        if let Err(error) = self.recorder.publish(&event, &object.object_ref(&())).await {
            tracing::warn!(
                reason,
                message,
                error = &error as &dyn std::error::Error,
                "an event was not written"
            );
        }
    }

    /// What a rollout decided, on the object of the version it is about.
    pub(crate) async fn on_note(&self, versions: &[crate::model::VersionSeen], note: &Note) {
        let number = i32::try_from(note.version).unwrap_or(0);
        let found = versions
            .iter()
            .find(|seen| seen.object.spec.version == number);
        if let Some(seen) = found.or(versions.first()) {
            self.tell::<ModelVersion>(
                &seen.object,
                &note.reason,
                &note.message,
                is_fault(&note.reason),
            )
            .await;
        }
    }

    /// The same on the newest version's object.
    pub(crate) async fn on_versions(
        &self,
        versions: &[crate::model::VersionSeen],
        reason: &str,
        message: &str,
        is_fault: bool,
    ) {
        if let Some(seen) = versions.first() {
            tracing::info!(object = seen.object.name_any(), reason, message, "told");
            self.tell::<ModelVersion>(&seen.object, reason, message, is_fault)
                .await;
        }
    }
}

/// Whether a person should look.
fn is_fault(reason: &str) -> bool {
    const CALM: &[&str] = &[
        "Preparing",
        "Stepped",
        "Published",
        "Promoted",
        "Promoting",
        "Serving",
        "Paused",
        "Resumed",
        "Superseded",
        "Started",
        "Scaling",
        "Shadow",
        "Removed",
        "Withdrawn",
    ];
    !CALM.contains(&reason)
        && [
            "Breached", "Fail", "Refused", "Loop", "Held", "Aborted", "Rejected", "Lost",
        ]
        .iter()
        .any(|word| reason.contains(word))
}
