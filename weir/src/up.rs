//! Everything on one machine: the same manifests, no cluster.

pub mod catalog;
pub mod files;
pub mod placement;
pub mod problem;
pub mod process;
pub mod supervisor;
