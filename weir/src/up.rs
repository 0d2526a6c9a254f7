//! Everything on one machine: the same manifests, no cluster.
//!
//! `serve` is the loop; what it does in order: `files` → `catalog` → `verify` → `rollouts` → `workers` → `snapshot` → `objects`,
//! `report`.

pub mod catalog;
pub mod course;
pub mod fetches;
pub mod files;
pub mod lines;
pub mod objects;
pub mod problem;
pub mod process;
pub mod report;
pub mod rollouts;
pub mod said;
pub mod self_signed;
pub mod serve;
pub mod snapshot;
pub mod status;
pub mod supervisor;
pub mod verify;
pub mod workers;
