//! The pure life cycle of a run: identity, epochs, events.
//!
//! It must not see a clock, a socket, a file, a thread or randomness: ids and times come from the caller. Read [`Run`] first, then
//! [`Event`], then [`next`]: the table of what may follow what.

mod event;
mod id;
mod life;
mod payload;
mod replay;
mod run;
#[doc(hidden)]
pub mod testing;
mod verdict;

pub use event::{
    DecodeEventError, Event, EventKind, FinishReason, Guesses, PromptLogprob, TokenLogprob,
    ToolCallDelta, Usage, event_name,
};
pub use id::{Epoch, ParseRunIdError, RunId, Sequence};
pub use life::{Extension, Illegal, NotExtended, Progress, Step, Terminal, next};
pub use payload::payload_hash;
pub use replay::Replay;
pub use run::{Decision, DecisionReason, Expected, Price, Run, RunStatus, Start, WorkOrder};
pub use verdict::{Phase, PolicyAction, Verdict};
