//! Runs that wait for a worker: one line for each model version. Who goes next is decided by `weir_admission`; this file keeps the jobs.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;
use weir_admission::{
    Admission, Capacity, Config, Decision, ExpiredWhy, Finished, Offered, Refused, Ticket, Waiting,
};
use weir_run::RunId;

use crate::core::{QUEUE_WAIT, SHED};
use crate::hub::Intent;
use crate::link::Job;
use crate::snapshot::{Pool, ServedVersion};

/// Lines of all versions. Cloning shares them.
#[derive(Clone)]
pub(crate) struct Queues {
    lines: Arc<Mutex<HashMap<String, Line>>>,
    begun: Instant,
}

struct Line {
    pool: String,
    admission: Admission<RunId, String>,
    /// Places in the line, and whose they are.
    tickets: HashMap<RunId, (Ticket, String)>,
    /// Waiting runs that are durable. A place without a job is of a run that is being admitted.
    jobs: HashMap<RunId, Box<Job>>,
    /// Runs whose turn came before they were durable: a seat is kept for each.
    granted: HashMap<RunId, String>,
    /// Runs that had their turn already.
    returning: VecDeque<Box<Job>>,
    /// Runs that were shed before they were durable.
    shed: HashSet<RunId>,
}

/// A place in a line, given back unless it is used.
pub(crate) struct Slot {
    queues: Queues,
    digest: String,
    run: RunId,
    pub(crate) max_wait_ms: u64,
    /// How long it is expected to wait.
    pub(crate) estimate_ms: u64,
    used: bool,
}

/// What a run brings to the line.
pub(crate) struct Newcomer<'a> {
    pub(crate) run: RunId,
    pub(crate) tenant: &'a str,
    pub(crate) priority: weir_admission::Priority,
    pub(crate) prompt_tokens: u64,
    pub(crate) ceiling: u64,
    pub(crate) max_wait_ms: u64,
    /// From now.
    pub(crate) deadline_in_ms: Option<u64>,
}

/// What is to be done next.
pub(crate) enum Next {
    /// Send it to a worker.
    Start(Box<Job>),
    /// End it: it waited too long.
    Expired(Box<Job>, ExpiredWhy),
}

impl Default for Queues {
    fn default() -> Self {
        Self {
            lines: Arc::default(),
            begun: Instant::now(),
        }
    }
}

impl Line {
    fn new(pool: &str, config: Config) -> Self {
        Self {
            pool: pool.to_owned(),
            admission: Admission::new(config),
            tickets: HashMap::new(),
            jobs: HashMap::new(),
            granted: HashMap::new(),
            returning: VecDeque::new(),
            shed: HashSet::new(),
        }
    }

    /// A run lost its place to a more urgent one: its job, if it is durable. If not, it learns of it when it is.
    fn shed(&mut self, run: RunId) -> Option<Box<Job>> {
        self.tickets.remove(&run);
        let job = self.jobs.remove(&run);
        if job.is_none() {
            self.shed.insert(run);
        }
        job
    }

    fn is_empty(&self) -> bool {
        self.tickets.is_empty() && self.returning.is_empty() && self.granted.is_empty()
    }
}

impl Queues {
    /// Milliseconds on a clock that no one can set.
    pub(crate) fn now_ms(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    /// Takes a place in the line of a version, or says why there is none. A less urgent run that was shed for it comes with the place:
    /// it is to be ended.
    pub(crate) fn offer(
        &self,
        version: &ServedVersion,
        pool: &Pool,
        newcomer: &Newcomer<'_>,
    ) -> Result<(Slot, Option<Box<Job>>), Refused> {
        let now = self.now_ms();
        let config = config(pool);
        let mut lines = self.lines.lock();
        let line = lines
            .entry(version.digest.clone())
            .or_insert_with(|| Line::new(&pool.name, config.clone()));
        if *line.admission.config() != config && line.is_empty() {
            *line = Line::new(&pool.name, config);
        }
        let offered = line.admission.offer(Waiting {
            run: newcomer.run,
            tenant: newcomer.tenant.to_owned(),
            priority: newcomer.priority,
            prompt_tokens: u32::try_from(newcomer.prompt_tokens).unwrap_or(u32::MAX),
            ceiling: u32::try_from(newcomer.ceiling).unwrap_or(u32::MAX),
            max_wait_ms: newcomer.max_wait_ms,
            deadline_ms: newcomer.deadline_in_ms.map(|left| now.saturating_add(left)),
            enqueued_at_ms: now,
        })?;
        let Offered {
            ticket,
            estimate_ms,
            displaced,
        } = offered;
        let place = (ticket, newcomer.tenant.to_owned());
        line.tickets.insert(newcomer.run, place);
        let shed = displaced.and_then(|run| line.shed(run));
        let slot = Slot {
            queues: self.clone(),
            digest: version.digest.clone(),
            run: newcomer.run,
            max_wait_ms: newcomer.max_wait_ms,
            estimate_ms,
            used: false,
        };
        Ok((slot, shed))
    }

    /// The run is durable: from now on it can go. Gives it back where it lost its place meanwhile, with the reason.
    pub(crate) fn push(&self, mut slot: Slot, job: Box<Job>) -> Result<(), (Box<Job>, Intent)> {
        let mut lines = self.lines.lock();
        let Some(line) = lines.get_mut(&slot.digest) else {
            return Err((job, QUEUE_WAIT));
        };
        let outcome = if line.granted.remove(&slot.run).is_some() {
            line.returning.push_back(job);
            Ok(())
        } else if line.tickets.contains_key(&slot.run) {
            line.jobs.insert(slot.run, job);
            Ok(())
        } else if line.shed.remove(&slot.run) {
            Err((job, SHED))
        } else {
            Err((job, QUEUE_WAIT))
        };
        slot.used = true;
        outcome
    }

    /// Queues a run again that had its turn, before all others.
    pub(crate) fn push_front(&self, pool: &str, job: Box<Job>) {
        let mut lines = self.lines.lock();
        lines
            .entry(job.digest().to_owned())
            .or_insert_with(|| Line::new(pool, Config::default()))
            .returning
            .push_front(job);
    }

    /// Seats that are kept for tenants who have fewer than that, and how many each has.
    pub(crate) fn hold_back(&self, digest: &str, reserved: u32, mut held: BTreeMap<String, u32>) {
        if let Some(line) = self.lines.lock().get_mut(digest) {
            for tenant in line.granted.values() {
                *held.entry(tenant.clone()).or_default() += 1;
            }
            line.admission.hold_back(reserved, held);
        }
    }

    /// What to do next for a version whose workers have this much room.
    pub(crate) fn next(&self, digest: &str, room: &Capacity) -> Option<Next> {
        let now = self.now_ms();
        let mut lines = self.lines.lock();
        let line = lines.get_mut(digest)?;
        let kept = line.granted.len() as u32;
        let mut room = *room;
        room.seats = room.seats.saturating_sub(kept);
        if room.seats > 0
            && let Some(job) = line.returning.pop_front()
        {
            return Some(Next::Start(job));
        }
        loop {
            match line.admission.next(now, &room)? {
                Decision::Start(started) => {
                    let place = line.tickets.remove(&started.run);
                    if let Some(job) = line.jobs.remove(&started.run) {
                        return Some(Next::Start(job));
                    }
                    let tenant = place.map(|(_, tenant)| tenant).unwrap_or_default();
                    line.granted.insert(started.run, tenant);
                    room.seats -= 1;
                }
                Decision::Expired(expired) => {
                    line.tickets.remove(&expired.run);
                    if let Some(job) = line.jobs.remove(&expired.run) {
                        return Some(Next::Expired(job, expired.why));
                    }
                }
            }
        }
    }

    /// Takes a waiting run out.
    pub(crate) fn remove(&self, run: RunId) -> Option<Box<Job>> {
        let now = self.now_ms();
        let mut lines = self.lines.lock();
        lines.values_mut().find_map(|line| {
            if let Some(job) = line.jobs.remove(&run) {
                if let Some((ticket, _)) = line.tickets.remove(&run) {
                    line.admission.cancel(ticket, now);
                }
                return Some(job);
            }
            let place = line
                .returning
                .iter()
                .position(|job| job.writer.id() == run)?;
            line.returning.remove(place)
        })
    }

    /// A run of this version ended on its worker.
    pub(crate) fn finished(&self, digest: &str, finished: &Finished) {
        let now = self.now_ms();
        if let Some(line) = self.lines.lock().get_mut(digest) {
            line.admission.observe_finished(finished, now);
        }
    }

    /// This version's workers computed so many tokens more.
    pub(crate) fn computed(&self, digest: &str, tokens: u64) {
        let now = self.now_ms();
        if let Some(line) = self.lines.lock().get_mut(digest) {
            line.admission.observe_tokens(tokens, now);
        }
    }

    /// Runs that wait for a pool's workers.
    pub(crate) fn depth(&self, pool: &str) -> usize {
        let lines = self.lines.lock();
        let of_pool = lines.values().filter(|line| line.pool == pool);
        of_pool
            .map(|line| line.jobs.len() + line.returning.len())
            .sum()
    }

    /// Runs that wait for workers of a version.
    pub(crate) fn waiting(&self, digest: &str) -> usize {
        let lines = self.lines.lock();
        let of_version = lines.get(digest);
        of_version.map_or(0, |line| line.jobs.len() + line.returning.len())
    }

    /// How long the run has waited that has waited longest for a pool's workers.
    pub(crate) fn oldest_ms(&self, pool: &str) -> u64 {
        let now = self.now_ms();
        let lines = self.lines.lock();
        let of_pool = lines.values().filter(|line| line.pool == pool);
        of_pool
            .map(|line| line.admission.oldest_ms(now))
            .max()
            .unwrap_or(0)
    }

    /// Of each line: its version's digest, its pool, and how many runs of each priority wait.
    pub(crate) fn depths(&self) -> Vec<(String, String, [u32; 3])> {
        let lines = self.lines.lock();
        let lines = lines.iter();
        lines
            .map(|(digest, line)| {
                let depths = line.admission.depths().per_priority;
                (digest.clone(), line.pool.clone(), depths)
            })
            .collect()
    }

    pub(crate) fn digests(&self) -> Vec<String> {
        self.lines.lock().keys().cloned().collect()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.used {
            return;
        }
        let now = self.queues.now_ms();
        if let Some(line) = self.queues.lines.lock().get_mut(&self.digest) {
            line.granted.remove(&self.run);
            line.shed.remove(&self.run);
            if let Some((ticket, _)) = line.tickets.remove(&self.run) {
                line.admission.cancel(ticket, now);
            }
        }
    }
}

/// Each priority has the bound that the pool gives it; all together have twice the largest of them, and beyond that the least urgent
/// are shed for more urgent ones. Medium prompts may take three quarters of a priority's places and long ones half, so that places are
/// left for short ones however many long ones come.
fn config(pool: &Pool) -> Config {
    let depths = pool.queues.map(|queue| queue.max_depth);
    let most = depths.into_iter().max().unwrap_or(0);
    let part = |of: u32, quarters: u32| (u64::from(of) * u64::from(quarters)).div_ceil(4) as u32;
    Config {
        max_depth: most.saturating_mul(2),
        max_depth_per_priority: depths,
        max_depth_per_class: [most, part(most, 3), part(most, 2)],
        class_bounds: pool.class_bounds,
        ..Config::default()
    }
}
