//! Deadlines of runs: one ordered set, one sleeping task.

use std::collections::BTreeSet;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use weir_run::RunId;

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Due {
    /// The run must have ended.
    Deadline,
    /// The run must have left the queue.
    QueueWait,
}

/// Times at which something is due. An entry is taken back when its run ends, so that the set is bounded by the live runs.
#[derive(Default)]
pub(crate) struct Timers {
    due: Mutex<BTreeSet<(Instant, RunId, Due)>>,
    sooner: Notify,
}

impl Timers {
    pub(crate) fn set(&self, at: Instant, run: RunId, due: Due) {
        let mut all = self.due.lock();
        let is_first = all.first().is_none_or(|(first, ..)| at < *first);
        all.insert((at, run, due));
        if is_first {
            self.sooner.notify_one();
        }
    }

    pub(crate) fn clear(&self, at: Instant, run: RunId, due: Due) {
        self.due.lock().remove(&(at, run, due));
    }

    /// Waits for the next entry that is due and takes it out.
    pub(crate) async fn next(&self) -> (RunId, Due) {
        loop {
            let next = {
                let mut all = self.due.lock();
                match all.first().copied() {
                    Some((at, run, due)) if at <= Instant::now() => {
                        all.pop_first();
                        return (run, due);
                    }
                    Some((at, ..)) => at,
                    None => Instant::now() + Duration::from_hours(1),
                }
            };
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                () = self.sooner.notified() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn entries_come_in_order_of_time_and_cleared_ones_never() {
        let timers = Timers::default();
        let now = Instant::now();
        let (a, b, c) = (RunId::new(1, 1), RunId::new(1, 2), RunId::new(1, 3));
        timers.set(now + Duration::from_secs(3), a, Due::Deadline);
        timers.set(now + Duration::from_secs(1), b, Due::QueueWait);
        timers.set(now + Duration::from_secs(2), c, Due::Deadline);
        timers.clear(now + Duration::from_secs(2), c, Due::Deadline);
        assert_eq!(timers.next().await, (b, Due::QueueWait));
        assert_eq!(timers.next().await, (a, Due::Deadline));
        assert!(Instant::now() >= now + Duration::from_secs(3));
    }
}
