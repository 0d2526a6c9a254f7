//! Clients that ask one after the other for as long as a story takes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use serde_json::{Value, json};
use weir_e2e::Client;

use crate::stage::Stage;

/// Clients at each gateway.
const CLIENTS: usize = 4;
/// Failures whose words are kept.
const KEPT: usize = 20;

/// What clients saw.
#[derive(Default)]
pub(crate) struct Load {
    stop: AtomicBool,
    asked: AtomicUsize,
    answered: AtomicU64,
    failures: Mutex<Vec<String>>,
    versions: Mutex<std::collections::BTreeSet<u64>>,
}

impl Load {
    /// Clients that ask for two tokens, never the same twice.
    pub(crate) fn during(stage: &Stage, story: impl FnOnce(&Self)) -> Self {
        let body = |place: usize| {
            let input = format!("hello {place}");
            json!({"model": "random", "input": input, "maxOutputTokens": 2})
        };
        Self::telling(stage, &body, story)
    }

    /// Clients that ask these prompts in turn, and read whole answers.
    pub(crate) fn asking(stage: &Stage, prompts: &[&str], story: impl FnOnce(&Self)) -> Self {
        let body = |place: usize| {
            let input = prompts[place % prompts.len()];
            json!({"model": "random", "input": input, "maxOutputTokens": 16, "sampling": {"temperature": 0}})
        };
        Self::telling(stage, &body, story)
    }

    fn telling(
        stage: &Stage,
        body: &(dyn Fn(usize) -> Value + Sync),
        story: impl FnOnce(&Self),
    ) -> Self {
        let load = Self::default();
        let clients = stage.clients();
        std::thread::scope(|scope| {
            for client in clients.iter().cycle().take(CLIENTS * clients.len()) {
                scope.spawn(|| load.ask(client, body));
            }
            let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| story(&load)));
            load.stop.store(true, Ordering::Relaxed);
            if let Err(panic) = told {
                eprintln!("meanwhile {:?}", load.failures());
                std::panic::resume_unwind(panic);
            }
        });
        load
    }

    fn ask(&self, client: &Client, body: &(dyn Fn(usize) -> Value + Sync)) {
        while !self.stop.load(Ordering::Relaxed) {
            let place = self.asked.fetch_add(1, Ordering::Relaxed);
            match self.answer(client, &body(place)) {
                Ok(()) => drop(self.answered.fetch_add(1, Ordering::Relaxed)),
                Err(failure) => {
                    let mut failures = self.failures.lock().unwrap();
                    if failures.len() < KEPT {
                        failures.push(failure);
                    }
                }
            }
        }
    }

    fn answer(&self, client: &Client, body: &Value) -> Result<(), String> {
        let reply = client.post("/inference", body);
        let reply = reply.map_err(|error| format!("{error:#}"))?;
        if reply.status != 202 {
            return Err(format!("{} {}", reply.status, reply.body));
        }
        let version = reply.body["modelVersion"].as_u64().unwrap_or(0);
        self.versions.lock().unwrap().insert(version);
        let events = client.all_events(&reply.run_id(), 0);
        let events = events.map_err(|error| format!("{error:#}"))?;
        match events.last() {
            Some(end) if end.kind == "completed" => Ok(()),
            end => Err(format!("ended with {end:?}")),
        }
    }

    /// Requests that were answered whole.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// What became of the others.
    pub(crate) fn failures(&self) -> Vec<String> {
        self.failures.lock().unwrap().clone()
    }

    /// Versions that answered somebody.
    pub(crate) fn versions(&self) -> Vec<u64> {
        self.versions.lock().unwrap().iter().copied().collect()
    }
}
