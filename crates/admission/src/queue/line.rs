//! What a newcomer has before it: the wait, the seats it may take, and whether there is a place at all.

use super::Admission;
use crate::estimate::Work;
use crate::types::{Priority, Refused};

/// Shorter queues are not shared out: there is too little of them.
const SHARED_FROM: u32 = 16;

/// How often an estimate is refined by what comes while it lasts.
const ROUNDS: usize = 24;

impl<R: Copy, T: Clone + Ord> Admission<R, T> {
    pub(super) fn wait_ms(&self, tenant: &T, priority: Priority, class: usize, now_ms: u64) -> u64 {
        let level = priority as usize;
        let mut urgent = Work::default();
        let mut urgent_us = 0;
        for fair in &self.fair[..level] {
            urgent.add(fair.waiting());
            urgent_us += fair.arriving_us(now_ms);
        }
        let free = if self.is_tight {
            0
        } else {
            u64::from(self.seats_for(tenant))
        };
        if self.depths.total == 0 && free > 0 {
            return 0;
        }
        let mut wait_ms = 0;
        // What others send meanwhile depends on how long "meanwhile" is: from nothing up, until it holds.
        for _ in 0..ROUNDS {
            let weights = &self.config.class_weights;
            let equals = self.fair[level].ahead_of(tenant, class, weights, (wait_ms, now_ms));
            let mut ahead = equals;
            ahead.add(urgent);
            let next_ms = self.rates.wait_ms(ahead, free, urgent_us, now_ms);
            // However urgent the rest is: a priority that waits has its turn each time it has aged past all that are above it.
            let aging_ms = self.config.aging_ms.saturating_mul(level as u64);
            let next_ms = match level {
                0 => next_ms,
                _ => next_ms.min(aging_ms.saturating_mul(equals.runs + 1)),
            };
            // From below, so what is left grows: a step of two percent is near enough.
            let is_near = next_ms <= wait_ms + wait_ms / 50;
            wait_ms = next_ms;
            if is_near {
                break;
            }
        }
        wait_ms
    }

    /// The free seats that a tenant may take.
    pub(super) fn seats_for(&self, tenant: &T) -> u32 {
        let held = self.held.get(tenant).copied().unwrap_or(0);
        // Below its part of the reserve a tenant may take what is there, and beyond that what is not reserved.
        let of_reserve = self.reserved.saturating_sub(held);
        self.seats
            .saturating_sub(self.reserved)
            .max(of_reserve.min(self.seats))
    }

    pub(super) fn bounds(
        &self,
        tenant: &T,
        priority: Priority,
        class: usize,
        estimate_ms: u64,
    ) -> Result<(), Refused> {
        let level = priority as usize;
        let depth = self.depths.per_priority[level];
        let bound = self.config.max_depth_per_priority[level];
        let in_class = self.depths.per_class[level][class];
        let own = u32::try_from(self.fair[level].runs_of(tenant)).unwrap_or(u32::MAX);
        // The fuller the queue, the less of it one tenant may hold: alone three quarters, so that there is always a place for others.
        let share = if bound >= SHARED_FROM {
            bound.saturating_sub(depth).saturating_mul(3)
        } else {
            bound
        };
        let checks = [
            (depth, bound),
            (in_class, self.config.max_depth_per_class[class]),
            (own, share),
        ];
        match checks.into_iter().find(|(depth, bound)| depth >= bound) {
            Some((depth, bound)) => Err(Refused::QueueFull {
                depth,
                bound,
                estimate_ms,
            }),
            None => Ok(()),
        }
    }
}
