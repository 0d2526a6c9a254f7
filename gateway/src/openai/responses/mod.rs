//! The Responses API: the same runs, with what the client sent kept beside them.

mod create;
mod events;
mod follow;
mod input;
mod read;
mod record;
mod story;
mod wire;

pub(crate) use create::{create, create_from};
pub(crate) use follow::{cancel, delete, input_items, retrieve};
