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
                is_odd: self.is_odd(),
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
            is_odd: self.is_odd(),
            ..Said::default()
        }
    }

    /// Ended by its ceiling, going round in circles, or empty.
    fn is_odd(&self) -> bool {
        self.any_length || self.looping.found() || !self.has_content
    }

    /// Looks at a row as evidence.
    pub(super) fn notice(&mut self, row: &Row) {
        if row.choice != 0 {
            return;
        }
        if row.tokens > 0 {
            self.looping.push(row.token_id);
        }
        self.has_content |= has_content(row);
        if self.output_tokens < BEGINNING_TOKENS && self.beginning.len() < BEGINNING_BYTES {
            self.beginning.push_str(&row.text);
        }
    }
}

/// Whether a row adds something to an answer: the token that ends it is billed and says nothing.
pub(super) fn has_content(row: &Row) -> bool {
    !row.text.trim().is_empty() || !row.tool_calls.is_empty()
}

#[cfg(test)]
mod tests {
    use weir_protocol::worker::ToolCall;

    use super::*;

    #[test]
    fn an_answer_of_nothing_but_its_end_is_empty() {
        let row = |text: &str, tokens| Row {
            text: text.to_owned(),
            tokens,
            ..Row::default()
        };
        assert!(!has_content(&row("", 1)) && !has_content(&row(" \n", 1)));
        assert!(has_content(&row("7", 1)) && has_content(&row("7", 0)));
        let call = Row {
            tool_calls: vec![ToolCall::default()],
            ..row("", 1)
        };
        assert!(has_content(&call));
    }
}
