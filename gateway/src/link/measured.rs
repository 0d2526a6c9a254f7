//! What a run's answer says of the version that gave it.

use weir_protocol::worker::Row;
use weir_run::RunStatus;

use super::ask::{BEGINNING_BYTES, BEGINNING_TOKENS, Said};
use super::writer::Writer;
use crate::evidence::{End, Output, is_refusal};

impl Writer {
    /// What the run says of its version, now that it has ended like this.
    pub(crate) fn end_of(&self, status: RunStatus) -> End {
        match status {
            RunStatus::Completed => End::Completed(Output {
                tokens: self.output_tokens,
                is_odd: self.any_length || self.looping.found(),
                is_refusal: is_refusal(&self.beginning),
            }),
            RunStatus::Failed => End::Failed,
            RunStatus::Expired if self.output_tokens == 0 => End::Overload,
            _ => End::Neutral,
        }
    }

    /// The measures of its answer, for a comparison with another one.
    pub(crate) fn said(&self) -> Said {
        Said {
            beginning: self.beginning.clone(),
            tokens: self.output_tokens,
            is_cut: self.any_length,
            is_odd: self.any_length || self.looping.found() || self.output_tokens == 0,
            ..Said::default()
        }
    }

    /// Looks at a row as evidence.
    pub(super) fn notice(&mut self, row: &Row) {
        if row.choice != 0 {
            return;
        }
        if row.tokens > 0 {
            self.looping.push(row.token_id);
        }
        if self.output_tokens < BEGINNING_TOKENS && self.beginning.len() < BEGINNING_BYTES {
            self.beginning.push_str(&row.text);
        }
    }
}
