//! The pure life cycle of a run: identity, epochs, events.
//!
//! It must not see a clock, a socket, a file, a thread or randomness: ids and times come from the caller. Read [`Run`] first, then
//! [`Event`].

mod event;
mod id;
mod run;

pub use event::{Event, EventKind, FinishReason, TokenLogprob, Usage};
pub use id::{Epoch, ParseRunIdError, RunId, Sequence};
pub use run::{Decision, DecisionReason, Price, Run, RunStatus, WorkOrder};
