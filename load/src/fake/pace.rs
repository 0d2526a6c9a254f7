//! Which of many streams is due: a wheel of slots, one for each tick.

use std::time::{Duration, Instant};

/// Length of a tick.
pub(crate) const TICK: Duration = Duration::from_millis(2);

/// Numbers of streams by the tick in which they are due.
pub(crate) struct Wheel {
    slots: Vec<Vec<u32>>,
    begun: Instant,
    /// The next tick that is looked at.
    next: u64,
    interval: u64,
}

impl Wheel {
    /// For streams that are due every `interval`.
    pub(crate) fn new(interval: Duration) -> Self {
        let interval = interval.as_nanos().div_ceil(TICK.as_nanos()) as u64;
        Self {
            slots: vec![Vec::new(); interval as usize + 1],
            begun: Instant::now(),
            next: 0,
            interval,
        }
    }

    fn slot(&mut self, tick: u64) -> &mut Vec<u32> {
        let count = self.slots.len() as u64;
        &mut self.slots[(tick % count) as usize]
    }

    /// Puts a stream in as due in the next tick.
    pub(crate) fn soon(&mut self, stream: u32) {
        let next = self.next;
        self.slot(next).push(stream);
    }

    /// The streams of one tick that has come; `None` when none has. Each is to be put back with [`Wheel::again`] as long as it lives.
    pub(crate) fn due(&mut self) -> Option<Vec<u32>> {
        let now = self.begun.elapsed().as_nanos() / TICK.as_nanos();
        if u128::from(self.next) > now {
            return None;
        }
        let next = self.next;
        let due = std::mem::take(self.slot(next));
        self.next += 1;
        Some(due)
    }

    /// The stream is due one interval after the tick that was taken last.
    pub(crate) fn again(&mut self, stream: u32) {
        let tick = self.next - 1 + self.interval.max(1);
        self.slot(tick).push(stream);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_due_once_in_each_interval() {
        let mut wheel = Wheel::new(TICK * 3);
        wheel.soon(7);
        let mut ticks = Vec::new();
        let mut tick = 0;
        while ticks.len() < 3 {
            let Some(due) = wheel.due() else {
                std::thread::yield_now();
                continue;
            };
            for stream in due {
                ticks.push(tick);
                wheel.again(stream);
            }
            tick += 1;
        }
        assert_eq!(ticks, [0, 3, 6]);
    }
}
