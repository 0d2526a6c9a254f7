//! What the gateway needs of a model's text: prompts as token ids.

use serde_json::json;
use weir_grammar::ToolFormat;
use weir_model::ModelText;
use weir_model::template::TemplateError;

use crate::dialogue::{Dialogue, render, tool_format};

/// A chat message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant` or what else the template knows.
    pub role: String,
    /// Its text.
    pub content: String,
}

/// Tokenizer and chat template of one model version. Calls may take milliseconds: they run on the tokenizer pool.
pub trait PromptText: Send + Sync {
    /// The prompt of a conversation, up to where the model's turn begins. Text of messages never yields special tokens.
    ///
    /// # Errors
    /// The template refused the messages, or the text could not be tokenized.
    fn chat(&self, messages: &[Message]) -> Result<Vec<u32>, TextError>;

    /// The prompt of a conversation that speaks of tools.
    ///
    /// # Errors
    /// As for [`PromptText::chat`]; also where the model cannot be told of tools.
    fn dialogue(&self, dialogue: &Dialogue) -> Result<Vec<u32>, TextError> {
        let _ = dialogue;
        Err(TextError::Template(
            "this model cannot be told of tools".to_owned(),
        ))
    }

    /// The prompt of one user's text: its turn in a conversation, or the text itself where the model has no chat template.
    ///
    /// # Errors
    /// As for [`PromptText::chat`].
    fn user(&self, text: &str) -> Result<Vec<u32>, TextError>;

    /// Text as it is, with the beginning-of-sequence token where the model wants one.
    ///
    /// # Errors
    /// The text could not be tokenized.
    fn raw(&self, text: &str) -> Result<Vec<u32>, TextError>;

    /// Token ids are below this.
    fn vocab(&self) -> u32;

    /// How the model writes calls of tools.
    fn tool_format(&self) -> ToolFormat {
        ToolFormat::default()
    }
}

/// A prompt could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// The chat template refused the messages.
    #[error("the chat template refused the messages: {0}")]
    Template(String),
    /// The tokenizer failed.
    #[error("the text could not be tokenized: {0}")]
    Tokenizer(String),
}

impl PromptText for ModelText {
    fn chat(&self, messages: &[Message]) -> Result<Vec<u32>, TextError> {
        let messages: Vec<_> = messages
            .iter()
            .map(|message| json!({"role": message.role, "content": message.content}))
            .collect();
        let rendered = self.encode_chat(&messages, now_s()).map_err(refused)?;
        Ok(rendered.tokens)
    }

    fn dialogue(&self, dialogue: &Dialogue) -> Result<Vec<u32>, TextError> {
        let rendered = render(self, dialogue, now_s()).map_err(refused)?;
        Ok(rendered.tokens)
    }

    fn tool_format(&self) -> ToolFormat {
        tool_format(self)
    }

    fn user(&self, text: &str) -> Result<Vec<u32>, TextError> {
        if !self.template.is_present() {
            return self.raw(text);
        }
        self.chat(&[Message {
            role: "user".to_owned(),
            content: text.to_owned(),
        }])
    }

    fn raw(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.encode_prompt(text)
            .map_err(|error| TextError::Tokenizer(error.to_string()))
    }

    fn vocab(&self) -> u32 {
        u32::try_from(self.config.vocab_size).unwrap_or(u32::MAX)
    }
}

fn now_s() -> i64 {
    i64::try_from(crate::clock::now_ms() / 1000).unwrap_or(i64::MAX)
}

fn refused(error: TemplateError) -> TextError {
    match error {
        TemplateError::Tokenize(source) => TextError::Tokenizer(source.to_string()),
        error => TextError::Template(error.to_string()),
    }
}
