//! Fairness between the tenants of one priority: start-time fair queueing by tokens.
//!
//! Each tenant has a virtual time that advances by the tokens it was given; the one that is furthest behind goes next. It
//! shares like deficit round robin (between two tenants that always wait, the tokens given differ by at most the two largest
//! runs), without walking round an idle ring.

use std::collections::{BTreeMap, BTreeSet};

use crate::estimate::{Arrivals, Work};
use crate::types::CLASSES;

/// What a run weighs: the tokens it is charged with, and the seat time it is expected to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    pub(crate) tokens: u64,
    pub(crate) us: u64,
}

/// A tenant's runs that wait, and what it was given.
#[derive(Debug, Default)]
struct Share {
    /// By class, oldest first.
    queues: [BTreeSet<u64>; CLASSES],
    /// Expected tokens and seat time of all of them, by class.
    tokens: [u64; CLASSES],
    us: [u64; CLASSES],
    /// Virtual time: tokens given.
    time: u64,
    /// What is left of this round for each class.
    credits: [u32; CLASSES],
    /// What it sent of late, by class.
    arrivals: [Arrivals; CLASSES],
}

impl Share {
    fn runs(&self) -> u64 {
        self.queues.iter().map(|queue| queue.len() as u64).sum()
    }

    fn tokens(&self) -> u64 {
        self.tokens.iter().sum()
    }

    fn work(&self) -> Work {
        Work {
            runs: self.runs(),
            us: self.us.iter().sum(),
        }
    }

    /// What waits of a class and what comes of it within so many ms: tokens and work.
    fn of_class(&self, class: usize, (horizon_ms, now_ms): (u64, u64)) -> (u64, Work) {
        let coming = self.arrivals[class].within(horizon_ms, now_ms);
        let mut work = coming.work;
        work.add(Work {
            runs: self.queues[class].len() as u64,
            us: self.us[class],
        });
        (self.tokens[class] + coming.tokens, work)
    }

    /// Tokens and work of this tenant that go before a newcomer of a class: what waits of its class, and of the others what their
    /// weights give them until then.
    fn ahead_of(&self, class: usize, weights: &[u32; CLASSES], horizon: (u64, u64)) -> (u64, Work) {
        let runs = self.queues[class].len() as u64;
        let mut tokens = self.tokens[class];
        let mut work = Work {
            runs,
            us: self.us[class],
        };
        for other in (0..CLASSES).filter(|other| *other != class) {
            let (all_tokens, all) = self.of_class(other, horizon);
            let turns = (runs + 1) * u64::from(weights[other]) / u64::from(weights[class]).max(1);
            let part = all.runs.min(turns);
            tokens += all_tokens * part / all.runs.max(1);
            work.add(Work {
                runs: part,
                us: all.us * part / all.runs.max(1),
            });
        }
        (tokens, work)
    }

    /// What this tenant is given until its virtual time reaches `tag`, if it goes on sending as of late.
    fn until(&self, tag: u64, horizon: (u64, u64)) -> Work {
        let (mut tokens, mut work) = (0, Work::default());
        for class in 0..CLASSES {
            let (more, of_class) = self.of_class(class, horizon);
            tokens += more;
            work.add(of_class);
        }
        if work.runs == 0 || tokens == 0 || self.time > tag {
            return Work::default();
        }
        // Whole runs: the last one may go beyond the tag.
        let each = (tokens / work.runs).max(1);
        let runs = (tag - self.time).div_ceil(each).max(1).min(work.runs);
        Work {
            runs,
            us: work.us * runs / work.runs,
        }
    }

    /// Heads of the class queues, the class whose turn it is first.
    fn heads(&self) -> impl Iterator<Item = u64> {
        let with = (0..CLASSES).filter(|class| self.credits[*class] > 0);
        let without = (0..CLASSES).filter(|class| self.credits[*class] == 0);
        with.chain(without)
            .filter_map(|class| self.queues[class].first().copied())
    }
}

/// The tenants of one priority.
#[derive(Debug)]
pub(crate) struct Fair<T> {
    shares: BTreeMap<T, Share>,
    /// Virtual time of the tenant served last: where a newcomer begins, so that absence earns nothing.
    time: u64,
    /// What all of them sent of late.
    arrivals: Arrivals,
    removals: u32,
}

/// So many removals pay for one look through all tenants.
const SWEEP: u32 = 64;

impl<T: Clone + Ord> Fair<T> {
    pub(crate) fn new() -> Self {
        Self {
            shares: BTreeMap::new(),
            time: 0,
            arrivals: Arrivals::default(),
            removals: 0,
        }
    }

    pub(crate) fn add(
        &mut self,
        tenant: &T,
        class: usize,
        ticket: u64,
        weight: Weight,
        now_ms: u64,
    ) {
        let share = self.shares.entry(tenant.clone()).or_default();
        if share.runs() == 0 {
            share.time = share.time.max(self.time);
        }
        share.queues[class].insert(ticket);
        share.tokens[class] += weight.tokens;
        share.us[class] += weight.us;
        share.arrivals[class].add(weight.tokens, weight.us, now_ms);
        self.arrivals.add(weight.tokens, weight.us, now_ms);
    }

    pub(crate) fn remove(
        &mut self,
        tenant: &T,
        class: usize,
        ticket: u64,
        weight: Weight,
        now_ms: u64,
    ) {
        let share = self.shares.get_mut(tenant).expect("its run waits");
        assert!(
            share.queues[class].remove(&ticket),
            "a run left a queue it was not in"
        );
        share.tokens[class] -= weight.tokens;
        share.us[class] -= weight.us;
        self.removals += 1;
        if self.removals >= SWEEP {
            self.removals = 0;
            let now = self.time;
            // A tenant that is ahead is remembered until the others caught up, one that sends until it is quiet.
            self.shares.retain(|_, share| {
                let sends = share.arrivals.iter().any(|sent| !sent.is_quiet(now_ms));
                share.runs() > 0 || share.time > now || sends
            });
        }
    }

    /// Charges a run that goes.
    pub(crate) fn charge(
        &mut self,
        tenant: &T,
        class: usize,
        tokens: u64,
        weights: &[u32; CLASSES],
    ) {
        let share = self.shares.get_mut(tenant).expect("its run waits");
        self.time = self.time.max(share.time);
        share.time += tokens;
        let has_credit = |share: &Share, class: usize| {
            share.credits[class] > 0 && !share.queues[class].is_empty()
        };
        if !(0..CLASSES).any(|class| has_credit(share, class)) {
            share.credits = *weights;
        }
        share.credits[class] = share.credits[class].saturating_sub(1);
    }

    /// Candidates in the order of service: the tenant furthest behind first, and of each tenant one per class.
    pub(crate) fn candidates(&self) -> Vec<u64> {
        let mut order: Vec<(u64, &T, &Share)> = self
            .shares
            .iter()
            .filter(|(_, share)| share.runs() > 0)
            .map(|(tenant, share)| (share.time, tenant, share))
            .collect();
        order.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)));
        order
            .iter()
            .flat_map(|(_, _, share)| share.heads())
            .collect()
    }

    /// What goes before a newcomer of this tenant and class: of its own what has its turn first, and of every other tenant what
    /// it is given until then, if all go on sending as of late for the first of `horizon`'s two: ms, and now.
    pub(crate) fn ahead_of(
        &self,
        tenant: &T,
        class: usize,
        weights: &[u32; CLASSES],
        horizon: (u64, u64),
    ) -> Work {
        let own = self.shares.get(tenant);
        let (tokens, mut work) = own.map_or((0, Work::default()), |share| {
            share.ahead_of(class, weights, horizon)
        });
        let time = own.map_or(self.time, |share| match share.runs() {
            0 => share.time.max(self.time),
            _ => share.time,
        });
        let others = self.shares.iter().filter(|(other, _)| *other != tenant);
        for (_, share) in others {
            work.add(share.until(time + tokens, horizon));
        }
        work
    }

    /// Runs of a tenant that wait.
    pub(crate) fn runs_of(&self, tenant: &T) -> u64 {
        self.shares.get(tenant).map_or(0, Share::runs)
    }

    /// What waits.
    pub(crate) fn waiting(&self) -> Work {
        let mut work = Work::default();
        for share in self.shares.values() {
            work.add(share.work());
        }
        work
    }

    /// Seat time that came per second of late, in microseconds.
    pub(crate) fn arriving_us(&self, now_ms: u64) -> u64 {
        self.arrivals.within(1_000, now_ms).work.us
    }

    /// The youngest run of the tenant that has most waiting: whoever fills the queue makes room in it.
    pub(crate) fn youngest_of_largest(&self) -> Option<u64> {
        let largest = self
            .shares
            .values()
            .max_by_key(|share| (share.tokens(), share.runs()))?;
        largest
            .queues
            .iter()
            .filter_map(|queue| queue.last().copied())
            .max()
    }
}
