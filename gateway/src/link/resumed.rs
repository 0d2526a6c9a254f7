//! A writer that goes on with a run of another process: what its log says of choices that have ended.

use weir_run::{Event, EventKind, FinishReason, RunId, Sequence};
use weir_store::{Store, StoreError};

use super::writer::Writer;

/// Events read at once.
const PAGE: usize = 256;

/// Choices whose end is in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChoiceEnds {
    /// How many.
    ended: u32,
    /// Whether one of them ended at its ceiling.
    any_length: bool,
}

impl ChoiceEnds {
    /// Reads a run's log up to its last durable event.
    pub(crate) async fn read(store: &dyn Store, run: RunId, last: u64) -> Result<Self, StoreError> {
        let (mut ends, mut after) = (Self::default(), 0);
        while after < last {
            let page = store.events(run, Sequence(after), PAGE).await?;
            let Some(end) = page.last() else { break };
            after = end.sequence.0;
            for event in &page {
                let decoded = Event::decode(event.kind, &event.data);
                if let Ok(Event {
                    kind:
                        EventKind::Delta {
                            choice_finish_reason: Some(reason),
                            ..
                        },
                    ..
                }) = decoded
                {
                    ends.ended += 1;
                    ends.any_length |= reason == FinishReason::Length;
                }
            }
        }
        Ok(ends)
    }
}

impl Writer {
    /// Whether choices may have ended in the life of another process.
    pub(crate) fn has_choices(&self) -> bool {
        self.choices > 1
    }

    /// Takes over what is known of choices that ended before. A choice whose end is neither in the log nor still to come failed: only
    /// failures leave no event.
    pub(crate) fn resume_choices(&mut self, ends: ChoiceEnds) {
        self.any_length |= ends.any_length;
        self.open_choices = Some(self.choices.saturating_sub(ends.ended));
    }
}
