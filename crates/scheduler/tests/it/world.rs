//! A scheduler, a device, and everything that must be true of the two at every step.

use std::collections::BTreeMap;

use weir_scheduler::{
    Config, Event, Limits, NewSequence, Outcome, Priority, Refused, Scheduler, SequenceId, Verdict,
};

use crate::device::{Device, alone, is_end};
use crate::random::mix;

/// What a test wants to run.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) prompt: Vec<u32>,
    pub(crate) max_output: u32,
    pub(crate) priority: Priority,
    pub(crate) scope: Option<u8>,
    pub(crate) adapter: Option<u8>,
    pub(crate) group: u64,
    pub(crate) uncached: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) output: Vec<u32>,
    pub(crate) submitted_step: u64,
    pub(crate) first_step: Option<u64>,
    pub(crate) end_step: Option<u64>,
    pub(crate) was_aborted: bool,
    pub(crate) cached_tokens: u32,
    pub(crate) preempted: u32,
}

pub(crate) struct World {
    pub(crate) scheduler: Scheduler,
    pub(crate) device: Device,
    pub(crate) requests: BTreeMap<SequenceId, Request>,
    pub(crate) records: BTreeMap<SequenceId, Record>,
    pub(crate) step: u64,
    /// Of everything planned and announced so far.
    pub(crate) trace: u64,
    next_id: u64,
    /// Whether steps are given to the device ahead, how many were, and what the one that is computed sampled.
    pub(crate) runs_ahead: bool,
    pub(crate) steps_ahead: u64,
    ahead: Option<Vec<u32>>,
}

pub(crate) fn limits(blocks: u32, block_tokens: u32, running: u32, batch_tokens: u32) -> Limits {
    Limits {
        blocks,
        block_tokens,
        max_running: running,
        max_batch_tokens: batch_tokens,
        context_tokens: 1 << 20,
    }
}

impl World {
    pub(crate) fn new(config: Config) -> Self {
        let device = Device::new(config.limits.blocks, config.limits.block_tokens);
        Self {
            scheduler: Scheduler::new(config).unwrap(),
            device,
            requests: BTreeMap::new(),
            records: BTreeMap::new(),
            step: 0,
            trace: 0,
            next_id: 1,
            runs_ahead: false,
            steps_ahead: 0,
            ahead: None,
        }
    }

    pub(crate) fn submit(&mut self, request: Request) -> Result<SequenceId, Refused> {
        let id = SequenceId(self.next_id);
        self.next_id += 1;
        self.scheduler.submit(&NewSequence {
            id,
            tokens: &request.prompt,
            max_output: request.max_output,
            priority: request.priority,
            scope: request.scope.map(|scope| [scope; 32]),
            adapter: request.adapter.map(|adapter| [adapter; 32]),
            group: request.group,
            uncached: request.uncached,
        })?;
        self.requests.insert(id, request);
        let record = Record {
            submitted_step: self.step,
            ..Record::default()
        };
        self.records.insert(id, record);
        Ok(id)
    }

    pub(crate) fn live(&self) -> Vec<SequenceId> {
        let live = self
            .records
            .iter()
            .filter(|(_, record)| record.end_step.is_none());
        live.map(|(id, _)| *id).collect()
    }

    pub(crate) fn abort(&mut self, id: SequenceId) {
        let is_live = self.records[&id].end_step.is_none();
        assert_eq!(self.scheduler.abort(id), is_live, "{id:?}");
        if is_live {
            let record = self.records.get_mut(&id).unwrap();
            (record.end_step, record.was_aborted) = (Some(self.step), true);
        }
    }

    /// One whole step.
    pub(crate) fn step(&mut self) {
        self.step_with(|_| {});
    }

    /// One step, with something happening while the device computes.
    pub(crate) fn step_with(&mut self, meanwhile: impl FnOnce(&mut Self)) {
        self.step += 1;
        let sampled = match self.ahead.take() {
            Some(sampled) => sampled,
            None => self.plan_and_compute(),
        };
        meanwhile(self);
        if self.runs_ahead
            && let Some(next) = self.scheduler.plan_ahead()
        {
            let requests = &self.requests;
            self.ahead = Some(self.device.step(next, |id| owner(&requests[&id])));
            self.steps_ahead += 1;
        }
        let (records, step) = (&mut self.records, self.step);
        self.scheduler
            .complete(sampled, |outcome| judge(records, step, outcome));
        self.scheduler.check();
    }

    fn plan_and_compute(&mut self) -> Vec<u32> {
        let had_work = self.scheduler.has_work();
        let step = self.step;
        // Whatever is refused of the guesses changes nothing but the number of steps.
        self.scheduler.plan_with(|id, drafts| {
            let kept = mix(id.0 ^ step << 32) % 10;
            drafts.len().min(usize::try_from(kept).unwrap())
        });
        self.scheduler.check();
        self.note_events();
        let batch = self.scheduler.batch();
        assert!(
            !batch.is_empty() || !had_work,
            "step {}: somebody could run, and nothing is planned: {:?}",
            self.step,
            self.scheduler.stats()
        );
        for row in &batch.rows {
            self.trace = mix(self.trace ^ row.sequence.0) ^ u64::from(row.start + row.token_count);
        }
        let requests = &self.requests;
        self.device.step(batch, |id| owner(&requests[&id]))
    }

    fn note_events(&mut self) {
        for event in self.scheduler.events() {
            self.device.on_event(event);
            match *event {
                Event::Started {
                    id,
                    cached_tokens,
                    resumed,
                    ..
                } => {
                    self.trace = mix(self.trace ^ id.0);
                    let record = self.records.get_mut(&id).unwrap();
                    if !resumed {
                        record.cached_tokens = cached_tokens;
                    }
                    let (prompt, output) = self.scheduler.tokens(id).unwrap();
                    assert_eq!(prompt, self.requests[&id].prompt);
                    assert_eq!(output, record.output, "the slot opens with all output");
                    let takes_all = self.requests[&id].uncached && output.is_empty();
                    assert!(!takes_all || cached_tokens == 0, "all of it is computed");
                }
                Event::Preempted { id, .. } => {
                    self.trace = mix(self.trace ^ id.0 ^ 1 << 40);
                    self.records.get_mut(&id).unwrap().preempted += 1;
                }
                Event::Closed { id, .. } => self.trace = mix(self.trace ^ id.0 ^ 1 << 41),
            }
        }
    }

    /// Runs until nothing is left, which must come within a bound, and checks what everybody got.
    pub(crate) fn finish(&mut self, steps: u64) {
        let end = self.step + steps;
        while !self.scheduler.is_idle() || self.ahead.is_some() {
            assert!(
                self.step < end,
                "not idle after {steps} steps: {:?}",
                self.scheduler.stats()
            );
            self.step();
        }
        self.step();
        assert_eq!(self.device.open_slots(), 0, "every slot is closed");
        let stats = self.scheduler.stats();
        assert_eq!(
            stats.blocks_free + stats.blocks_cached,
            stats.blocks_total,
            "no block leaks"
        );
        for (id, record) in &self.records {
            let request = &self.requests[id];
            let want = alone(&request.prompt, request.max_output);
            if record.was_aborted {
                assert_eq!(record.output, want[..record.output.len()], "{id:?}");
            } else {
                assert_eq!(record.output, want, "{id:?} as if it had run alone");
            }
        }
    }

    /// Steps from submission to the first token.
    pub(crate) fn first_token_steps(&self, id: SequenceId) -> u64 {
        let record = &self.records[&id];
        record.first_step.unwrap() - record.submitted_step
    }
}

fn judge(records: &mut BTreeMap<SequenceId, Record>, step: u64, outcome: &Outcome) -> Verdict {
    let record = records.get_mut(&outcome.id).unwrap();
    assert_eq!(record.end_step, None, "a token after the end");
    record.output.push(outcome.token);
    record.first_step.get_or_insert(step);
    assert_eq!(record.output.len(), outcome.output_tokens as usize);
    let stops = is_end(outcome.token);
    if stops || outcome.is_last {
        record.end_step = Some(step);
    }
    if stops {
        Verdict::Stop
    } else {
        Verdict::Continue
    }
}

fn owner(request: &Request) -> u64 {
    let adapter = request.adapter.map_or(0, |adapter| 1 + u64::from(adapter)) << 48;
    match request.scope {
        Some(scope) => u64::from(scope) << 32 | adapter,
        None => request.group | adapter,
    }
}
