//! Turns at something scarce, shared fairly: tenants take turns, and none may fill the line alone.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Seats that tenants take turns at.
pub(crate) struct Turns {
    state: Mutex<State>,
    most_waiting: usize,
    most_waiting_of_one: usize,
}

struct State {
    free: usize,
    waiting: usize,
    /// Tenants with somebody in line, in the order of their turns.
    order: VecDeque<String>,
    lines: BTreeMap<String, VecDeque<oneshot::Sender<Seat>>>,
}

/// A seat; the next one's when dropped.
pub(crate) struct Seat(Arc<Turns>);

/// The line is full, for everybody or for this tenant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LineFull;

impl Turns {
    /// `most_waiting` may stand in line, and of one tenant a quarter of that.
    pub(crate) fn new(seats: usize, most_waiting: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                free: seats.max(1),
                waiting: 0,
                order: VecDeque::new(),
                lines: BTreeMap::new(),
            }),
            most_waiting,
            most_waiting_of_one: most_waiting.div_ceil(4),
        })
    }

    /// Waits for a seat.
    pub(crate) async fn take(self: &Arc<Self>, tenant: &str) -> Result<Seat, LineFull> {
        let turn = {
            let mut state = self.state.lock();
            if state.free > 0 {
                state.free -= 1;
                return Ok(Seat(Arc::clone(self)));
            }
            let of_one = state.line(tenant).len();
            if state.waiting >= self.most_waiting || of_one >= self.most_waiting_of_one {
                return Err(LineFull);
            }
            state.enter(tenant)
        };
        turn.await.map_err(|_| LineFull)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let next = {
            let mut state = self.0.state.lock();
            let next = state.next();
            state.free += usize::from(next.is_none());
            next
        };
        if let Some(next) = next {
            // Who does not wait any more gives it back at once: the seat that comes back is dropped here.
            drop(next.send(Seat(Arc::clone(&self.0))));
        }
    }
}

impl State {
    /// Those of a tenant who still wait.
    fn line(&mut self, tenant: &str) -> &mut VecDeque<oneshot::Sender<Seat>> {
        let line = self.lines.entry(tenant.to_owned()).or_default();
        let before = line.len();
        // One stays, so that the tenant keeps its place in the order.
        while line.len() > 1 && line.back().is_some_and(oneshot::Sender::is_closed) {
            line.pop_back();
        }
        self.waiting -= before - line.len();
        line
    }

    fn enter(&mut self, tenant: &str) -> oneshot::Receiver<Seat> {
        let (sender, turn) = oneshot::channel();
        let line = self.line(tenant);
        line.push_back(sender);
        if line.len() == 1 {
            self.order.push_back(tenant.to_owned());
        }
        self.waiting += 1;
        turn
    }

    fn next(&mut self) -> Option<oneshot::Sender<Seat>> {
        let tenant = self.order.pop_front()?;
        let line = self.lines.get_mut(&tenant)?;
        let next = line.pop_front();
        if line.is_empty() {
            self.lines.remove(&tenant);
        } else {
            self.order.push_back(tenant);
        }
        self.waiting -= usize::from(next.is_some());
        next
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn tenants_take_turns_and_none_fills_the_line() {
        let turns = Turns::new(1, 16);
        let first = turns.take("greedy").await.ok().unwrap();
        let mut greedy: Vec<_> = (0..5).map(|_| Box::pin(turns.take("greedy"))).collect();
        for (place, waiting) in greedy.iter_mut().enumerate() {
            let refused = waiting.as_mut().now_or_never();
            assert_eq!(refused.is_some(), place == 4, "a quarter of the line");
        }
        let mut modest = Box::pin(turns.take("modest"));
        assert!(modest.as_mut().now_or_never().is_none());
        drop(first);
        let second = greedy[0].as_mut().now_or_never().unwrap().ok().unwrap();
        drop(second);
        let third = modest.as_mut().now_or_never().expect("its turn comes next");
        // Whoever left the line is passed over; at the end the seat is free.
        let last = greedy.remove(3);
        drop(greedy);
        drop(third);
        assert!(last.now_or_never().unwrap().is_ok());
        assert_eq!(turns.state.lock().waiting, 0);
        assert!(turns.take("greedy").now_or_never().is_some());
    }
}
