//! Places where a test may end the world, and ways to break it. Both are nothing at all unless the feature `faults` is on.
//!
//! A *point* is a named place before or after something that must not be lost: a write, an await, an answer. A *break* is a named
//! violation of an invariant, there to show that the checks turn red. Both belong to a [`World`]: threads that serve one gateway and one
//! store, so that several can live in one process. Not the crate `fail`: its registry is one for the process, is asked by name under a
//! lock at every hit, and a test could not run two worlds at once. Broken processes name their break in `WEIR_BREAK`.

/// Every point, in the order a run meets them. A test of crash points hits each.
pub const POINTS: &[&str] = &[
    "admit.known",
    "admit.planned",
    "admit.placed",
    "admit.durable",
    "admit.published",
    "admit.queued",
    "dispatch.sent",
    "link.appending",
    "link.durable",
    "link.published",
    "link.acknowledged",
    "link.taken_over",
    "link.attached",
    "cancel.asked",
    "cancel.durable",
    "cancel.sent",
    "unsent.appending",
    "unsent.durable",
    "requeue.asked",
    "requeue.taken_over",
    "recover.found",
    "recover.settling",
    "recover.taken_over",
    "store.begun",
    "store.evaluated",
    "store.durable",
    "store.shown",
    "store.answered",
    "log.written",
    "log.synced",
    "log.segment",
    "log.carrying",
    "log.carried",
];

/// Every break and the invariant it violates, by the checker's letter.
pub const BREAKS: &[(&str, char)] = &[
    ("over-limit", 'B'),
    ("key-twice", 'U'),
    ("early-publish", 'D'),
    ("replay-twice", 'S'),
    ("re-encode", 'S'),
    ("regenerate", 'S'),
    ("skip-fence", 'S'),
    ("settle-twice", 'T'),
    ("keep-reservation", 'T'),
    ("wrong-bill", 'L'),
    ("lose-last", 'D'),
    ("cross-tenant", 'I'),
    ("never-end", 'F'),
    ("leak", 'M'),
];

#[cfg(feature = "faults")]
mod on;
#[cfg(feature = "faults")]
mod power;

#[cfg(feature = "faults")]
pub use on::{Inherited, World, broken, inherit, point};
#[cfg(feature = "faults")]
pub use power::Power;

#[cfg(not(feature = "faults"))]
mod off {
    /// Nothing.
    #[inline(always)]
    pub const fn point(_name: &'static str) {}

    /// Never.
    #[inline(always)]
    pub const fn broken(_name: &'static str) -> bool {
        false
    }

    /// Nothing to hand on.
    #[derive(Clone, Copy, Debug)]
    pub struct Inherited;

    /// Nothing.
    #[inline(always)]
    pub const fn inherit() -> Inherited {
        Inherited
    }

    impl Inherited {
        /// Nothing.
        #[inline(always)]
        pub const fn enter(self) {}
    }
}

#[cfg(not(feature = "faults"))]
pub use off::{Inherited, broken, inherit, point};
