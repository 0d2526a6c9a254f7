//! Who a process of an install is, and how it finds out who the other end is: mutual TLS between operator, gateways and workers.
//!
//! This crate must not know Kubernetes, clients' HTTPS, models or runs; who issues certificates is not its business either. Every install has
//! an authority of its own, and a certificate says one [`Role`], by a name that only this authority gives. Read [`Credentials`] first, then
//! [`Identity`], which keeps them as new as their files.

mod accept;
mod credentials;
mod error;
mod follow;
mod role;
mod verify;

pub use accept::accept;
pub use credentials::{Credentials, Spoken};
pub use error::IdentityError;
pub use follow::{Identity, Reload};
pub use role::Role;
