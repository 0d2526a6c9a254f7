//! Live tails of runs: events that are durable, kept for a moment in memory and shared by all subscribers.

mod frame;
mod kept;
mod live;
mod source;

pub(crate) use frame::{Frame, encode};
pub(crate) use kept::check_kept;
pub(crate) use live::{Hub, Intent, LiveRun, Phase};
pub(crate) use source::EventSource;
