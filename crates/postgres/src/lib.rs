//! The contract of [`weir_store::Store`] kept by PostgreSQL, for any number of gateways at once.
//!
//! It must not know HTTP, models, or what an event's bytes mean. What a write means is said once, in `weir_store`: a gateway reads what
//! a group of writes rests on, evaluates the group in memory, and commits it in one statement that changes nothing unless everything it
//! rests on is still as it was read. Nothing relies on an isolation level above `READ COMMITTED`, and no transaction spans two
//! statements, so none can be left open. Read [`open`] first, then `writer.rs`, then `migrations/1.sql`.

mod commit;
mod dump;
mod error;
mod fetch;
mod listen;
mod memory;
mod migrate;
mod open;
mod replicas;
mod store;
mod upkeep;
mod writer;

pub use dump::dump;
pub use open::{Options, open};
pub use store::Postgres;
