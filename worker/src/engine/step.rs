//! One step: planned, computed, taken.

use std::time::Instant;

use weir_model::backend::BackendError;

use super::core::{Engine, Parts};
use super::run::{Run, RunNumber};

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stepped {
    /// There was nothing to run.
    Nothing,
    /// Rows were run.
    Rows,
}

impl Engine {
    /// Plans a step; false where there is nothing to run.
    fn plan(&mut self, begin: Instant) -> bool {
        let budget = self
            .pace
            .next(&self.parts.scheduler.stats(), self.parts.scheduler.batch());
        let (places, runs) = (&self.places, &self.runs);
        let scheduler = &mut self.parts.scheduler;
        scheduler.set_step_budget(budget);
        scheduler.set_draft_cost(self.pace.draft_cost());
        scheduler.plan_with(|sequence, drafts| {
            let run = runs.get(RunNumber::of(sequence).0);
            let most = run.map_or(0, Run::tokens_ahead).min(drafts.len());
            places.allowed(sequence, &drafts[..most])
        });
        self.apply_events(begin);
        !self.parts.scheduler.batch().is_empty()
    }

    /// Has the planned step computed. A device that keeps what it samples is given the step after it first, where that is nothing but going on.
    fn compute(&mut self, is_started: bool) -> Result<(), BackendError> {
        let Parts {
            scheduler, backend, ..
        } = &mut self.parts;
        let Some(device) = backend.ahead() else {
            return backend.step(scheduler.batch(), &self.places, &mut self.sampled);
        };
        if !is_started {
            device.launch(scheduler.batch(), &self.places)?;
        }
        // What a grammar allows next depends on the token.
        let (runs, rows) = (&self.runs, &scheduler.batch().rows);
        let may_go_on = |run: &Run| run.tokens_ahead() > 0;
        if self.places.is_empty()
            && rows.iter().all(|row| {
                let (number, _) = RunNumber::of(row.sequence);
                runs.get(number).is_none_or(may_go_on)
            })
            && let Some(next) = scheduler.plan_ahead()
        {
            device.launch(next, &self.places)?;
        }
        device.collect(&mut self.sampled)
    }

    /// Carries out one step: the one that was started ahead, or one that is planned now.
    ///
    /// # Errors
    /// The device failed; no further step may be made.
    pub(crate) fn step(&mut self) -> Result<Stepped, BackendError> {
        let begin = Instant::now();
        self.sweep(begin);
        let is_started = self.parts.scheduler.is_in_flight();
        if !is_started && !self.plan(begin) {
            return Ok(Stepped::Nothing);
        }
        let planned = Instant::now();
        let batch = self.parts.scheduler.batch();
        self.step = batch.step;
        let tokens = batch.tokens.len() as f64;
        self.parts.observer.iteration_tokens.observe(tokens);
        self.places.look_ahead(batch);
        self.compute(is_started)?;
        let computed = Instant::now();
        // The device began a step that was started ahead when it was done with the one before.
        let since = if is_started { self.computed } else { planned };
        self.computed = computed;
        self.pace
            .learn(self.parts.scheduler.batch(), computed - since);
        self.count_guesses();
        self.complete(computed);
        self.flush();
        let end = Instant::now();
        self.note_times(end - begin, (planned - begin) + (end - computed));
        Ok(Stepped::Rows)
    }
}
