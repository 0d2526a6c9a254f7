//! The rows of one run that the gateway has not made durable yet.

use std::collections::VecDeque;

use weir_protocol::worker::{PromptToken, Row, ToolCall};

/// Bytes a row costs besides its text and alternatives.
const ROW_BYTES: usize = size_of::<Row>();
/// Bytes of an alternative.
const TOP_BYTES: usize = 96;

/// Rows from the oldest unacknowledged one on, and how far they have been sent under the present epoch.
#[derive(Debug, Default)]
pub(crate) struct Window {
    rows: VecDeque<Row>,
    first_index: u64,
    sent_index: u64,
    bytes: usize,
}

/// The rows asked for are not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotKept {
    pub(crate) first_index: u64,
    pub(crate) next_index: u64,
}

impl Window {
    /// Index of the oldest row kept.
    pub(crate) fn first_index(&self) -> u64 {
        self.first_index
    }

    /// Index of the row that comes next.
    pub(crate) fn next_index(&self) -> u64 {
        self.first_index + self.rows.len() as u64
    }

    /// Approximate memory.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Appends a row and gives it its index.
    pub(crate) fn push(&mut self, mut row: Row) {
        row.index = self.next_index();
        self.bytes += row_bytes(&row);
        self.rows.push_back(row);
    }

    /// Forgets rows below `index`. Indexes beyond what was made are a peer's mistake and count as everything.
    pub(crate) fn acknowledge(&mut self, index: u64) {
        while self.first_index < index {
            let Some(row) = self.rows.pop_front() else {
                break;
            };
            self.bytes -= row_bytes(&row);
            self.first_index += 1;
        }
        self.sent_index = self.sent_index.max(self.first_index);
    }

    /// Sends again from `index` on; what lies below counts as acknowledged.
    pub(crate) fn rewind(&mut self, index: u64) -> Result<(), NotKept> {
        if !(self.first_index..=self.next_index()).contains(&index) {
            return Err(NotKept {
                first_index: self.first_index,
                next_index: self.next_index(),
            });
        }
        self.acknowledge(index);
        self.sent_index = index;
        Ok(())
    }

    /// The next row to send, if it lies below `credit`.
    pub(crate) fn next_unsent(&self, credit: u64) -> Option<&Row> {
        if self.sent_index >= credit {
            return None;
        }
        let at = usize::try_from(self.sent_index - self.first_index)
            .expect("sent rows are never below the first");
        self.rows.get(at)
    }

    /// Whether every row made so far has been sent.
    pub(crate) fn is_sent(&self) -> bool {
        self.sent_index == self.next_index()
    }

    /// The row of [`Self::next_unsent`] is on its way.
    pub(crate) fn mark_sent(&mut self) {
        assert!(
            self.sent_index < self.next_index(),
            "a row was sent that was never made"
        );
        self.sent_index += 1;
    }
}

fn row_bytes(row: &Row) -> usize {
    let logprob = row.logprob.as_ref().map_or(0, |logprob| {
        logprob.token.len() + logprob.token_bytes.len() + logprob.top.len() * TOP_BYTES
    });
    let prompt: usize = row.prompt_logprobs.iter().map(prompt_bytes).sum();
    let calls: usize = row.tool_calls.iter().map(call_bytes).sum();
    ROW_BYTES + row.text.len() + logprob + prompt + calls
}

fn prompt_bytes(token: &PromptToken) -> usize {
    let text = token.token.len() + token.token_bytes.len();
    size_of::<PromptToken>() + text + token.top.len() * TOP_BYTES
}

fn call_bytes(call: &ToolCall) -> usize {
    size_of::<ToolCall>() + call.id.len() + call.name.len() + call.arguments.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(rows: u64) -> Window {
        let mut window = Window::default();
        for _ in 0..rows {
            window.push(Row {
                text: "x".to_owned(),
                ..Row::default()
            });
        }
        window
    }

    fn send_all(window: &mut Window, credit: u64) -> Vec<u64> {
        let mut sent = Vec::new();
        while let Some(row) = window.next_unsent(credit) {
            sent.push(row.index);
            window.mark_sent();
        }
        sent
    }

    #[test]
    fn rows_go_out_once_and_only_below_the_credit() {
        let mut window = window(5);
        assert_eq!(send_all(&mut window, 3), [0, 1, 2]);
        assert_eq!(send_all(&mut window, 3), [0_u64; 0]);
        assert_eq!(send_all(&mut window, 10), [3, 4]);
    }

    #[test]
    fn a_rewind_gives_exactly_the_rows_from_there_on() {
        let mut window = window(5);
        send_all(&mut window, 10);
        window.acknowledge(2);
        assert_eq!(
            window.rewind(1),
            Err(NotKept {
                first_index: 2,
                next_index: 5
            })
        );
        assert_eq!(
            window.rewind(6),
            Err(NotKept {
                first_index: 2,
                next_index: 5
            })
        );
        window.rewind(3).unwrap();
        assert_eq!(send_all(&mut window, 10), [3, 4]);
        window.rewind(5).unwrap();
        assert_eq!(send_all(&mut window, 10), [0_u64; 0]);
        assert_eq!(
            (window.first_index(), window.next_index(), window.bytes()),
            (5, 5, 0)
        );
    }

    #[test]
    fn acknowledging_unsent_and_future_rows_keeps_the_counts_whole() {
        let mut window = window(4);
        window.acknowledge(2);
        assert_eq!(send_all(&mut window, 10), [2, 3]);
        window.acknowledge(99);
        assert_eq!(
            (window.first_index(), window.next_index(), window.bytes()),
            (4, 4, 0)
        );
        window.push(Row::default());
        assert_eq!(send_all(&mut window, 10), [4]);
    }
}
