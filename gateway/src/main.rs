//! The gateway's own process, for clusters.
fn main() {}
