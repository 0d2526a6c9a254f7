//! Steps that are started before the one before was read, with the scheduler that plans them.

use std::collections::BTreeMap;

use weir_cuda::CudaBackend;
use weir_cuda::device::Device;
use weir_model::backend::{Backend as _, BackendLimits, NoMasks};
use weir_scheduler::{Config, Event, NewSequence, Priority, Scheduler, SequenceId, Verdict};

use super::{Failure, seeded};

/// Sequences of different lengths, every third of which stops by itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work {
    pub(crate) sequences: u64,
    /// Tokens that the model has.
    pub(crate) vocab: u64,
    /// Output tokens of the first; each has one more.
    pub(crate) output: u32,
}

/// What each sequence put out.
pub(crate) type Outputs = BTreeMap<SequenceId, Vec<u32>>;

pub(crate) fn scheduler(limits: BackendLimits) -> Result<Scheduler, Failure> {
    Ok(Scheduler::new(Config::new(
        limits.plan(),
        [1; 32],
        [2; 32],
    ))?)
}

/// What the sequences put out, and how many steps were started ahead.
pub(crate) fn run_ahead<D: Device>(
    backend: &mut CudaBackend<D>,
    work: Work,
    runs_ahead: bool,
) -> Result<(Outputs, u32), Failure> {
    let mut scheduler = scheduler(backend.limits())?;
    submit(&mut scheduler, work)?;
    let (mut outputs, mut sampled, mut ahead) = (Outputs::new(), Vec::new(), 0);
    while scheduler.has_work() || scheduler.is_in_flight() {
        if !scheduler.is_in_flight() {
            scheduler.plan();
            settle(&scheduler, backend);
            if scheduler.batch().is_empty() {
                break;
            }
            let device = backend.ahead().ok_or("it runs no step ahead")?;
            device.launch(scheduler.batch(), &NoMasks)?;
        }
        let device = backend.ahead().ok_or("it runs no step ahead")?;
        if runs_ahead && let Some(next) = scheduler.plan_ahead() {
            device.launch(next, &NoMasks)?;
            ahead += 1;
        }
        device.collect(&mut sampled)?;
        let tokens = sampled.iter().map(|sampled| sampled.token);
        scheduler.complete(tokens, |outcome| {
            let output = outputs.entry(outcome.id).or_default();
            output.push(outcome.token);
            // Found when the next step has been started already.
            let stops = outcome.id.0.is_multiple_of(3) && output.len() == 5;
            if stops {
                Verdict::Stop
            } else {
                Verdict::Continue
            }
        });
        scheduler.check();
    }
    Ok((outputs, ahead))
}

fn submit(scheduler: &mut Scheduler, work: Work) -> Result<(), Failure> {
    for id in 0..work.sequences {
        let token = |at: u64| u32::try_from((at * 7 + id) % work.vocab);
        let tokens: Vec<u32> = (0..3 + id * 6).map(token).collect::<Result<_, _>>()?;
        scheduler.submit(&NewSequence {
            id: SequenceId(id),
            tokens: &tokens,
            max_output: work.output + u32::try_from(id)?,
            priority: Priority::Standard,
            scope: None,
            group: id,
            adapter: None,
            uncached: false,
        })?;
    }
    Ok(())
}

/// Opens and closes what the plan says.
fn settle<D: Device>(scheduler: &Scheduler, backend: &mut CudaBackend<D>) {
    for event in scheduler.events() {
        match *event {
            Event::Started { id, slot, .. } => {
                let params = seeded(u32::try_from(id.0).unwrap_or(u32::MAX));
                if let Some((prompt, output)) = scheduler.tokens(id) {
                    backend.open(slot, &params, prompt, output);
                }
            }
            Event::Preempted { slot, .. } | Event::Closed { slot, .. } => backend.close(slot),
        }
    }
}
