//! The pure core of rollouts: what is remembered, what is measured, how it is judged, what happens next.
//!
//! It must not know Kubernetes, HTTP, tokens' text, clocks or threads: it is given the log, an observation and the time, and
//! answers with the next record, effects and a status. The operator and `weir up` drive the same code.
//!
//! Read first: [`Record`] (all that a rollout remembers), [`routing::Table`] (what gateways do) and [`decide()`] (one decision).

pub mod decide;
pub mod evidence;
mod plan;
pub mod record;
pub mod report;
pub mod routing;
mod spec;
pub mod statistics;
mod version;

pub use decide::{Decision, Input, decide};
pub use plan::{
    Limits, OnBreach, Plan, Policy, Promote, Reserve, ShadowMode, ShadowPlan, StepPlan,
};
pub use record::{Attempt, Phase, Record};
pub use spec::version_spec;
pub use version::{Stamp, VersionId};
