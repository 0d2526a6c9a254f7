//! OpenAI's calls over the same runs: other words for the same things.

mod answer;
mod around;
mod call;
pub(crate) mod called;
mod chunk;
mod content;
pub(crate) mod format;
mod headers;
mod models;
mod outcome;
mod read;
pub(crate) mod responses;
mod start;
pub(crate) mod turns;
mod wire;

use weir_run::PromptLogprob;

pub(crate) use call::{chat, completions, serve_from};
pub(crate) use headers::idempotency_key;
pub(crate) use models::{model, models, unsupported};

/// Which of the two ways to ask for text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    Completion,
}

impl Kind {
    /// What it is called where requests are compared.
    fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completion => "completion",
        }
    }
}

/// What the client wants to see, apart from the run itself.
#[derive(Clone, Debug)]
pub(crate) struct Presentation {
    pub(crate) kind: Kind,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    /// How many alternatives to show; none: no log-probabilities at all.
    pub(crate) logprobs: Option<u32>,
    /// Whether the prompt comes before the output, in completions.
    pub(crate) echo: Option<Echo>,
}

/// Where the text of a prompt that is echoed comes from.
#[derive(Clone, Debug)]
pub(crate) enum Echo {
    /// The client wrote it.
    Text(String),
    /// What the worker says of each token.
    Tokens,
}

impl Echo {
    fn text(&self, prompt: &[PromptLogprob]) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Tokens => {
                let bytes: Vec<u8> = prompt
                    .iter()
                    .flat_map(|token| &token.bytes)
                    .copied()
                    .collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
        }
    }
}
