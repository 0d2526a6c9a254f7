//! What a terminal run was billed, in the order of acceptance. Written once, never changed. The link with this number says the same, in the
//! order of settlement.

use weir_budget::{Billed, KeyHold};
use weir_run::{RunStatus, Usage};

use super::run::{status_byte, status_of};
use super::{BadRecord, Decoder, Encoder};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) model: String,
    pub(crate) version: u32,
    pub(crate) status: RunStatus,
    pub(crate) usage: Usage,
    /// The lengths of the windows that bear it; the key has the moment.
    pub(crate) periods_s: Vec<u64>,
    /// The key that bears it too.
    pub(crate) key: Option<KeyHold>,
    /// Its link in the tenant's chain; `None` for what was billed before there were chains.
    pub(crate) link: Option<u64>,
}

impl Entry {
    /// What it means to the account.
    pub(crate) fn billed(&self, accepted_at_ms: u64) -> Billed {
        Billed {
            accepted_at_ms,
            periods_s: self.periods_s.clone(),
            key: self.key.clone(),
            tokens: self.tokens(),
            micros: self.usage.cost_micros,
        }
    }

    /// Prompt and output.
    pub(crate) fn tokens(&self) -> u64 {
        self.usage
            .prompt_tokens
            .saturating_add(self.usage.output_tokens)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::with_capacity(64);
        to.byte(2);
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
        to.option(self.key.as_ref(), encode_hold);
        to.option(self.link, Encoder::number);
        to.into_bytes()
    }

    pub(crate) fn decode(payload: &[u8]) -> Result<Self, BadRecord> {
        let mut from = Decoder::new(payload);
        let linked = match from.byte("record version")? {
            1 => false,
            2 => true,
            _ => return Err(BadRecord::Value("record version")),
        };
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
            key: None,
            link: None,
        };
        for _ in 0..from.count("periods")? {
            entry.periods_s.push(from.number("period")?);
        }
        if linked {
            entry.key = from.option("key", decode_hold)?;
            entry.link = from.option("link", Decoder::number)?;
        }
        from.finish()?;
        Ok(entry)
    }
}

fn encode_hold(to: &mut Encoder, hold: &KeyHold) {
    to.text(&hold.name);
    to.number(hold.periods_s.len() as u64);
    for period_s in &hold.periods_s {
        to.number(*period_s);
    }
}

fn decode_hold(from: &mut Decoder<'_>, what: &'static str) -> Result<KeyHold, BadRecord> {
    let name = from.text(what)?;
    let mut periods_s = vec![];
    for _ in 0..from.count(what)? {
        periods_s.push(from.number(what)?);
    }
    Ok(KeyHold { name, periods_s })
}
