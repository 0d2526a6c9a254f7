//! Brings the files of a model version from where they are into a cache on this machine.
//!
//! It must not know who may sign, what a model is, or who serves it: it is told the digest and the size of every file, and keeps nothing
//! else. What it has fetched is verified again by whoever maps it.
//!
//! Read [`Fetcher`] first, then [`Cache`], which says what lies where on the disk. Pure are [`uri`] (where a file lies), [`retry`] (when to
//! try again), [`rate`] (how fast), [`space`] (what goes when there is no room), and the reading of archives and of registries' manifests.

mod archive;
mod blob;
mod cache;
mod client;
mod damage;
mod docker;
mod error;
mod fetcher;
mod meter;
mod partial;
pub mod rate;
pub mod retry;
mod source;
pub mod space;
mod tape;
pub mod uri;

pub use archive::{export, import};
pub use cache::{Cache, Lease, Record};
pub use error::FetchError;
pub use fetcher::{Fetched, Fetcher, Request, Settings, Signature};
pub use meter::{Meter, Reading};
pub use uri::{Location, is_remote};
