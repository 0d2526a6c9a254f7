//! Two ends on a loopback address, with certificates of authorities made for each test.

#![allow(clippy::unwrap_used, reason = "tests fail by panics")]

mod authority;
mod handshakes;
mod rotation;
