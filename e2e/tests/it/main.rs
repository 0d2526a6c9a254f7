//! The worked examples of the contract, on real processes.

mod admit;
mod bad_input;
mod gateway_death;
mod openai;
mod race;
mod replay;
mod tenants;
mod worker_death;
