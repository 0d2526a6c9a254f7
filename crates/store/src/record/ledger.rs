//! What a terminal run was billed. Written once, never changed.

use weir_run::{RunStatus, Usage};

use super::run::{status_byte, status_of, version};
use super::{BadRecord, Decoder, Encoder};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) model: String,
    pub(crate) version: u32,
    pub(crate) status: RunStatus,
    pub(crate) usage: Usage,
    /// The lengths of the windows that bear it; the key has the moment.
    pub(crate) periods_s: Vec<u64>,
}

impl Entry {
    /// Prompt and output.
    pub(crate) fn tokens(&self) -> u64 {
        self.usage
            .prompt_tokens
            .saturating_add(self.usage.output_tokens)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::with_capacity(64);
        to.byte(1);
        to.text(&self.model);
        to.number(u64::from(self.version));
        to.byte(status_byte(self.status));
        to.number(self.usage.prompt_tokens);
        to.number(self.usage.cached_tokens);
        to.number(self.usage.output_tokens);
        to.number(self.usage.cost_micros);
        to.number(self.periods_s.len() as u64);
        for period_s in &self.periods_s {
            to.number(*period_s);
        }
        to.into_bytes()
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, BadRecord> {
        let mut from = Decoder::new(payload);
        version(&mut from)?;
        let mut entry = Self {
            model: from.text("model")?,
            version: from.small("model version")?,
            status: status_of(from.byte("status")?)?,
            usage: Usage {
                prompt_tokens: from.number("prompt tokens")?,
                cached_tokens: from.number("cached tokens")?,
                output_tokens: from.number("output tokens")?,
                cost_micros: from.number("cost")?,
            },
            periods_s: vec![],
        };
        for _ in 0..from.count("periods")? {
            entry.periods_s.push(from.number("period")?);
        }
        from.finish()?;
        Ok(entry)
    }
}
