//! A run the worker holds: its choices, its rows, and who has it.

use std::time::Instant;

use bytes::Bytes;
use weir_grammar::GrammarError;
use weir_model::backend::{AdapterId, SamplingParams};
use weir_protocol::worker::{Finish, Guesses, Logprob, PromptToken, Row, Started, finish::Reason};
use weir_scheduler::SequenceId;

use super::command::SessionId;
use super::observe::Times;
use super::output::{ChoiceText, EndRules, finish};
use super::request::{Request, RunKey};
use super::window::Window;

/// Rows a run may have unacknowledged before it is paused, whatever its credit: at the row's size a few megabytes.
pub(crate) const WINDOW_ROWS_MAX: u64 = 16_384;

/// Tokens of a prompt that one row speaks of: with all alternatives a row stays far below what a frame may hold.
const PROMPT_TOKENS_PER_ROW: usize = 128;

/// Bits of a sequence id that number the choice; the rest number the run.
const CHOICE_BITS: u32 = 8;

/// A run's number within this process: never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RunNumber(pub(crate) u64);

impl RunNumber {
    /// The sequence of one of its choices.
    pub(crate) fn sequence(self, choice: u32) -> SequenceId {
        SequenceId(self.0 << CHOICE_BITS | u64::from(choice))
    }

    /// The run and the choice of a sequence.
    pub(crate) fn of(sequence: SequenceId) -> (Self, u32) {
        let choice = sequence.0 & ((1 << CHOICE_BITS) - 1);
        (
            Self(sequence.0 >> CHOICE_BITS),
            u32::try_from(choice).expect("8 bits"),
        )
    }
}

/// One choice.
#[derive(Debug)]
struct Choice {
    text: ChoiceText,
    live: bool,
}

/// A held run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) key: RunKey,
    pub(crate) gateway: String,
    /// What is applied to the model for it.
    pub(crate) adapter: Option<AdapterId>,
    pub(crate) epoch: u64,
    pub(crate) owner: Option<SessionId>,
    pub(crate) window: Window,
    pub(crate) credit: u64,
    /// Whether its sequences are paused in the scheduler.
    pub(crate) paused: bool,
    /// Whether its session's list of runs with unsent rows has it.
    pub(crate) listed: bool,
    /// When its session was lost, while no other has it.
    pub(crate) orphaned: Option<Instant>,
    /// When its last row was made.
    pub(crate) ended: Option<Instant>,
    rules: EndRules,
    sampling: SamplingParams,
    choices: Vec<Choice>,
    live_choices: u32,
    pub(crate) times: Times,
    started: Option<Started>,
    /// What is known of the prompt's tokens, where asked for and until its rows are made.
    prompt: Vec<PromptToken>,
    /// Tokens guessed for it, and those of them that came true.
    pub(crate) guesses: Guesses,
    wire_key: Bytes,
}

/// Who a run belongs to at its start.
pub(crate) struct NewRun<'a> {
    pub(crate) gateway: &'a str,
    pub(crate) owner: SessionId,
}

impl Run {
    pub(crate) fn new(
        new: &NewRun<'_>,
        request: &Request,
        texts: Vec<ChoiceText>,
        now: Instant,
    ) -> Self {
        let choices: Vec<_> = texts
            .into_iter()
            .map(|text| Choice { text, live: true })
            .collect();
        Self {
            key: request.key,
            gateway: new.gateway.to_owned(),
            adapter: request.adapter.map(|adapter| adapter.id),
            epoch: request.epoch,
            owner: Some(new.owner),
            window: Window::default(),
            credit: request.credit,
            paused: false,
            listed: false,
            orphaned: None,
            ended: None,
            rules: request.rules.clone(),
            sampling: request.sampling.clone(),
            live_choices: u32::try_from(choices.len()).expect("choices are bounded"),
            choices,
            times: Times {
                submitted: now,
                started: None,
                tokens: None,
                prompt_tokens: request.prompt.len(),
                output_tokens: 0,
                steps: [0; 2],
                trace: request.trace,
            },
            started: None,
            prompt: Vec::new(),
            guesses: Guesses::default(),
            wire_key: Bytes::copy_from_slice(&request.key),
        }
    }

    /// Whether its last row is made.
    pub(crate) fn is_finished(&self) -> bool {
        self.live_choices == 0
    }

    /// Whether it must not produce more for now, as far as the run itself knows.
    pub(crate) fn is_out_of_credit(&self) -> bool {
        !self.is_finished() && self.rows_left() == 0
    }

    /// How many tokens beyond the next one may be computed for one of its choices, so that it makes no row that it may not send.
    pub(crate) fn tokens_ahead(&self) -> usize {
        let each = self.rows_left() / u64::from(self.live_choices.max(1));
        usize::try_from(each.saturating_sub(1)).unwrap_or(usize::MAX)
    }

    /// Rows it may still make.
    fn rows_left(&self) -> u64 {
        let limit = self.credit.min(self.window.first_index() + WINDOW_ROWS_MAX);
        limit.saturating_sub(self.window.next_index())
    }

    /// Choices that still produce.
    pub(crate) fn live_choices(&self) -> impl Iterator<Item = u32> {
        (0_u32..)
            .zip(&self.choices)
            .filter(|(_, choice)| choice.live)
            .map(|(index, _)| index)
    }

    /// Whether rows carry log-probabilities.
    pub(crate) fn wants_logprobs(&self) -> bool {
        self.sampling.logprobs.is_some()
    }

    /// Sampling of one choice. The first has the seed as given, so that `n` does not change what it says.
    pub(crate) fn sampling_of(&self, choice: u32) -> SamplingParams {
        let mut params = self.sampling.clone();
        // Of the prompt is spoken once.
        params.prompt_logprobs = params.prompt_logprobs.filter(|_| choice == 0);
        params.seed = params
            .seed
            .wrapping_add(u64::from(choice).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        params
    }

    /// The first of its sequences got a slot. Returns how long that took, the first time.
    pub(crate) fn note_start(
        &mut self,
        now: Instant,
        cached_tokens: u32,
    ) -> Option<std::time::Duration> {
        if self.started.is_some() {
            return None;
        }
        let waited = now.saturating_duration_since(self.times.submitted);
        self.times.started = Some(now);
        let queue_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        self.started = Some(Started {
            queue_ms,
            cached_tokens,
        });
        Some(waited)
    }

    /// What the model expected of the prompt's token at this position. What is said again after a preemption is known already.
    pub(crate) fn score(&mut self, position: u32, token: impl FnOnce() -> PromptToken) {
        if position as usize == self.prompt.len() {
            self.prompt.push(token());
        }
    }

    /// Makes the rows that say what was expected of the prompt.
    fn push_prompt(&mut self) {
        let prompt = std::mem::take(&mut self.prompt);
        let mut prompt = prompt.into_iter().peekable();
        while prompt.peek().is_some() {
            let prompt_logprobs = prompt.by_ref().take(PROMPT_TOKENS_PER_ROW).collect();
            self.push(Row {
                prompt_logprobs,
                ..Row::default()
            });
        }
    }

    /// Adds a sampled token of a live choice. Returns how the choice ended, if it did.
    pub(crate) fn take(
        &mut self,
        choice: u32,
        token: u32,
        (logprob, is_complete): (Option<Logprob>, bool),
    ) -> Option<Reason> {
        if choice == 0 {
            self.push_prompt();
        }
        let entry = &mut self.choices[choice as usize];
        assert!(entry.live, "a token came for a choice that has ended");
        let added = match entry.text.take(token, &self.rules, is_complete) {
            Ok(added) => added,
            Err(error) => return Some(self.leave(choice, &error)),
        };
        let reason = added.finish.as_ref().map(Finish::reason);
        let row = Row {
            choice,
            tokens: 1,
            token_id: token,
            text: added.text,
            tool_calls: added.calls,
            logprob,
            finish: added.finish,
            ..Row::default()
        };
        self.push(row);
        reason
    }

    /// Ends a live choice whose output left its grammar: the token that did is not shown.
    pub(crate) fn leave(&mut self, choice: u32, error: &GrammarError) -> Reason {
        self.fail(choice, format!("grammar_error: {error}"))
    }

    /// Ends a live choice whose last token means nothing.
    pub(crate) fn fail(&mut self, choice: u32, message: String) -> Reason {
        let end = Finish {
            message,
            ..finish(Reason::Failed)
        };
        self.push(Row {
            choice,
            finish: Some(end),
            ..Row::default()
        });
        Reason::Failed
    }

    /// Ends every live choice without a further token. Text held back comes with the last row: its tokens are billed.
    pub(crate) fn end(&mut self, reason: Reason, message: &str) {
        for choice in 0..self.choices.len() {
            if !self.choices[choice].live {
                continue;
            }
            let text = self.choices[choice].text.rest(&self.rules);
            let end = Finish {
                message: message.to_owned(),
                ..finish(reason)
            };
            self.push(Row {
                choice: u32::try_from(choice).expect("choices are bounded"),
                text,
                finish: Some(end),
                ..Row::default()
            });
        }
    }

    fn push(&mut self, mut row: Row) {
        row.run = self.wire_key.clone();
        if row.finish.is_some() {
            self.choices[row.choice as usize].live = false;
            self.live_choices -= 1;
            row.run_finished = self.live_choices == 0;
            if row.run_finished && self.guesses.drafted > 0 {
                row.guesses = Some(self.guesses);
            }
        }
        if self.window.next_index() == 0 {
            row.started = self.started;
        }
        self.window.push(row);
    }

    /// The next row to send, under the run's present epoch; `None` when nothing may be sent.
    pub(crate) fn next_row(&mut self) -> Option<Row> {
        let mut row = self.window.next_unsent(self.credit)?.clone();
        row.epoch = self.epoch;
        self.window.mark_sent();
        Some(row)
    }

    /// Whether a row waits to be sent.
    pub(crate) fn has_unsent(&self) -> bool {
        self.window.next_unsent(self.credit).is_some()
    }
}
