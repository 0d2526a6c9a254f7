//! Every run the worker holds, with the memory they take.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use weir_protocol::worker::HeldRun;

use super::command::SessionId;
use super::request::RunKey;
use super::run::{Run, RunNumber};

/// Finished runs whose rows nobody acknowledged: the oldest are forgotten beyond this. A gateway acknowledges within moments; what is
/// here belongs to gateways that left.
const FINISHED_MAX: usize = 4096;

/// A finished run is forgotten after this, acknowledged or not, and a live one without a session is cancelled: a gateway acknowledges
/// within moments, unless it ended the run itself or left for good. Far longer than any restart of one takes.
const FORGET_AFTER: Duration = Duration::from_mins(5);

/// Bytes of unacknowledged rows over all runs. Beyond it finished runs are forgotten, oldest first, and then live ones pause.
const WINDOW_BYTES_MAX: usize = 256 << 20;

/// Held runs by number and by id.
#[derive(Debug, Default)]
pub(crate) struct HeldRuns {
    runs: HashMap<RunNumber, Run>,
    by_key: HashMap<RunKey, RunNumber>,
    /// Finished runs in the order they ended.
    finished: BTreeSet<(Instant, RunNumber)>,
    last: u64,
    live: usize,
    window_bytes: usize,
}

impl HeldRuns {
    /// Takes a run in under a new number, with the rows that it has already.
    pub(crate) fn insert(&mut self, number: RunNumber, run: Run) {
        self.window_bytes += run.window.bytes();
        let replaced = self.by_key.insert(run.key, number);
        assert!(replaced.is_none(), "a run was started twice");
        self.runs.insert(number, run);
        self.live += 1;
    }

    /// The number of the next run.
    pub(crate) fn next_number(&mut self) -> RunNumber {
        self.last += 1;
        RunNumber(self.last)
    }

    pub(crate) fn find(&self, key: &RunKey) -> Option<RunNumber> {
        self.by_key.get(key).copied()
    }

    pub(crate) fn get(&self, number: RunNumber) -> Option<&Run> {
        self.runs.get(&number)
    }

    /// Changes a run and keeps the sums: every change of a window goes through here.
    pub(crate) fn change<T>(
        &mut self,
        number: RunNumber,
        change: impl FnOnce(&mut Run) -> T,
    ) -> Option<T> {
        let run = self.runs.get_mut(&number)?;
        let (bytes, finished) = (run.window.bytes(), run.is_finished());
        let result = change(run);
        self.window_bytes = self.window_bytes + run.window.bytes() - bytes;
        if !finished && run.is_finished() {
            self.live -= 1;
            let now = Instant::now();
            run.ended = Some(now);
            self.finished.insert((now, number));
        }
        Some(result)
    }

    /// Forgets a finished run whose last row is acknowledged.
    pub(crate) fn forget_if_delivered(&mut self, number: RunNumber) {
        let delivered =
            |run: &Run| run.is_finished() && run.window.first_index() == run.window.next_index();
        if self.runs.get(&number).is_some_and(delivered) {
            self.remove(number);
        }
    }

    /// Forgets finished runs that ended long ago, and further ones until the bounds hold, those without a session first.
    pub(crate) fn shrink(&mut self, now: Instant) {
        while let Some((ended, number)) = self.finished.first().copied()
            && now.saturating_duration_since(ended) > FORGET_AFTER
        {
            self.remove(number);
        }
        if self.is_within_bounds() {
            return;
        }
        let (owned, orphaned): (Vec<_>, Vec<_>) = self
            .finished
            .iter()
            .map(|(_, number)| *number)
            .partition(|number| self.runs[number].owner.is_some());
        for number in orphaned.into_iter().chain(owned) {
            if self.is_within_bounds() {
                break;
            }
            self.remove(number);
        }
    }

    fn is_within_bounds(&self) -> bool {
        self.finished.len() <= FINISHED_MAX && self.window_bytes <= WINDOW_BYTES_MAX
    }

    fn remove(&mut self, number: RunNumber) {
        if let Some(run) = self.runs.remove(&number) {
            self.window_bytes -= run.window.bytes();
            self.by_key.remove(&run.key);
            if let Some(ended) = run.ended {
                self.finished.remove(&(ended, number));
            }
            self.live -= usize::from(!run.is_finished());
        }
    }

    /// Whether live runs must pause until rows are acknowledged.
    pub(crate) fn is_over_memory(&self) -> bool {
        self.window_bytes > WINDOW_BYTES_MAX
    }

    /// Numbers of the runs of a session, in the order they came.
    pub(crate) fn of_session(&self, session: SessionId) -> Vec<RunNumber> {
        let owned = self
            .runs
            .iter()
            .filter(|(_, run)| run.owner == Some(session));
        sorted(owned.map(|(number, _)| *number))
    }

    /// Numbers of the runs that are not finished, in the order they came.
    pub(crate) fn live(&self) -> Vec<RunNumber> {
        sorted(
            self.runs
                .iter()
                .filter(|(_, run)| !run.is_finished())
                .map(|(number, _)| *number),
        )
    }

    /// Numbers of the live runs whose gateway left long ago, in the order they came.
    pub(crate) fn abandoned(&self, now: Instant) -> Vec<RunNumber> {
        let is_old = |since: Instant| now.saturating_duration_since(since) > FORGET_AFTER;
        let abandoned = self
            .runs
            .iter()
            .filter(|(_, run)| !run.is_finished() && run.orphaned.is_some_and(is_old));
        sorted(abandoned.map(|(number, _)| *number))
    }

    /// What a gateway's welcome lists.
    pub(crate) fn of_gateway(&self, gateway: &str) -> Vec<HeldRun> {
        let ordered: BTreeMap<_, _> = self
            .runs
            .iter()
            .filter(|(_, run)| run.gateway == gateway)
            .collect();
        ordered
            .into_values()
            .map(|run| HeldRun {
                run: run.key.to_vec().into(),
                epoch: run.epoch,
                first_index: run.window.first_index(),
                next_index: run.window.next_index(),
                finished: run.is_finished(),
            })
            .collect()
    }

    pub(crate) fn live_count(&self) -> usize {
        self.live
    }

    pub(crate) fn count(&self) -> usize {
        self.runs.len()
    }

    /// Runs with rows that their session has not been sent.
    pub(crate) fn unsent_count(&self) -> usize {
        self.runs
            .values()
            .filter(|run| run.owner.is_some() && !run.window.is_sent())
            .count()
    }

    pub(crate) fn window_bytes(&self) -> usize {
        self.window_bytes
    }
}

fn sorted(numbers: impl Iterator<Item = RunNumber>) -> Vec<RunNumber> {
    let mut numbers: Vec<_> = numbers.collect();
    numbers.sort_unstable();
    numbers
}
