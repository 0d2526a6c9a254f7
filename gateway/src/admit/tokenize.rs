//! Tokenization on a bounded number of threads, so that no prompt delays the event loop or takes all cores.

use std::sync::Arc;

use weir_protocol::error::ErrorCode;

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
    ) -> ApiResult<Vec<u32>> {
        if let Input::Tokens(tokens) = input {
            return check_tokens(tokens, version.text.vocab(), params);
        }
        let thread = self.threads.take(tenant).await.map_err(|_| busy())?;
        let (version, input) = (Arc::clone(version), input.clone());
        let made = tokio::task::spawn_blocking(move || {
            // A client that leaves meanwhile does not free the thread.
            let _thread = thread;
            match &input {
                Input::User(text) => version.text.user(text),
                Input::Chat(messages) => version.text.chat(messages),
                Input::Dialogue(dialogue) => version.text.dialogue(dialogue),
                Input::Text(text) => version.text.raw(text),
                Input::Tokens(tokens) => Ok(tokens.clone()),
            }
        })
        .await;
        match made {
            Ok(Ok(tokens)) => Ok(tokens),
            Ok(Err(TextError::Template(why))) => {
                Err(ApiError::new(ErrorCode::TemplateError, why).param(params.prompt))
            }
            Ok(Err(TextError::Tokenizer(why))) => {
                Err(ApiError::new(ErrorCode::InvalidRequest, why).param(params.prompt))
            }
            // The process ends: whoever asked is answered by nobody, rather than told that the prompt is at fault.
            Err(error) if error.is_cancelled() => std::future::pending().await,
            Err(_panicked) => Err(ApiError::new(
                ErrorCode::Internal,
                "the tokenizer failed on this prompt",
            )),
        }
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
