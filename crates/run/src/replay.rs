//! What a run's events alone say about it.

use crate::life::{Illegal, Step, next};
use crate::{Event, EventKind, FinishReason, RunStatus, Sequence, Usage};

/// A run as its log tells it: what a client knows that has read the events up to `last_sequence`.
///
/// A cancellation that is only intended is not in the log, so `status` is never `Cancelling` here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// `None` before event 1.
    pub status: Option<RunStatus>,
    /// The last event read.
    pub last_sequence: Sequence,
    /// Billed tokens in the deltas read.
    pub output_tokens: u64,
    /// From the terminal event.
    pub usage: Option<Usage>,
    /// From a `completed` event.
    pub finish_reason: Option<FinishReason>,
}

impl Replay {
    /// Reads one more event.
    ///
    /// # Errors
    /// When the event does not continue the log.
    pub fn apply(&mut self, event: &Event) -> Result<(), Illegal> {
        let expected = self.last_sequence.0.saturating_add(1);
        if event.sequence.0 != expected {
            return Err(Illegal::Sequence {
                expected,
                found: event.sequence.0,
            });
        }
        let started = self.status == Some(RunStatus::Running);
        let step = match &event.kind {
            EventKind::Accepted { .. } => None,
            EventKind::Started { .. } => Some(Step::Start),
            EventKind::Delta { .. } => Some(Step::Output),
            EventKind::Completed { status, .. } | EventKind::Ended { status, .. } => {
                Some(Step::End(*status))
            }
        };
        let status = match (self.status, step) {
            (None, None) => RunStatus::Accepted,
            (Some(from), Some(step)) => next(from, started, step)?,
            _ => {
                return Err(Illegal::Order {
                    kind: event.kind.name(),
                    sequence: event.sequence.0,
                });
            }
        };
        match &event.kind {
            EventKind::Delta { tokens, .. } => {
                self.output_tokens = self.output_tokens.saturating_add(u64::from(*tokens));
            }
            EventKind::Completed {
                finish_reason,
                usage,
                ..
            } => {
                self.finish_reason = Some(*finish_reason);
                self.usage = Some(*usage);
            }
            EventKind::Ended { usage, .. } => self.usage = Some(*usage),
            EventKind::Accepted { .. } | EventKind::Started { .. } => {}
        }
        self.status = Some(status);
        self.last_sequence = event.sequence;
        Ok(())
    }
}
