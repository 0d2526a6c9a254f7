//! The pure core of admission: who waits, who goes next, who is refused, and which worker takes it.
//!
//! It must not see a clock, a thread, a socket, a worker or the budget: time is an argument in milliseconds, rates are fed in by
//! the caller, and every decision is a returned value. Read [`Admission`], [`Waiting`] and [`route`] first.

mod estimate;
mod fair;
mod pace;
mod prefix;
mod queue;
mod route;
mod types;

pub use pace::Pace;
pub use prefix::{Prefix, Prefixes};
pub use queue::Admission;
pub use route::{Ask, RoutePolicy, Routed, WorkerId, WorkerView, route};
pub use types::{
    CLASSES, Capacity, Config, Decision, Depths, Expired, ExpiredWhy, Finished, Offered, Priority,
    Refused, Started, Ticket, Waiting,
};
