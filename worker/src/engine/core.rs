//! The engine: commands in, one step at a time, rows out. It runs on one thread and locks nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use weir_model::backend::{Backend, Sampled, Scored};
use weir_model::tokenizer::Tokenizer;
use weir_protocol::worker::{LoadedModel, finish::Reason};
use weir_scheduler::{Event, Outcome, Scheduler, SequenceId, Verdict};

use super::adapters::{self, HeldAdapters};
use super::held::HeldRuns;
use super::masks::{Advanced, Places};
use super::observe::Observer;
use super::output::{logprob, prompt_token};
use super::pace::Pace;
use super::request::Served;
use super::run::RunNumber;
use super::sessions::{Flow, Sessions};
use super::snapshot::Snapshot;

/// The moving averages are over about so many steps.
const EWMA_STEPS: u64 = 16;

/// Time between two looks for runs that nobody wants any more.
const SWEEP: Duration = Duration::from_secs(1);

/// Everything an engine is made of.
pub(crate) struct Parts {
    pub(crate) scheduler: Scheduler,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) served: Served,
    pub(crate) identity: Identity,
    pub(crate) observer: Observer,
}

/// What a welcome says about this worker.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) worker: String,
    pub(crate) boot: String,
    /// The version that the device was loaded with.
    pub(crate) base: LoadedModel,
}

/// The engine's own state; [`super::thread`] drives it.
pub(crate) struct Engine {
    pub(super) parts: Parts,
    pub(super) runs: HeldRuns,
    pub(super) sessions: Sessions,
    pub(super) places: Places,
    pub(super) adapters: HeldAdapters,
    pub(super) draining: bool,
    pub(super) sampled: Vec<Sampled>,
    scored: Vec<Scored>,
    /// Runs that got a row in this step.
    touched: Vec<RunNumber>,
    over_memory: bool,
    swept: Instant,
    snapshot: Snapshot,
    pub(super) pace: Pace,
    /// The step whose tokens came last, and when.
    pub(super) step: u64,
    pub(super) computed: Instant,
    step_ns: u64,
    host_ns: u64,
    publish: watch::Sender<Snapshot>,
}

impl Engine {
    pub(crate) fn new(parts: Parts, publish: watch::Sender<Snapshot>) -> Self {
        let places = Places::new(parts.observer.mask.clone());
        Self {
            parts,
            runs: HeldRuns::default(),
            sessions: Sessions::default(),
            places,
            adapters: HeldAdapters::default(),
            draining: false,
            sampled: Vec::new(),
            scored: Vec::new(),
            touched: Vec::new(),
            over_memory: false,
            swept: Instant::now(),
            snapshot: Snapshot::default(),
            pace: Pace::default(),
            step: 0,
            computed: Instant::now(),
            step_ns: 0,
            host_ns: 0,
            publish,
        }
    }

    /// Whether a step would do something.
    pub(crate) fn has_work(&self) -> bool {
        self.parts.scheduler.has_work() || self.parts.scheduler.is_in_flight()
    }

    /// Carries out what the plan says about slots.
    pub(super) fn apply_events(&mut self, now: Instant) {
        let Parts {
            scheduler,
            backend,
            observer,
            ..
        } = &mut self.parts;
        for event in scheduler.events() {
            match *event {
                Event::Started {
                    id,
                    slot,
                    cached_tokens,
                    resumed,
                } => {
                    let (prompt, output) = scheduler
                        .tokens(id)
                        .expect("a sequence that starts is known");
                    let (number, choice) = RunNumber::of(id);
                    let run = self
                        .runs
                        .get(number)
                        .expect("a run lives as long as its sequences");
                    backend.open(slot, &run.sampling_of(choice), prompt, output);
                    adapters::apply(&mut **backend, slot, run.adapter);
                    if resumed {
                        continue;
                    }
                    self.snapshot.prompt_tokens += prompt.len() as u64;
                    self.snapshot.cached_tokens += u64::from(cached_tokens);
                    let waited = self
                        .runs
                        .change(number, |run| run.note_start(now, cached_tokens));
                    if let Some(waited) = waited.flatten() {
                        observer.queue.observe(waited.as_secs_f64());
                    }
                }
                Event::Preempted { slot, .. } | Event::Closed { slot, .. } => backend.close(slot),
            }
        }
    }

    /// Gives what was said of prompts to their runs.
    fn complete_scores(&mut self) {
        let Parts {
            backend, tokenizer, ..
        } = &mut self.parts;
        backend.take_scored(&mut self.scored);
        for scored in self.scored.drain(..) {
            let (number, _) = RunNumber::of(scored.sequence);
            self.runs.change(number, |run| {
                run.score(scored.position, || {
                    prompt_token(tokenizer, scored.token.token, Some(&scored.token))
                });
            });
        }
    }

    /// Counts the guesses that the step computed, before their rows are made.
    pub(super) fn count_guesses(&mut self) {
        for row in &self.parts.scheduler.batch().rows {
            let (number, _) = RunNumber::of(row.sequence);
            let drafted = u64::from(row.draft_count);
            if drafted > 0 {
                self.runs
                    .change(number, |run| run.guesses.drafted += drafted);
            }
        }
    }

    /// Gives every sampled token to its run.
    pub(super) fn complete(&mut self, now: Instant) {
        self.complete_scores();
        let Self {
            parts,
            runs,
            sampled,
            touched,
            snapshot,
            places,
            ..
        } = self;
        let Parts {
            scheduler,
            tokenizer,
            observer,
            served,
            ..
        } = parts;
        touched.clear();
        let step = scheduler.batch().step;
        let tokens = sampled.iter().map(|sampled| sampled.token);
        scheduler.complete(tokens, |outcome: &Outcome| {
            snapshot.output_tokens += 1;
            let (number, choice) = RunNumber::of(outcome.id);
            let is_end = served.end_tokens.contains(&outcome.token);
            let advanced = places.advance(outcome.id, outcome.token, is_end);
            let ended = runs.change(number, |run| {
                let logprob = run
                    .wants_logprobs()
                    .then(|| logprob(tokenizer, &sampled[outcome.sample_index]));
                observer.token(&mut run.times, choice, (step, now));
                run.guesses.accepted += u64::from(outcome.is_draft);
                let ended = match advanced {
                    _ if sampled[outcome.sample_index].logprob.is_nan() => {
                        Some(run.fail(choice, adapters::OVERFLOW.to_owned()))
                    }
                    Some(Err(error)) => Some(run.leave(choice, &error)),
                    Some(Ok(advanced)) => run.take(
                        choice,
                        outcome.token,
                        (logprob, advanced == Advanced::Complete),
                    ),
                    None => run.take(choice, outcome.token, (logprob, false)),
                };
                if run.is_finished() {
                    observer.ended(&run.times, now);
                }
                ended
            });
            touched.push(number);
            match ended.flatten() {
                Some(reason) => {
                    places.remove(outcome.id);
                    snapshot.count_finish(reason);
                    Verdict::Stop
                }
                None => Verdict::Continue,
            }
        });
        let touched = std::mem::take(&mut self.touched);
        for number in &touched {
            self.sessions.list_unsent(&mut self.runs, *number);
            self.settle_pause(*number);
        }
        self.touched = touched;
        self.settle_memory();
    }

    /// Ends a run that is not finished, between two steps; its blocks are back at once.
    pub(super) fn end_run(&mut self, number: RunNumber, reason: Reason, message: &str) {
        let Some(run) = self.runs.get(number) else {
            return;
        };
        let live: Vec<SequenceId> = run
            .live_choices()
            .map(|choice| number.sequence(choice))
            .collect();
        for sequence in &live {
            self.parts.scheduler.abort(*sequence);
            self.places.remove(*sequence);
            self.snapshot.count_finish(reason);
        }
        let observer = &self.parts.observer;
        self.runs.change(number, |run| {
            run.end(reason, message);
            observer.ended(&run.times, Instant::now());
        });
        self.sessions.list_unsent(&mut self.runs, number);
    }

    /// Ends every run with a failure; the scheduler and the backend are not touched any more.
    pub(crate) fn fail_all(&mut self, message: &str) {
        for number in self.runs.live() {
            let live = self.runs.change(number, |run| {
                let live = run.live_choices().count();
                run.end(Reason::Failed, message);
                live
            });
            (0..live.unwrap_or(0)).for_each(|_| self.snapshot.count_finish(Reason::Failed));
            self.sessions.list_unsent(&mut self.runs, number);
        }
        self.snapshot.failure = Some(message.to_owned());
        self.flush();
    }

    /// The engine ends; every session sees why.
    pub(crate) fn close_sessions(&mut self, status: &tonic::Status) {
        self.flush();
        self.sessions.close_all(status);
    }

    /// Pauses or resumes a run's sequences after its credit, window or session changed.
    pub(super) fn settle_pause(&mut self, number: RunNumber) {
        let Some(run) = self.runs.get(number) else {
            return;
        };
        let stalled = run
            .owner
            .is_some_and(|owner| self.sessions.is_stalled(owner));
        let wants_pause =
            !run.is_finished() && (self.over_memory || stalled || run.is_out_of_credit());
        if wants_pause == run.paused {
            return;
        }
        for choice in run.live_choices() {
            if wants_pause {
                self.parts.scheduler.pause(number.sequence(choice));
            } else {
                self.parts.scheduler.resume(number.sequence(choice));
            }
        }
        self.runs.change(number, |run| run.paused = wants_pause);
    }

    /// Keeps the memory of unacknowledged rows within its bound.
    pub(super) fn settle_memory(&mut self) {
        self.runs.shrink(Instant::now());
        let over = self.runs.is_over_memory();
        if over != self.over_memory {
            self.over_memory = over;
            for number in self.runs.live() {
                self.settle_pause(number);
            }
        }
    }

    /// Ends what gateways left behind. An idle engine does not come here, and need not: what is left behind takes room only from
    /// what comes.
    pub(super) fn sweep(&mut self, now: Instant) {
        if now.saturating_duration_since(self.swept) < SWEEP {
            return;
        }
        self.swept = now;
        for number in self.runs.abandoned(now) {
            self.end_run(number, Reason::Cancelled, "");
        }
        self.settle_memory();
    }

    /// Sends what can be sent to every session.
    pub(crate) fn flush(&mut self) {
        let step = self.step;
        for session in self.sessions.ids() {
            if self.sessions.flush(session, step, &mut self.runs) != Flow::Same {
                for number in self.runs.of_session(session) {
                    self.settle_pause(number);
                }
            }
        }
    }

    pub(super) fn note_times(&mut self, step: Duration, host: Duration) {
        let blend = |average: &mut u64, new: Duration| {
            let new = u64::try_from(new.as_nanos()).unwrap_or(u64::MAX);
            *average = if *average == 0 {
                new
            } else {
                *average - *average / EWMA_STEPS + new / EWMA_STEPS
            };
        };
        blend(&mut self.step_ns, step);
        blend(&mut self.host_ns, host);
        self.parts.observer.step.observe(step.as_secs_f64());
        self.parts.observer.host.observe(host.as_secs_f64());
    }

    /// Makes the present figures visible outside.
    pub(crate) fn publish(&mut self) {
        self.settle_adapters();
        if self.adapters.take_changed() || self.snapshot.models.is_empty() {
            self.snapshot.models = self.models().into();
        }
        let stats = self.parts.scheduler.stats();
        let snapshot = &mut self.snapshot;
        snapshot.steps = stats.steps;
        snapshot.running = stats.running;
        snapshot.waiting = stats.waiting.iter().sum();
        snapshot.blocks_total = stats.blocks_total;
        snapshot.blocks_free = stats.blocks_free;
        snapshot.blocks_cached = stats.blocks_cached;
        snapshot.kv_tokens = stats.kv_tokens;
        snapshot.prefill_tokens_waiting = stats.prefill_tokens_waiting;
        snapshot.preemptions = stats.preemptions;
        snapshot.drafted_tokens = stats.drafted_tokens;
        snapshot.accepted_tokens = stats.accepted_tokens;
        snapshot.step_us_ewma = self.step_ns / 1000;
        snapshot.host_us_ewma = self.host_ns / 1000;
        snapshot.draining = self.draining;
        snapshot.runs_live = self.runs.live_count() as u64;
        snapshot.runs_held = self.runs.count() as u64;
        // Only the drain asks, and counting takes a pass over all runs.
        snapshot.runs_unsent = if self.draining {
            self.runs.unsent_count() as u64
        } else {
            0
        };
        snapshot.window_bytes = self.runs.window_bytes() as u64;
        snapshot.sessions = self.sessions.count() as u64;
        snapshot.sessions_stalled = self.sessions.stalled_count() as u64;
        self.publish.send_replace(snapshot.clone());
    }
}
