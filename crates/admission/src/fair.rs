//! Fairness between the tenants of one priority: start-time fair queueing by tokens.
//!
//! Each tenant has a virtual time that advances by the tokens it was given; the one that is furthest behind goes next. It
//! shares like deficit round robin (between two tenants that always wait, the tokens given differ by at most the two largest
//! runs), without walking round an idle ring.

use std::collections::{BTreeMap, BTreeSet};

use crate::types::CLASSES;

/// A tenant's runs that wait, and what it was given.
#[derive(Debug, Default)]
pub(crate) struct Share {
    /// By class, oldest first.
    pub(crate) queues: [BTreeSet<u64>; CLASSES],
    /// Expected tokens of all of them, by class.
    tokens: [u64; CLASSES],
    /// Virtual time: tokens given.
    time: u64,
    /// What is left of this round for each class.
    credits: [u32; CLASSES],
}

impl Share {
    pub(crate) fn runs(&self) -> usize {
        self.queues.iter().map(BTreeSet::len).sum()
    }

    pub(crate) fn tokens(&self) -> u64 {
        self.tokens.iter().sum()
    }

    /// (runs, tokens) of this tenant that go before a newcomer of a class: its class, and of the others what their weights
    /// give them until then.
    fn ahead_of(&self, class: usize, weights: &[u32; CLASSES]) -> (u64, u64) {
        let same = self.queues[class].len() as u64;
        (0..CLASSES).fold((0, 0), |(runs, tokens), other| {
            let all = self.queues[other].len() as u64;
            let turns = (same + 1) * u64::from(weights[other]) / u64::from(weights[class]).max(1);
            let before = if other == class { all } else { all.min(turns) };
            (
                runs + before,
                tokens + self.tokens[other] * before / all.max(1),
            )
        })
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
}

impl<T: Clone + Ord> Fair<T> {
    pub(crate) fn new() -> Self {
        Self {
            shares: BTreeMap::new(),
            time: 0,
        }
    }

    pub(crate) fn add(&mut self, tenant: &T, class: usize, ticket: u64, tokens: u64) {
        let share = self.shares.entry(tenant.clone()).or_default();
        if share.runs() == 0 {
            share.time = share.time.max(self.time);
        }
        share.queues[class].insert(ticket);
        share.tokens[class] += tokens;
    }

    pub(crate) fn remove(&mut self, tenant: &T, class: usize, ticket: u64, tokens: u64) {
        let share = self.shares.get_mut(tenant).expect("its run waits");
        assert!(
            share.queues[class].remove(&ticket),
            "a run left a queue it was not in"
        );
        share.tokens[class] -= tokens;
        let now = self.time;
        // A tenant that is ahead is remembered until the others caught up; one that is not has nothing to remember.
        self.shares
            .retain(|_, share| share.runs() > 0 || share.time > now);
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

    /// (runs, tokens) that go before a newcomer of this tenant and class with so many tokens: of its own those whose turn is
    /// first, and of every other tenant what it is given until then, which is at most as many tokens again.
    pub(crate) fn ahead_of(
        &self,
        tenant: &T,
        class: usize,
        tokens: u64,
        weights: &[u32; CLASSES],
    ) -> (u64, u64) {
        let own = self.shares.get(tenant);
        let (own_runs, own_tokens) = own.map_or((0, 0), |share| share.ahead_of(class, weights));
        let others = self.shares.iter().filter(|(other, _)| *other != tenant);
        others.fold((own_runs, own_tokens), |(runs, sum), (_, share)| {
            let before = share.tokens().min(own_tokens + tokens);
            let part = (share.runs() as u64 * before).div_ceil(share.tokens().max(1));
            (runs + part, sum + before)
        })
    }

    /// (runs, tokens) that wait.
    pub(crate) fn waiting(&self) -> (u64, u64) {
        self.shares.values().fold((0, 0), |(runs, tokens), share| {
            (runs + share.runs() as u64, tokens + share.tokens())
        })
    }
}
