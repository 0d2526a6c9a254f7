//! A pool with a number of seats, and the runs that are sent to it.

use std::collections::{BTreeMap, BTreeSet};

use weir_admission::{
    Admission, Capacity, Config, Decision, Finished, Priority, Refused, Ticket, Waiting,
};

/// The generator `SplitMix64`.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        crate::splitmix::next(&mut self.0)
    }

    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        u32::try_from(self.next() % u64::from(bound)).unwrap()
    }

    pub(crate) fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) tenant: u32,
    pub(crate) priority: Priority,
    pub(crate) prompt_tokens: u32,
    pub(crate) ceiling: u32,
    pub(crate) output_tokens: u32,
    pub(crate) offered_ms: u64,
    pub(crate) estimate_ms: u64,
    pub(crate) max_wait_ms: u64,
}

impl Run {
    pub(crate) fn tokens(&self) -> u64 {
        u64::from(self.prompt_tokens) + u64::from(self.output_tokens)
    }

    /// A tenth of a millisecond per prompt token, ten per output token.
    pub(crate) fn service_ms(&self) -> u64 {
        u64::from(self.prompt_tokens) / 10 + u64::from(self.output_tokens) * 10
    }
}

pub(crate) struct Pool {
    pub(crate) admission: Admission<u32, u32>,
    pub(crate) seats: u32,
    pub(crate) now_ms: u64,
    pub(crate) next_run: u32,
    pub(crate) runs: BTreeMap<u32, Run>,
    pub(crate) waiting: BTreeMap<u32, Ticket>,
    /// (end, run)
    pub(crate) busy: BTreeSet<(u64, u32)>,
    /// (run, wait) of those that started.
    pub(crate) started: Vec<(u32, u64)>,
    pub(crate) expired: Vec<(u32, u64)>,
    pub(crate) displaced: Vec<u32>,
    pub(crate) refused: Vec<Refused>,
    pub(crate) lost: Vec<u32>,
    /// Seats for tenants who have fewer than that.
    pub(crate) reserved: u32,
}

impl Pool {
    pub(crate) fn new(config: Config, seats: u32) -> Self {
        Self {
            admission: Admission::new(config),
            seats,
            now_ms: 0,
            next_run: 0,
            runs: BTreeMap::new(),
            waiting: BTreeMap::new(),
            busy: BTreeSet::new(),
            started: Vec::new(),
            expired: Vec::new(),
            displaced: Vec::new(),
            refused: Vec::new(),
            lost: Vec::new(),
            reserved: 0,
        }
    }

    pub(crate) fn offer(&mut self, mut run: Run) {
        let id = self.next_run;
        self.next_run += 1;
        run.offered_ms = self.now_ms;
        let offered = self.admission.offer(Waiting {
            run: id,
            tenant: run.tenant,
            priority: run.priority,
            prompt_tokens: run.prompt_tokens,
            ceiling: run.ceiling,
            max_wait_ms: run.max_wait_ms,
            deadline_ms: None,
            enqueued_at_ms: self.now_ms,
        });
        match offered {
            Ok(offered) => {
                run.estimate_ms = offered.estimate_ms;
                self.waiting.insert(id, offered.ticket);
                if let Some(victim) = offered.displaced {
                    assert!(self.waiting.remove(&victim).is_some());
                    assert!(self.runs[&victim].priority > run.priority);
                    self.displaced.push(victim);
                }
                self.runs.insert(id, run);
            }
            Err(refused) => self.refused.push(refused),
        }
        self.dispatch();
    }

    pub(crate) fn dispatch(&mut self) {
        loop {
            if self.reserved > 0 {
                let mut held = BTreeMap::new();
                for (_, id) in &self.busy {
                    *held.entry(self.runs[id].tenant).or_default() += 1;
                }
                self.admission.hold_back(self.reserved, held);
            }
            let capacity = Capacity {
                seats: self
                    .seats
                    .saturating_sub(u32::try_from(self.busy.len()).unwrap()),
                total: self.seats,
                kv_tokens: 1 << 30,
            };
            match self.admission.next(self.now_ms, &capacity) {
                None => break,
                Some(Decision::Expired(expired)) => {
                    assert!(self.waiting.remove(&expired.run).is_some());
                    self.expired.push((expired.run, expired.waited_ms));
                }
                Some(Decision::Start(start)) => {
                    assert!(self.waiting.remove(&start.run).is_some());
                    let run = self.runs[&start.run];
                    assert_eq!(start.waited_ms, self.now_ms - run.offered_ms);
                    self.busy
                        .insert((self.now_ms + run.service_ms(), start.run));
                    self.started.push((start.run, start.waited_ms));
                }
            }
        }
        let depth = self.admission.depths().total as usize;
        assert_eq!(depth, self.waiting.len());
    }

    /// Lets time pass, with every end and every expiry at its time.
    pub(crate) fn advance_to(&mut self, until_ms: u64) {
        loop {
            let end = self.busy.first().map(|(at, _)| *at);
            let expiry = self.admission.next_expiry_ms();
            let Some(at) = end
                .into_iter()
                .chain(expiry)
                .min()
                .filter(|at| *at <= until_ms)
            else {
                break;
            };
            self.now_ms = at;
            if end == Some(at) {
                let (_, id) = self.busy.pop_first().unwrap();
                let run = self.runs[&id];
                let finished = Finished {
                    prompt_tokens: run.prompt_tokens,
                    output_tokens: run.output_tokens,
                    ceiling: run.ceiling,
                    service_ms: run.service_ms(),
                };
                self.admission.observe_finished(&finished, at);
                self.admission.observe_tokens(run.tokens(), at);
            }
            self.dispatch();
        }
        self.now_ms = until_ms;
    }

    /// A worker dies with so many seats and the runs on them.
    pub(crate) fn lose(&mut self, seats: u32) {
        self.seats -= seats;
        for _ in 0..seats {
            if let Some(lost) = self.busy.pop_last() {
                self.lost.push(lost.1);
            }
        }
        self.dispatch();
    }

    /// Of a tenant, not counting what started before anybody had to wait.
    pub(crate) fn tokens_started(&self, tenant: u32) -> u64 {
        let own = self
            .started
            .iter()
            .filter(|(id, wait)| self.runs[id].tenant == tenant && *wait > 0);
        own.map(|(id, _)| self.runs[id].tokens()).sum()
    }
}

pub(crate) fn run(random: &mut Random, tenant: u32, priority: Priority) -> Run {
    let ceiling = 20 + random.below(200);
    Run {
        tenant,
        priority,
        prompt_tokens: 20 + random.below(if tenant == 0 { 3_000 } else { 400 }),
        ceiling,
        output_tokens: 1 + random.below(ceiling),
        offered_ms: 0,
        estimate_ms: 0,
        max_wait_ms: 60_000,
    }
}
