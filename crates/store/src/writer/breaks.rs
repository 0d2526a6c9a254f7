//! The deliberate breaks of writes: what each is given, and what it makes of it. Without the feature `faults` all return what they are given.

use std::borrow::Cow;

use weir_budget::Limits;
use weir_run::{Epoch, Usage};

use crate::fault::broken;

/// The limits that a reservation is held against.
pub(super) fn limits(limits: &Limits) -> Cow<'_, Limits> {
    let mut limits = Cow::Borrowed(limits);
    if broken("over-limit") {
        for window in &mut limits.to_mut().windows {
            window.tokens = None;
        }
    }
    limits
}

/// The epoch that a writer is taken to have.
pub(super) fn epoch(of_writer: Epoch, of_run: Epoch) -> Epoch {
    if broken("skip-fence") {
        of_run
    } else {
        of_writer
    }
}

/// What is billed.
pub(super) fn usage(mut usage: Usage) -> Usage {
    if broken("wrong-bill") {
        usage.output_tokens = usage.output_tokens.saturating_sub(1);
    }
    usage
}
