//! `generation_config.json`: what a request that says nothing gets.

use super::read::{ConfigError, Keys};
use super::{GENERATION_FILE, ModelConfig};

/// Defaults of sampling and the tokens that end a text.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end a text: from here, or from `config.json` where this file names none.
    pub eos_token_ids: Vec<u32>,
    /// 0 is greedy; `do_sample: false` reads as 0.
    pub temperature: f32,
    /// 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub top_k: u32,
    /// 0 is off.
    pub min_p: f32,
    /// 1 is off.
    pub repetition_penalty: f32,
}

impl GenerationConfig {
    /// Reads the file, which a model may lack. Where neither the file nor the key is there, sampling is plain: temperature 1 and
    /// every filter off, as the request schema of the HTTP API says.
    ///
    /// # Errors
    /// A value is out of bounds; the error names file, key and value.
    pub fn parse(bytes: Option<&[u8]>, config: &ModelConfig) -> Result<Self, ConfigError> {
        let keys = Keys::parse(GENERATION_FILE, bytes.unwrap_or(b"{}"))?;
        let mut eos_token_ids = keys.token_ids("eos_token_id", config.vocab_size)?;
        if eos_token_ids.is_empty() {
            eos_token_ids.clone_from(&config.eos_token_ids);
        }
        let temperature = keys.number("temperature", 1.0, 0.0..=100.0)?;
        // An explicit false is greedy; an absent key is not, because most files that carry a temperature omit neither.
        let greedy = keys.get("do_sample").is_some() && !keys.flag("do_sample", true)?;
        let top_k = keys.size_or_zero("top_k", 0, 1 << 24)?;
        Ok(Self {
            eos_token_ids,
            temperature: if greedy { 0.0 } else { temperature },
            top_p: keys.number("top_p", 1.0, f32::MIN_POSITIVE..=1.0)?,
            top_k: u32::try_from(top_k).expect("bounded above"),
            min_p: keys.number("min_p", 0.0, 0.0..=1.0)?,
            repetition_penalty: keys.number("repetition_penalty", 1.0, 1e-3..=100.0)?,
        })
    }
}
