//! The queue in front of the workers of one model version.

use std::collections::{BTreeMap, BTreeSet};

use crate::estimate::Rates;
use crate::fair::{Fair, Weight};
use crate::types::{
    Capacity, Config, Decision, Depths, Expired, ExpiredWhy, Finished, Offered, Priority, Refused,
    Started, Ticket, Waiting,
};

mod line;

struct Entry<R, T> {
    waiting: Waiting<R, T>,
    class: usize,
    /// Expected tokens and seat time, as counted when it came.
    weight: Weight,
    expires_ms: u64,
    /// How often others went before it because it did not fit.
    passed: u32,
}

/// The runs that wait for one pool of workers that serve one model version. Everything that is not sent at once goes through
/// here: `offer` when a run was accepted, `next` in a loop whenever something changed (an arrival, an end, a new status of a
/// worker, a timer at [`Admission::next_expiry_ms`]).
///
/// No run waits without bound: each has a `max_wait_ms`, priorities age, and tenants share a priority by tokens.
pub struct Admission<R, T> {
    config: Config,
    entries: BTreeMap<u64, Entry<R, T>>,
    by_expiry: BTreeSet<(u64, u64)>,
    by_priority: [BTreeSet<u64>; Priority::COUNT],
    fair: [Fair<T>; Priority::COUNT],
    depths: Depths,
    /// When each priority was served last.
    served_ms: [u64; Priority::COUNT],
    rates: Rates,
    /// Free seats when `next` was asked last, and those that became free since.
    seats: u32,
    /// All seats then.
    total: u32,
    /// Seats are free and the runs that wait do not fit the memory that is.
    is_tight: bool,
    /// Seats for tenants who have fewer than that, and how many each has.
    reserved: u32,
    held: BTreeMap<T, u32>,
    tickets: u64,
}

impl<R: Copy, T: Clone + Ord> Admission<R, T> {
    /// An empty queue.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            entries: BTreeMap::new(),
            by_expiry: BTreeSet::new(),
            by_priority: std::array::from_fn(|_| BTreeSet::new()),
            fair: std::array::from_fn(|_| Fair::new()),
            depths: Depths::default(),
            served_ms: [0; Priority::COUNT],
            rates: Rates::default(),
            seats: 0,
            total: 0,
            is_tight: false,
            reserved: 0,
            held: BTreeMap::new(),
            tickets: 0,
        }
    }

    /// Queues a run, at the cost of one of the least urgent ones if the queue is full and that one is less urgent.
    ///
    /// # Errors
    /// The queue is full, or the expected wait is longer than the run can bear.
    pub fn offer(&mut self, waiting: Waiting<R, T>) -> Result<Offered<R>, Refused> {
        let now_ms = waiting.enqueued_at_ms;
        let class = self.config.class_of(waiting.prompt_tokens);
        let estimate_ms = self.wait_ms(&waiting.tenant, waiting.priority, class, now_ms);
        self.bounds(&waiting.tenant, waiting.priority, class, estimate_ms)?;
        let service_us = self
            .rates
            .seat_us(class, waiting.prompt_tokens, waiting.ceiling);
        let end_ms = now_ms
            .saturating_add(estimate_ms)
            .saturating_add(service_us / 1000);
        let is_late = waiting
            .deadline_ms
            .is_some_and(|at| end_ms > at || at <= now_ms);
        if is_late || estimate_ms > waiting.max_wait_ms {
            return Err(Refused::DeadlineUnmeetable {
                estimate_ms,
                service_ms: service_us / 1000,
                is_late,
            });
        }
        let displaced = if self.depths.total >= self.config.max_depth {
            let victim = self.least_urgent(waiting.priority);
            let ticket = victim.ok_or(Refused::QueueFull {
                depth: self.depths.total,
                bound: self.config.max_depth,
                estimate_ms,
            })?;
            Some(self.take(ticket, now_ms).waiting.run)
        } else {
            None
        };
        let ticket = self.insert(waiting, class);
        self.rates.set_waiting(true, now_ms);
        Ok(Offered {
            ticket,
            estimate_ms,
            displaced,
        })
    }

    /// From now on the last `reserved` seats go only to tenants who have fewer than that: `held` says how many each has. So nobody
    /// who fills the workers with long runs makes others wait for the end of one.
    pub fn hold_back(&mut self, reserved: u32, held: BTreeMap<T, u32>) {
        self.reserved = reserved;
        self.held = held;
    }

    /// The next thing to do: a run that waited too long, or one that may go now. `None` when nobody can go; ask again when
    /// something changed. A run that goes takes its seat out of the caller's next `capacity`.
    pub fn next(&mut self, now_ms: u64, capacity: &Capacity) -> Option<Decision<R>> {
        self.seats = capacity.seats;
        self.total = capacity.total.max(capacity.seats);
        let busy = self.total - self.seats;
        self.rates.look(self.total.into(), busy.into(), now_ms);
        if let Some(expired) = self.expire(now_ms) {
            return Some(Decision::Expired(expired));
        }
        if capacity.seats == 0 {
            return None;
        }
        let ticket = self.choose(now_ms, capacity)?;
        let entry = &self.entries[&ticket];
        let (priority, class, tokens) = (entry.waiting.priority, entry.class, entry.weight.tokens);
        let tenant = entry.waiting.tenant.clone();
        let fair = &mut self.fair[priority as usize];
        fair.charge(&tenant, class, tokens, &self.config.class_weights);
        self.served_ms[priority as usize] = now_ms;
        let entry = self.take(ticket, now_ms);
        self.is_tight = false;
        self.seats -= 1;
        let busy = self.total - self.seats;
        self.rates.look(self.total.into(), busy.into(), now_ms);
        *self.held.entry(tenant).or_default() += 1;
        self.rates.set_waiting(!self.entries.is_empty(), now_ms);
        Some(Decision::Start(Started {
            run: entry.waiting.run,
            ticket: Ticket(ticket),
            waited_ms: now_ms.saturating_sub(entry.waiting.enqueued_at_ms),
        }))
    }

    /// Takes a run out that nobody wants any more. `None` when it does not wait (any more).
    pub fn cancel(&mut self, ticket: Ticket, now_ms: u64) -> Option<R> {
        self.entries.get(&ticket.0)?;
        let entry = self.take(ticket.0, now_ms);
        self.rates.set_waiting(!self.entries.is_empty(), now_ms);
        Some(entry.waiting.run)
    }

    /// A run of this pool ended on its worker: a seat is free again.
    pub fn observe_finished(&mut self, finished: &Finished, now_ms: u64) {
        let class = self.config.class_of(finished.prompt_tokens);
        self.rates.finished(class, finished, now_ms);
        self.seats = self.seats.saturating_add(1).min(self.total);
        let busy = self.total - self.seats;
        self.rates.look(self.total.into(), busy.into(), now_ms);
    }

    /// The pool's workers computed so many tokens (prompt and output) since the last call.
    pub fn observe_tokens(&mut self, tokens: u64, now_ms: u64) {
        self.rates.tokens(tokens, now_ms);
    }

    /// How long a run would wait if it came now; 0 while seats are free for all that would go before it, and before anything
    /// was measured.
    pub fn estimate_ms(
        &self,
        tenant: &T,
        priority: Priority,
        prompt_tokens: u32,
        now_ms: u64,
    ) -> u64 {
        self.wait_ms(
            tenant,
            priority,
            self.config.class_of(prompt_tokens),
            now_ms,
        )
    }

    /// When the next waiting run expires.
    pub fn next_expiry_ms(&self) -> Option<u64> {
        self.by_expiry.first().map(|(at, _)| *at)
    }

    /// How many wait.
    pub fn depths(&self) -> Depths {
        self.depths
    }

    /// The bounds.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Of the least urgent priority below this one, the youngest run of whoever has most waiting.
    fn least_urgent(&self, priority: Priority) -> Option<u64> {
        let below = &self.fair[priority as usize + 1..];
        below.iter().rev().find_map(Fair::youngest_of_largest)
    }

    fn expire(&mut self, now_ms: u64) -> Option<Expired<R>> {
        let (at, ticket) = self.by_expiry.first().copied()?;
        if at > now_ms {
            return None;
        }
        let waiting = self.take(ticket, now_ms).waiting;
        self.rates.set_waiting(!self.entries.is_empty(), now_ms);
        let why = match waiting.deadline_ms {
            Some(deadline) if deadline <= at => ExpiredWhy::Deadline,
            _ => ExpiredWhy::MaxWait,
        };
        Some(Expired {
            run: waiting.run,
            ticket: Ticket(ticket),
            waited_ms: now_ms.saturating_sub(waiting.enqueued_at_ms),
            why,
        })
    }

    /// The first run, in the order of service, that fits. One that does not fit lets a bounded number of others pass.
    fn choose(&mut self, now_ms: u64, capacity: &Capacity) -> Option<u64> {
        let mut passed = Vec::new();
        let mut chosen = None;
        'search: for level in self.order(now_ms) {
            for ticket in self.fair[level].candidates() {
                let entry = &self.entries[&ticket];
                if self.seats_for(&entry.waiting.tenant) == 0 {
                    continue;
                }
                if entry.weight.tokens <= capacity.kv_tokens {
                    chosen = Some(ticket);
                    break 'search;
                }
                let is_next = entry.passed >= self.config.max_passed;
                passed.push(ticket);
                if is_next {
                    break 'search;
                }
            }
        }
        self.is_tight = chosen.is_none() && !passed.is_empty();
        if chosen.is_some() {
            for ticket in passed {
                if let Some(entry) = self.entries.get_mut(&ticket) {
                    entry.passed += 1;
                }
            }
        }
        chosen
    }

    /// How long the run that has waited longest has waited.
    pub fn oldest_ms(&self, now_ms: u64) -> u64 {
        let first = self.by_priority.iter().filter_map(|level| level.first());
        let since = first.map(|ticket| self.entries[ticket].waiting.enqueued_at_ms);
        since.min().map_or(0, |since| now_ms.saturating_sub(since))
    }

    /// Priorities in the order of service. One that got nothing for `aging_ms` while someone waited counts one better, and goes
    /// before those it drew level with: once, because being served ends its claim.
    fn order(&self, now_ms: u64) -> Vec<usize> {
        let mut order: Vec<(usize, usize, usize)> = (0..Priority::COUNT)
            .filter_map(|level| {
                let oldest = self.by_priority[level].first()?;
                let since = self.entries[oldest]
                    .waiting
                    .enqueued_at_ms
                    .max(self.served_ms[level]);
                let raised = now_ms.saturating_sub(since) / self.config.aging_ms.max(1);
                let raised = usize::try_from(raised).unwrap_or(usize::MAX);
                Some((level.saturating_sub(raised), Priority::COUNT - level, level))
            })
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, _, level)| level).collect()
    }

    fn insert(&mut self, waiting: Waiting<R, T>, class: usize) -> Ticket {
        let ticket = self.tickets;
        self.tickets += 1;
        let level = waiting.priority as usize;
        let output = self.rates.expected_output(class, waiting.ceiling);
        let weight = Weight {
            tokens: u64::from(waiting.prompt_tokens) + output,
            us: self
                .rates
                .seat_us(class, waiting.prompt_tokens, waiting.ceiling),
        };
        let now_ms = waiting.enqueued_at_ms;
        let patience = waiting.enqueued_at_ms.saturating_add(waiting.max_wait_ms);
        let expires_ms = waiting.deadline_ms.map_or(patience, |at| at.min(patience));
        self.by_expiry.insert((expires_ms, ticket));
        self.by_priority[level].insert(ticket);
        self.fair[level].add(&waiting.tenant, class, ticket, weight, now_ms);
        self.depths.total += 1;
        self.depths.per_priority[level] += 1;
        self.depths.per_class[level][class] += 1;
        let entry = Entry {
            waiting,
            class,
            weight,
            expires_ms,
            passed: 0,
        };
        self.entries.insert(ticket, entry);
        Ticket(ticket)
    }

    fn take(&mut self, ticket: u64, now_ms: u64) -> Entry<R, T> {
        let entry = self.entries.remove(&ticket).expect("the run waits");
        let level = entry.waiting.priority as usize;
        self.by_expiry.remove(&(entry.expires_ms, ticket));
        self.by_priority[level].remove(&ticket);
        let (tenant, weight) = (&entry.waiting.tenant, entry.weight);
        self.fair[level].remove(tenant, entry.class, ticket, weight, now_ms);
        self.depths.total -= 1;
        self.depths.per_priority[level] -= 1;
        self.depths.per_class[level][entry.class] -= 1;
        entry
    }
}

#[cfg(test)]
mod tests;
