//! Runs that a worker without a model holds for one gateway, and their rows.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use weir_protocol::worker::{Attach, Finish, HeldRun, Row, Started, Submit, finish::Reason};

use super::pace::Wheel;
use super::text;

struct Run {
    id: Bytes,
    epoch: u64,
    /// Index of the next row, and how many there will be.
    next: u64,
    limit: u64,
    credit: u64,
    acknowledged: u64,
    /// Out of credit: in no slot of the wheel.
    starved: bool,
}

/// Runs of one gateway process.
pub(super) struct Held {
    runs: Vec<Option<Run>>,
    free: Vec<u32>,
    by_id: HashMap<Bytes, u32>,
    wheel: Wheel,
    /// Runs whose rows are due now, where they all come at once: a wait for the next tick would be counted as the gateway's.
    now: Option<Vec<u32>>,
    pub(super) session: u64,
}

impl Held {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            runs: Vec::new(),
            free: Vec::new(),
            by_id: HashMap::new(),
            wheel: Wheel::new(interval),
            now: interval.is_zero().then(Vec::new),
            session: 0,
        }
    }

    fn of(&mut self, id: &[u8]) -> Option<(u32, &mut Run)> {
        let place = *self.by_id.get(id)?;
        self.runs[place as usize].as_mut().map(|run| (place, run))
    }

    pub(super) fn submit(&mut self, submit: Submit) {
        let run = Run {
            id: submit.run.clone(),
            epoch: submit.epoch,
            next: 0,
            limit: u64::from(submit.max_output_tokens),
            credit: submit.credit,
            acknowledged: 0,
            starved: false,
        };
        let place = self.free.pop().unwrap_or_else(|| {
            self.runs.push(None);
            self.runs.len() as u32 - 1
        });
        self.runs[place as usize] = Some(run);
        self.by_id.insert(submit.run, place);
        self.soon(place);
    }

    /// Rows from there on are made again, with other times: nobody has seen them.
    pub(super) fn attach(&mut self, attach: &Attach) -> bool {
        let Some((_, run)) = self.of(&attach.run) else {
            return false;
        };
        (run.epoch, run.next, run.credit) = (attach.epoch, attach.from_index, attach.credit);
        true
    }

    pub(super) fn progress(&mut self, id: &[u8], acknowledged: u64, credit: u64) {
        let Some((place, run)) = self.of(id) else {
            return;
        };
        run.acknowledged = run.acknowledged.max(acknowledged);
        run.credit = run.credit.max(credit);
        let (done, starved) = (run.acknowledged >= run.limit, run.starved);
        run.starved = false;
        if done {
            self.drop_run(id);
        } else if starved {
            self.soon(place);
        }
    }

    /// The next row of a run, as far as its credit goes; whether there will be more.
    fn row(run: &mut Run) -> Row {
        let index = run.next;
        run.next += 1;
        let last = run.next == run.limit;
        Row {
            run: run.id.clone(),
            epoch: run.epoch,
            index,
            tokens: 1,
            token_id: 100,
            text: text(index),
            finish: last.then(|| Finish {
                reason: Reason::Length.into(),
                ..Finish::default()
            }),
            run_finished: last,
            started: (index == 0).then(Started::default),
            ..Row::default()
        }
    }

    fn soon(&mut self, place: u32) {
        match &mut self.now {
            Some(now) => now.push(place),
            None => self.wheel.soon(place),
        }
    }

    /// Rows of the runs that are due in a tick that has come; `None` when none has.
    pub(super) fn due(&mut self) -> Option<Vec<Row>> {
        let due = self.wheel.due()?;
        Some(self.step(due, false))
    }

    /// All rows of the runs that came, where they come at once.
    pub(super) fn at_once(&mut self) -> Vec<Row> {
        let now = self.now.as_mut().map(std::mem::take);
        now.map_or_else(Vec::new, |now| self.step(now, true))
    }

    /// What it says of them to a gateway that returns.
    pub(super) fn all(&self) -> Vec<HeldRun> {
        let held = self.runs.iter().flatten().map(|run| HeldRun {
            run: run.id.clone(),
            epoch: run.epoch,
            first_index: run.acknowledged,
            next_index: run.next,
            finished: run.next == run.limit,
        });
        held.collect()
    }

    /// Forgets a run: its epoch and the index of its next row.
    pub(super) fn drop_run(&mut self, id: &[u8]) -> Option<(u64, u64)> {
        let place = self.by_id.remove(id)?;
        self.free.push(place);
        let run = self.runs[place as usize].take()?;
        Some((run.epoch, run.next))
    }

    fn step(&mut self, due: Vec<u32>, all_at_once: bool) -> Vec<Row> {
        let mut rows = Vec::with_capacity(due.len());
        for place in due {
            let Some(run) = self.runs[place as usize].as_mut() else {
                continue;
            };
            while run.next < run.limit && run.next < run.credit {
                rows.push(Self::row(run));
                if !all_at_once {
                    break;
                }
            }
            if run.next >= run.limit {
                continue;
            }
            run.starved = run.next >= run.credit;
            if !run.starved {
                self.wheel.again(place);
            }
        }
        rows
    }
}
