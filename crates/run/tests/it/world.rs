//! One run, its store, two gateways that may write to it, a worker, and what can befall them.
//!
//! What a run takes on is decided by the real [`Run::extend`], [`Run::cancel`] and [`Run::take_over`]; the world around them is this file.

use weir_run::testing::accepted_run;
use weir_run::{Epoch, Extension, FinishReason, Run, RunStatus, Sequence, Terminal};

/// Rows of output that the worker makes: the first one starts the run, the last one ends it, and one is neither.
pub(crate) const ROWS: u64 = 3;
const PROMPT: u64 = 10;

/// A mistake that is made on purpose, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    None,
    /// The store does not compare epochs: it takes every writer for the present one.
    NoFence,
    /// The store takes what comes, whoever wrote it, and gives it the next free sequences.
    Renumber,
    /// It does so also after the run has ended.
    EndsTwice,
}

/// The part of a run's row that can change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    pub(crate) status: RunStatus,
    pub(crate) epoch: u64,
    pub(crate) last: u64,
    pub(crate) output: u64,
    pub(crate) index: u64,
    pub(crate) started: bool,
}

impl Row {
    fn run(&self) -> Run {
        Run {
            status: self.status,
            epoch: Epoch(self.epoch),
            last_sequence: Sequence(self.last),
            output_tokens: self.output,
            output_index: self.index,
            started_at_ms: self.started.then_some(5),
            ..accepted()
        }
    }

    fn of(run: &Run) -> Self {
        Self {
            status: run.status,
            epoch: run.epoch.0,
            last: run.last_sequence.0,
            output: run.output_tokens,
            index: run.output_index,
            started: run.started_at_ms.is_some(),
        }
    }
}

fn accepted() -> Run {
    Run {
        prompt_tokens: PROMPT,
        reserved_tokens: PROMPT + ROWS,
        ..accepted_run()
    }
}

/// An event in the log: who wrote it, what it is, and up to which row of the worker it reaches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) sequence: u64,
    pub(crate) epoch: u64,
    /// The run's epoch when it was taken.
    pub(crate) present: u64,
    pub(crate) kind: &'static str,
    pub(crate) index: u64,
}

/// What a gateway thinks of a run that it writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Writer {
    pub(crate) epoch: u64,
    last: u64,
    index: u64,
    output: u64,
    pub(crate) started: bool,
    /// An append of it is on its way.
    pub(crate) waiting: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Gateway {
    Down,
    Idle,
    Writing(Writer),
}

/// An append on its way to the store: it arrives whenever it likes, also after its sender is gone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Append {
    by: usize,
    epoch: u64,
    first: u64,
    kinds: Vec<&'static str>,
    index: u64,
    output: u64,
    started: bool,
    end: Option<&'static str>,
}

/// The run at the worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Worker {
    pub(crate) holds: bool,
    pub(crate) epoch: u64,
    pub(crate) made: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) row: Row,
    pub(crate) log: Vec<Entry>,
    /// The reservation is held.
    pub(crate) held: bool,
    /// How often it ended.
    pub(crate) settled: u8,
    pub(crate) gateways: [Gateway; 2],
    pub(crate) flying: Vec<Append>,
    pub(crate) worker: Worker,
    pub(crate) crashes: u8,
    pub(crate) worker_crashes: u8,
    pub(crate) false_alarms: u8,
    pub(crate) cancels: u8,
    pub(crate) deadlines: u8,
}

/// How many times a gateway dies: `WEIR_MODEL_CRASHES`, or once. Each more makes about four times as many states.
#[expect(
    clippy::disallowed_methods,
    reason = "the test's own knob, not the core's"
)]
fn crashes() -> u8 {
    let set = std::env::var("WEIR_MODEL_CRASHES").ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(1)
}

impl World {
    pub(crate) fn new() -> Self {
        let row = Row::of(&accepted());
        let writer = Writer::of(&row);
        Self {
            log: vec![Entry {
                sequence: 1,
                epoch: 1,
                present: 1,
                kind: "accepted",
                index: 0,
            }],
            row,
            held: true,
            settled: 0,
            gateways: [Gateway::Writing(writer), Gateway::Idle],
            flying: vec![],
            worker: Worker::default(),
            crashes: crashes(),
            worker_crashes: 1,
            false_alarms: 1,
            cancels: 1,
            deadlines: 1,
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.row.status.is_terminal()
    }

    /// The owner asks for the end.
    pub(crate) fn cancel(&mut self) {
        let mut run = self.row.run();
        run.cancel();
        self.row = Row::of(&run);
        self.cancels -= 1;
    }

    /// A gateway takes the run over, and goes on with it at the worker if that one has it.
    pub(crate) fn adopt(&mut self, by: usize) {
        let mut run = self.row.run();
        if run.take_over().is_none() {
            return;
        }
        self.row = Row::of(&run);
        if self.worker.holds {
            self.worker.epoch = self.row.epoch;
        }
        self.gateways[by] = Gateway::Writing(Writer::of(&self.row));
    }

    /// The store takes an append, or does not, and tells its sender if that one still waits.
    pub(crate) fn land(&mut self, place: usize, mistake: Mistake) {
        let append = self.flying.remove(place);
        let taken = self.take(&append, mistake);
        let Gateway::Writing(writer) = &mut self.gateways[append.by] else {
            return;
        };
        if writer.epoch != append.epoch || !writer.waiting {
            return;
        }
        if !taken || append.end.is_some() {
            self.gateways[append.by] = Gateway::Idle;
            return;
        }
        writer.waiting = false;
        writer.last = append.first + append.kinds.len() as u64 - 1;
        (writer.index, writer.started) = (append.index, true);
        writer.output += append.output;
    }

    fn take(&mut self, append: &Append, mistake: Mistake) -> bool {
        let mut run = self.row.run();
        if mistake == Mistake::EndsTwice && run.status.is_terminal() {
            run.status = RunStatus::Running;
        }
        let first = match mistake {
            Mistake::Renumber | Mistake::EndsTwice => run.last_sequence.0 + 1,
            _ => append.first,
        };
        let status = append.end.and_then(|end| {
            let mut all = RunStatus::TERMINAL.into_iter();
            all.find(|status| status.as_str() == end)
        });
        let terminal = status.map(|status| Terminal {
            status,
            finish_reason: (status == RunStatus::Completed).then_some(FinishReason::Stop),
            error: None,
            usage: weir_run::Usage {
                prompt_tokens: PROMPT,
                output_tokens: run.output_tokens + append.output,
                ..weir_run::Usage::default()
            },
        });
        let start = weir_run::Start {
            worker: "w".into(),
            ..weir_run::Start::default()
        };
        let extension = Extension {
            epoch: match mistake {
                Mistake::NoFence | Mistake::Renumber | Mistake::EndsTwice => run.epoch,
                Mistake::None => Epoch(append.epoch),
            },
            output_tokens: append.output,
            output_index: append.index,
            started: append.started.then_some(&start),
            terminal: terminal.as_ref(),
            verdicts: &[],
            now_ms: 9,
        };
        let events = append.kinds.iter().zip(first..);
        let events = events.map(|(kind, sequence)| (Sequence(sequence), *kind));
        if run.extend(&extension, events).is_err() {
            return false;
        }
        for (kind, sequence) in append.kinds.iter().zip(first..) {
            self.log.push(Entry {
                sequence,
                epoch: append.epoch,
                present: run.epoch.0,
                kind,
                index: append.index,
            });
        }
        // In the same commit.
        if terminal.is_some() {
            self.held = false;
            self.settled += 1;
        }
        self.row = Row::of(&run);
        true
    }

    /// A gateway makes an event of the worker's next row.
    pub(crate) fn pass_on(&mut self, by: usize) {
        let Gateway::Writing(writer) = &mut self.gateways[by] else {
            return;
        };
        writer.waiting = true;
        let index = writer.index + 1;
        let mut kinds = vec![];
        if !writer.started {
            kinds.push("started");
        }
        kinds.push("delta");
        let end = (index == ROWS).then_some("completed");
        kinds.extend(end);
        let append = Append {
            by,
            epoch: writer.epoch,
            first: writer.last + 1,
            kinds,
            index,
            output: 1,
            started: !writer.started,
            end,
        };
        self.flying.push(append);
        self.flying.sort();
    }

    /// A gateway ends the run by itself.
    pub(crate) fn end(&mut self, by: usize, status: RunStatus) {
        let Gateway::Writing(writer) = &mut self.gateways[by] else {
            return;
        };
        writer.waiting = true;
        let append = Append {
            by,
            epoch: writer.epoch,
            first: writer.last + 1,
            kinds: vec![status.as_str()],
            index: writer.index,
            output: 0,
            started: false,
            end: Some(status.as_str()),
        };
        self.flying.push(append);
        self.flying.sort();
    }
}

impl Writer {
    fn of(row: &Row) -> Self {
        Self {
            epoch: row.epoch,
            last: row.last,
            index: row.index,
            output: row.output,
            started: row.started,
            waiting: false,
        }
    }

    /// Whether the worker has something for it.
    pub(crate) fn can_pass_on(&self, worker: &Worker) -> bool {
        !self.waiting && worker.holds && worker.epoch == self.epoch && worker.made > self.index
    }
}
