//! The text side of a model: everything but the weights, from its small files alone.

#[cfg(test)]
mod tests;

use serde_json::Value as Json;

use crate::config::{CONFIG_FILE, ConfigError, GENERATION_FILE, GenerationConfig, ModelConfig};
use crate::files::{FileError, FileSource};
use crate::gguf::{GgufFiles, GgufFilesError};
use crate::template::{
    ChatInput, ChatTemplate, RenderedChat, TEMPLATE_FILE, TOKENIZER_CONFIG_FILE, TemplateError,
};
use crate::tokenizer::{
    DecodeStart, Detokenizer, SpecialTokens, TOKENIZER_FILE, Tokenizer, TokenizerError,
    keep_one_bos,
};

/// The text side of a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// A file is missing or unreadable.
    #[error("cannot read the model's files")]
    File(#[source] FileError),
    /// The GGUF file is unusable.
    #[error("cannot read the model")]
    Gguf(#[source] GgufFilesError),
    /// A configuration is unusable.
    #[error("model is not supported")]
    Config(#[source] ConfigError),
    /// The tokenizer is unusable.
    #[error("cannot load the tokenizer")]
    Tokenizer(#[source] TokenizerError),
    /// The chat template is unusable.
    #[error("cannot load the chat template")]
    Template(#[source] TemplateError),
    /// The tokenizer makes ids the network has no row for.
    #[error(
        "tokenizer has {tokenizer} tokens, but \"{CONFIG_FILE}\" says vocab_size {config}; they are of different models"
    )]
    Vocabulary {
        /// Tokens of the tokenizer.
        tokenizer: usize,
        /// Rows of the embedding table.
        config: usize,
    },
}

/// Configuration, tokenizer, template and defaults of a model. Shared behind an `Arc`; every call is read-only.
#[derive(Debug)]
pub struct ModelText {
    /// Shape of the network.
    pub config: ModelConfig,
    /// What a request that says nothing gets.
    pub generation: GenerationConfig,
    /// Text to tokens and back.
    pub tokenizer: Tokenizer,
    /// Messages to text.
    pub template: ChatTemplate,
    /// Sorted: every token that ends a text.
    eos_tokens: Vec<u32>,
    bos_token: Option<u32>,
}

impl ModelText {
    /// Loads from config.json, tokenizer.json (both may be in a GGUF file) and, where there, `generation_config.json`, `tokenizer_config.json` and
    /// `chat_template.jinja`.
    ///
    /// # Errors
    /// A file is missing, unreadable or asks for something unsupported; the chain of causes names file, key and value.
    pub fn from_files(files: &dyn FileSource) -> Result<Self, TextError> {
        let files = GgufFiles::over(files).map_err(TextError::Gguf)?;
        let config = ModelConfig::parse(&files.require(CONFIG_FILE).map_err(TextError::File)?)
            .map_err(TextError::Config)?;
        let generation = files.read(GENERATION_FILE).map_err(TextError::File)?;
        let generation =
            GenerationConfig::parse(generation.as_deref(), &config).map_err(TextError::Config)?;
        let tokenizer = files.require(TOKENIZER_FILE).map_err(TextError::File)?;
        let tokenizer = Tokenizer::from_bytes(&tokenizer).map_err(TextError::Tokenizer)?;
        if tokenizer.vocab_size() > config.vocab_size {
            return Err(TextError::Vocabulary {
                tokenizer: tokenizer.vocab_size(),
                config: config.vocab_size,
            });
        }
        let template = files.read(TEMPLATE_FILE).map_err(TextError::File)?;
        let tokenizer_config = files.read(TOKENIZER_CONFIG_FILE).map_err(TextError::File)?;
        let template = ChatTemplate::load(template.as_deref(), tokenizer_config.as_deref())
            .map_err(TextError::Template)?;
        let mut eos_tokens = generation.eos_token_ids.clone();
        eos_tokens.extend(
            template
                .eos_token()
                .and_then(|token| tokenizer.token_id(token)),
        );
        eos_tokens.sort_unstable();
        eos_tokens.dedup();
        let bos_token = template
            .bos_token()
            .and_then(|token| tokenizer.token_id(token))
            .or(config.bos_token_id);
        Ok(Self {
            config,
            generation,
            tokenizer,
            template,
            eos_tokens,
            bos_token,
        })
    }

    /// Tokens of a plain prompt, special spellings in it being special tokens, with BOS in front exactly once where the model
    /// wants one.
    ///
    /// # Errors
    /// The tokenizer fails.
    pub fn encode_prompt(&self, prompt: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut tokens = self
            .tokenizer
            .encode_with_ends(prompt, SpecialTokens::Parse)?;
        if let Some(bos) = self.bos_token {
            keep_one_bos(&mut tokens, bos);
        }
        // Some tokenizers close a text with EOS. A prompt is not closed: the model is to go on.
        if tokens.len() > 1
            && tokens.last().is_some_and(|&last| self.is_eos(last))
            && !self.ends_with_eos(prompt)
        {
            tokens.pop();
        }
        Ok(tokens)
    }

    /// Tokens of a chat, ready for the answer, without tools or variables.
    ///
    /// # Errors
    /// As [`ChatTemplate::apply`].
    pub fn encode_chat(
        &self,
        messages: &[Json],
        now_unix_s: i64,
    ) -> Result<RenderedChat, TemplateError> {
        self.apply_chat(&ChatInput {
            messages,
            tools: None,
            add_generation_prompt: true,
            variables: None,
            now_unix_s,
        })
    }

    /// Tokens of a chat.
    ///
    /// # Errors
    /// As [`ChatTemplate::apply`].
    pub fn apply_chat(&self, input: &ChatInput<'_>) -> Result<RenderedChat, TemplateError> {
        self.template.apply(input, &self.tokenizer)
    }

    /// Whether a token ends a text.
    pub fn is_eos(&self, token: u32) -> bool {
        self.eos_tokens.binary_search(&token).is_ok()
    }

    /// Every token that ends a text, sorted.
    pub fn eos_tokens(&self) -> &[u32] {
        &self.eos_tokens
    }

    /// A decoder for one stream of tokens.
    pub fn detokenizer(&self, start: DecodeStart) -> Detokenizer {
        self.tokenizer.detokenizer(start)
    }

    /// Positions the model was trained for.
    pub fn context_tokens(&self) -> u32 {
        self.config.context_tokens
    }

    fn ends_with_eos(&self, prompt: &str) -> bool {
        self.eos_tokens
            .iter()
            .filter_map(|&token| self.tokenizer.token_name(token))
            .any(|name| prompt.ends_with(&name))
    }
}
