//! What stands behind a gateway under load.

pub(crate) mod backend;
mod held;
mod pace;
pub(crate) mod snapshot;
pub(crate) mod worker;

/// The text of one token, made when it is sent.
fn text(index: u64) -> String {
    format!(" t{}.{index}", crate::net::now_ns())
}
