//! The one command for people.
fn main() {}
