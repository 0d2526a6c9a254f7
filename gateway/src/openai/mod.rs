//! OpenAI's calls over the same runs: other words for the same things.

mod answer;
mod call;
pub(crate) mod called;
mod chunk;
pub(crate) mod format;
mod models;
mod outcome;
mod read;
pub(crate) mod turns;
mod wire;

pub(crate) use call::{chat, completions};
pub(crate) use models::{embeddings, model, models};

/// Which of the two ways to ask for text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    Completion,
}

/// What the client wants to see, apart from the run itself.
#[derive(Clone, Debug)]
pub(crate) struct Presentation {
    pub(crate) kind: Kind,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// How many alternatives to show; none: no log-probabilities at all.
    pub(crate) logprobs: Option<u32>,
}
