//! HTTP mechanics: connections, bodies, responses. Knows no model and no budget.

pub(crate) mod body;
mod client;
pub(crate) mod connection;
pub(crate) mod cors;
pub(crate) mod io;
pub(crate) mod json;
mod leave;
pub(crate) mod list;
mod paths;
mod rates;
pub(crate) mod receive;
pub(crate) mod reply;
pub(crate) mod route;
pub(crate) mod secured;
pub(crate) mod server;
pub(crate) mod sse;
pub(crate) mod tls;
