//! Everything on one machine: the same manifests, no cluster.

pub mod files;
pub mod problem;
pub mod process;
pub mod supervisor;
