//! Runs that nobody waits for: not stored, not billed, not told to any client. They end with their session, and a worker that comes back
//! with one is told to forget it.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use weir_protocol::worker::finish::Reason;
use weir_protocol::worker::{Cancel, Progress, Rejected, Row, Submit, progress, rejected::Code};
use weir_run::RunId;

use super::Link;
use super::measured::has_content;
use super::session::id_bytes;
use crate::evidence::{Looping, is_refusal};

/// How much of an answer's beginning is looked at.
pub(crate) const BEGINNING_TOKENS: u64 = 64;
pub(crate) const BEGINNING_BYTES: usize = 256;

/// Rows that come beyond an output's tokens: ends and held-back text.
const FURTHER_ROWS: u64 = 64;

/// A question to a version, and where its answer goes. Dropping the other end takes the question back.
pub(crate) struct Question {
    pub(crate) run: RunId,
    pub(crate) submit: Submit,
    pub(crate) answer: oneshot::Sender<Answer>,
}

/// What a version answered.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It answered.
    Said(Said),
    /// The engine failed on it, or refused it.
    Failed(String),
}

/// The measures of an answer, and as much of its text as is compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Said {
    /// How it begins.
    pub(crate) beginning: String,
    /// The whole text, where it was asked for.
    pub(crate) text: String,
    pub(crate) tokens: u64,
    /// Ended by its ceiling.
    pub(crate) is_cut: bool,
    /// Ended by its ceiling, going round in circles, or empty.
    pub(crate) is_odd: bool,
    pub(crate) first_token: Duration,
    /// How probable each token was, where that was asked for.
    pub(crate) logprobs: Vec<f32>,
}

impl Said {
    pub(crate) fn is_refusal(&self) -> bool {
        is_refusal(&self.beginning)
    }
}

/// A question that a worker has.
pub(super) struct Asked {
    answer: Option<oneshot::Sender<Answer>>,
    begun: Instant,
    said: Said,
    looping: Looping,
    /// Whether it has text or calls of tools.
    has_content: bool,
    rows: u64,
    failed: Option<String>,
}

impl Asked {
    fn take(&mut self, row: &Row) {
        self.rows = row.index + 1;
        if row.tokens > 0 {
            if self.said.tokens == 0 {
                self.said.first_token = self.begun.elapsed();
            }
            self.looping.push(row.token_id);
        }
        self.has_content |= has_content(row);
        let logprob = row.logprob.as_ref().filter(|_| row.tokens > 0);
        self.said
            .logprobs
            .extend(logprob.map(|logprob| logprob.logprob));
        if self.said.tokens < BEGINNING_TOKENS && self.said.beginning.len() < BEGINNING_BYTES {
            self.said.beginning.push_str(&row.text);
        }
        self.said.text.push_str(&row.text);
        self.said.tokens += u64::from(row.tokens);
        if let Some(finish) = &row.finish {
            match finish.reason() {
                Reason::Stop => {}
                Reason::Length => self.said.is_cut = true,
                _ => self.failed = Some(finish.message.clone()),
            }
        }
    }

    fn end(mut self) {
        self.said.is_odd = self.said.is_cut || self.looping.found() || !self.has_content;
        let answer = match self.failed {
            Some(why) => Answer::Failed(why),
            None => Answer::Said(self.said),
        };
        if let Some(sender) = self.answer {
            sender.send(answer).ok();
        }
    }
}

impl Link {
    /// Sends a question to the worker. Without a session it is lost, and whoever asked sees that at once.
    pub(super) fn ask(&mut self, question: Question) {
        let Question {
            run,
            mut submit,
            answer,
        } = question;
        if self.conn.is_none() || self.handle.facts.lock().lack(&submit).is_some() {
            return;
        }
        submit.run = id_bytes(run);
        submit.epoch = 1;
        submit.credit = u64::from(submit.max_output_tokens) + FURTHER_ROWS;
        self.send(submit);
        self.asked.insert(
            run,
            Asked {
                answer: Some(answer),
                begun: Instant::now(),
                said: Said::default(),
                looping: Looping::default(),
                has_content: false,
                rows: 0,
                failed: None,
            },
        );
    }

    /// Takes a row in that belongs to a question; whether it does.
    pub(super) fn asked_row(&mut self, run: RunId, row: &Row) -> bool {
        let Some(asked) = self.asked.get_mut(&run) else {
            return false;
        };
        asked.take(row);
        if row.run_finished
            && let Some(asked) = self.asked.remove(&run)
        {
            let done = progress::Run {
                run: id_bytes(run),
                acknowledged: asked.rows,
                credit: asked.rows,
            };
            self.send(Progress { runs: vec![done] });
            asked.end();
        }
        true
    }

    /// A worker refused a question; whether it was one.
    pub(super) fn asked_refused(&mut self, run: RunId, rejected: &Rejected) -> bool {
        let Some(mut asked) = self.asked.remove(&run) else {
            return false;
        };
        // What it cannot do now says nothing of the version.
        if let Code::TooLarge | Code::Invalid | Code::Unspecified = rejected.code() {
            asked.failed = Some(rejected.message.clone());
            asked.end();
        }
        true
    }

    /// Takes back what nobody waits for any more.
    pub(super) fn take_back(&mut self) {
        let mut gone = Vec::new();
        for (run, asked) in &mut self.asked {
            if asked
                .answer
                .as_ref()
                .is_some_and(oneshot::Sender::is_closed)
            {
                asked.answer = None;
                gone.push(*run);
            }
        }
        for run in gone {
            self.send(Cancel {
                run: id_bytes(run),
                epoch: 1,
            });
        }
    }
}
