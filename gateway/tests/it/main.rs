//! The gateway in process, on a real store, with workers that speak the real protocol and decide nothing by themselves.

mod bench;
mod cancel;
mod client;
mod native;
mod openai;
mod refuse;
mod restart;
mod site;
mod slow;
mod tenants;
mod worker;
mod worker_loss;
