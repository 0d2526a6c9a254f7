//! Clients that do what clients do, from a seed: submit, repeat, leave, come back, cancel, ask for what is not theirs. Every call is
//! recorded. The same load runs against processes and against a gateway in the test's own process.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::Seeded;
use crate::checker::{Call, History, Recording, What};

/// Inputs that are asked for again and again, so that equal payloads meet.
const INPUTS: [&str; 3] = ["count", "hello there", "name a colour"];

/// A load that outlives the gateways it meets.
#[derive(Debug)]
pub struct Load {
    /// What its clients saw.
    pub history: History,
    model: &'static str,
    output_tokens: u64,
    tenants: [&'static str; 2],
    keys: AtomicU64,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// By run: whose it is and the last event seen.
    runs: BTreeMap<String, (usize, u64)>,
    /// By key: whose it is, its body, and whether anybody was told of its run.
    keys: BTreeMap<String, (usize, Value, bool)>,
}

impl Load {
    /// Asks for runs of `model` with up to so many tokens, for two tenants.
    pub fn new(model: &'static str, output_tokens: u64, tenants: [&'static str; 2]) -> Self {
        Self {
            history: History::default(),
            model,
            output_tokens,
            tenants,
            keys: AtomicU64::new(0),
            known: Mutex::default(),
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs that clients know, with the last event each saw.
    pub fn runs(&self) -> Vec<(String, u64)> {
        let known = self.known();
        let runs = known.runs.iter();
        runs.map(|(run, (_, last))| (run.clone(), *last)).collect()
    }

    /// One client: acts until told to stop, or until nobody answers.
    pub fn act(&self, base: &str, seed: u64, stop: &AtomicBool) {
        let mut random = Seeded(seed);
        let clients = self.tenants.map(|tenant| self.history.client(base, tenant));
        while !stop.load(Ordering::Relaxed) {
            let who = usize::from(random.below(4) == 0);
            let call = match random.below(100) {
                0..40 => Some(self.new_run(&clients, who, &mut random, true)),
                40..45 => self.change_of_mind(&clients, who, &mut random),
                45..60 => Some(self.new_run(&clients, who, &mut random, false)),
                60..70 => self.repeat(&clients, &mut random),
                70..80 => self.come_back(&clients, &mut random),
                80..88 => self.one_run(&clients, &mut random, Recording::cancel),
                88..92 => self.one_run(&clients, &mut random, Recording::row),
                92..96 => self.foreign(&clients, &mut random),
                _ => Some(clients[who].usage()),
            };
            if call.is_some_and(|call| call.status == 0) {
                return;
            }
        }
    }

    fn body(&self, random: &mut Seeded, key: &str) -> Value {
        let input = INPUTS[usize::try_from(random.below(3)).unwrap_or(0)];
        let most = 1 + self.output_tokens / 2 * (1 + random.below(2));
        json!({"model": self.model, "input": input, "maxOutputTokens": most, "requestKey": key,
            "sampling": {"temperature": 0.0, "ignoreEos": true}})
    }

    fn new_run(
        &self,
        clients: &[Recording; 2],
        who: usize,
        random: &mut Seeded,
        streams: bool,
    ) -> Call {
        let key = format!("key-{}", self.keys.fetch_add(1, Ordering::Relaxed));
        let body = self.body(random, &key);
        let place = (who, body.clone(), false);
        self.known().keys.insert(key.clone(), place);
        // Some leave in the middle of the stream and come back later.
        let leave = if random.below(3) == 0 {
            1 + random.below(20)
        } else {
            u64::MAX
        };
        let call = if streams {
            clients[who].submit_and_read(&body, |event| event.id < leave)
        } else {
            clients[who].submit(&body)
        };
        self.note(who, Some(&key), &call);
        call
    }

    /// Starts a run and cancels it at once, or a moment later.
    fn change_of_mind(
        &self,
        clients: &[Recording; 2],
        who: usize,
        random: &mut Seeded,
    ) -> Option<Call> {
        let call = self.new_run(clients, who, random, false);
        let run = call.run.clone().filter(|_| call.status == 202)?;
        std::thread::sleep(Duration::from_millis(random.below(6)));
        Some(clients[who].cancel(&run))
    }

    /// The same key again; now and then with another payload.
    fn repeat(&self, clients: &[Recording; 2], random: &mut Seeded) -> Option<Call> {
        let (key, (who, mut body, _)) = {
            let known = self.known();
            let place = random.below(known.keys.len().max(1) as u64);
            let (key, of) = known.keys.iter().nth(usize::try_from(place).ok()?)?;
            (key.clone(), of.clone())
        };
        if random.below(5) == 0 {
            body["input"] = json!("something else");
            return Some(clients[who].submit(&body)).filter(|call| call.status != 202);
        }
        let call = clients[who].submit(&body);
        self.note(who, Some(&key), &call);
        Some(call)
    }

    fn pick(&self, random: &mut Seeded) -> Option<(String, usize, u64)> {
        let known = self.known();
        // Mostly the newest: those are live.
        let count = known.runs.len() as u64;
        let reach = if random.below(4) == 0 { count } else { 12 };
        let back = random.below(reach.max(1));
        let place = usize::try_from(count.checked_sub(1 + back)?).ok()?;
        let (run, (who, last)) = known.runs.iter().nth(place)?;
        Some((run.clone(), *who, *last))
    }

    fn come_back(&self, clients: &[Recording; 2], random: &mut Seeded) -> Option<Call> {
        let (run, who, last) = self.pick(random)?;
        let after = if random.below(2) == 0 {
            last
        } else {
            random.below(last + 1)
        };
        let call = clients[who].read(&run, after, |_| true);
        self.note(who, None, &call);
        Some(call)
    }

    fn one_run(
        &self,
        clients: &[Recording; 2],
        random: &mut Seeded,
        act: fn(&Recording, &str) -> Call,
    ) -> Option<Call> {
        let (run, who, _) = self.pick(random)?;
        Some(act(&clients[who], &run))
    }

    /// Asks for a run of the other tenant.
    fn foreign(&self, clients: &[Recording; 2], random: &mut Seeded) -> Option<Call> {
        let (run, who, _) = self.pick(random)?;
        let other = &clients[1 - who];
        Some(match random.below(3) {
            0 => other.row(&run),
            1 => other.cancel(&run),
            _ => other.read(&run, 0, |event| event.id < 3),
        })
    }

    fn note(&self, who: usize, key: Option<&str>, call: &Call) {
        let Some(run) = call
            .run
            .as_ref()
            .filter(|_| matches!(call.status, 200 | 202))
        else {
            return;
        };
        let mut known = self.known();
        let last = call.events.last().map_or(0, |event| event.id);
        let seen = known.runs.entry(run.clone()).or_insert((who, 0));
        seen.1 = seen.1.max(last);
        if let Some(of) = key.and_then(|key| known.keys.get_mut(key)) {
            of.2 = true;
        }
    }

    /// Asks again with every key whose answer was cut off: the run that a dead gateway had accepted has it, or nobody.
    pub fn ask_again(&self, base: &str) {
        let clients = self.tenants.map(|tenant| self.history.client(base, tenant));
        let unheard: Vec<(String, usize, Value)> = {
            let known = self.known();
            let unheard = known.keys.iter().filter(|(_, (.., told))| !told);
            unheard
                .map(|(key, (who, body, _))| (key.clone(), *who, body.clone()))
                .collect()
        };
        for (key, who, body) in unheard {
            let call = clients[who].submit(&body);
            self.note(who, Some(&key), &call);
        }
    }

    /// Waits until no run of its tenants is live, then reads the newest `most` runs from their beginning, each a second time from the
    /// middle.
    ///
    /// # Errors
    /// Runs are still live after `within`.
    pub fn finish(&self, base: &str, within: Duration, most: usize) -> Result<()> {
        let clients = self.tenants.map(|tenant| self.history.client(base, tenant));
        let deadline = Instant::now() + within;
        for client in &clients {
            loop {
                let call = client.usage();
                let body = call.body.unwrap_or_default();
                if call.status == 200 && body["liveRuns"] == 0 {
                    break;
                }
                ensure!(
                    Instant::now() < deadline,
                    "{} has live runs after {within:?}: {body}",
                    client.tenant()
                );
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let runs: Vec<(String, usize)> = {
            let known = self.known();
            let newest = known.runs.iter().rev().take(most);
            newest.map(|(run, (who, _))| (run.clone(), *who)).collect()
        };
        for (run, who) in runs {
            let whole = clients[who].read(&run, 0, |_| true);
            let middle = whole.events.len() as u64 / 2;
            clients[who].read(&run, middle, |_| true);
            clients[who].row(&run);
        }
        Ok(())
    }
}

/// Runs that somebody saw begin, and nobody end, by the last event seen before a moment.
pub fn begun(history: &[Call]) -> Vec<String> {
    let mut last: BTreeMap<&str, &str> = BTreeMap::new();
    for call in history {
        if let (What::Submit { .. } | What::Read { .. }, Some(run), Some(event)) =
            (&call.what, &call.run, call.events.last())
        {
            let kind = last.entry(run).or_insert(&event.kind);
            if event.is_terminal() || *kind != "delta" {
                *kind = &event.kind;
            }
        }
    }
    let begun = last.into_iter().filter(|(_, kind)| *kind == "delta");
    begun.map(|(run, _)| run.to_owned()).collect()
}
