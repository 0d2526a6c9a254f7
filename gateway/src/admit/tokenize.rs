//! Tokenization on a bounded number of threads, so that no prompt delays the event loop or takes all cores.

use std::sync::Arc;

use weir_protocol::error::ErrorCode;

use super::early::certainly_too_long;
use super::judge::{Judge, schema_error};
use super::request::{Input, Params, Shape};
use super::turns::Turns;
use crate::error::{ApiError, ApiResult};
use crate::snapshot::ServedVersion;
use crate::text::TextError;

/// Tenants take turns: a thousand long prompts of one delay a short one of another by those that are on the threads.
pub(crate) struct TokenizerPool {
    threads: Arc<Turns>,
    judge: Arc<Judge>,
}

impl TokenizerPool {
    pub(crate) fn new(threads: usize, most_waiting: usize) -> Self {
        Self {
            threads: Turns::new(threads, most_waiting),
            judge: Arc::default(),
        }
    }

    /// Refuses a shape that no worker could enforce.
    pub(crate) async fn judge(&self, tenant: &str, shape: &Shape) -> ApiResult<()> {
        let (Shape::Grammar(_, param) | Shape::Tools(_, param)) = shape else {
            return Ok(());
        };
        if self.judge.knows(shape) {
            return Ok(());
        }
        let thread = self.threads.take(tenant).await.map_err(|_| busy())?;
        let (judge, shape) = (Arc::clone(&self.judge), shape.clone());
        let judged = tokio::task::spawn_blocking(move || {
            let _thread = thread;
            judge.judge(&shape)
        });
        match judged.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(schema_error(&error, param)),
            // The process ends: whoever asked is answered by nobody, rather than told that the prompt is at fault.
            Err(error) if error.is_cancelled() => std::future::pending().await,
            Err(_panicked) => Err(ApiError::new(
                ErrorCode::Internal,
                "the compiler of grammars failed on this one",
            )),
        }
    }

    /// The prompt's tokens.
    pub(crate) async fn tokens(
        &self,
        tenant: &str,
        version: &Arc<ServedVersion>,
        input: &Input,
        params: Params,
        largest: u64,
    ) -> ApiResult<Vec<u32>> {
        if let Input::Tokens(tokens) = input {
            return check_tokens(tokens, version.text.vocab(), params);
        }
        let largest_count = usize::try_from(largest).unwrap_or(usize::MAX);
        if input.bytes() <= SHORT_BYTES {
            return make(version, input, largest_count)
                .map_err(|why| why.into_error(largest, params));
        }
        let thread = self.threads.take(tenant).await.map_err(|_| busy())?;
        let (version, input) = (Arc::clone(version), input.clone());
        let made = tokio::task::spawn_blocking(move || {
            // A client that leaves meanwhile does not free the thread.
            let _thread = thread;
            make(&version, &input, largest_count)
        });
        match made.await {
            Ok(made) => made.map_err(|why| why.into_error(largest, params)),
            // The process ends: whoever asked is answered by nobody, rather than told that the prompt is at fault.
            Err(error) if error.is_cancelled() => std::future::pending().await,
            Err(_panicked) => Err(ApiError::new(
                ErrorCode::Internal,
                "the tokenizer failed on this prompt",
            )),
        }
    }
}

/// A prompt of at most this takes less time than going to another thread and back.
const SHORT_BYTES: usize = 1 << 10;

fn make(version: &ServedVersion, input: &Input, largest: usize) -> Result<Vec<u32>, NotMade> {
    if let Some(least) = certainly_too_long(version, input, largest) {
        return Err(NotMade::TooLong(least));
    }
    let tokens = match input {
        Input::User(text) => version.text.user(text),
        Input::Chat(messages) => version.text.chat(messages),
        Input::Dialogue(dialogue) => version.text.dialogue(dialogue),
        Input::Text(text) => version.text.raw(text),
        Input::Tokens(tokens) => Ok(tokens.clone()),
    };
    tokens.map_err(NotMade::Text)
}

/// Why there are no tokens.
enum NotMade {
    TooLong(usize),
    Text(TextError),
}

impl NotMade {
    fn into_error(self, largest: u64, params: Params) -> ApiError {
        let error = match self {
            Self::TooLong(least) => ApiError::new(
                ErrorCode::PromptTooLong,
                format!("the prompt has more than {least} tokens and {largest} fit; shorten it"),
            )
            .details(serde_json::json!({
                "promptTokensMoreThan": least, "largestPromptTokens": largest,
            })),
            Self::Text(TextError::Template(why)) => ApiError::new(ErrorCode::TemplateError, why),
            Self::Text(TextError::Tokenizer(why)) => ApiError::new(ErrorCode::InvalidRequest, why),
        };
        error.param(params.prompt)
    }
}

fn busy() -> ApiError {
    ApiError::new(
        ErrorCode::QueueFull,
        "too many prompts are being tokenized; try again shortly",
    )
    .retry_after_ms(100)
}

fn check_tokens(tokens: &[u32], vocab: u32, params: Params) -> ApiResult<Vec<u32>> {
    if let Some(place) = tokens.iter().position(|token| *token >= vocab) {
        return Err(ApiError::invalid(
            params.prompt,
            format!(
                "token {} at position {place} is outside the model's vocabulary of {vocab}",
                tokens[place]
            ),
        ));
    }
    Ok(tokens.to_vec())
}
