//! The contract of [`weir_store::Store`] kept by PostgreSQL, for any number of gateways at once.
//!
//! It must not know HTTP, models, or what an event's bytes mean.
