//! Clients that read a run to its end over as many connections as it takes, as the contract tells them to.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::json;
use weir_e2e::{Client, Event};

/// How long one stream may take in all.
const WITHIN: Duration = Duration::from_mins(8);

/// What a client read of one run.
pub(super) struct Reading {
    pub(super) run: String,
    pub(super) events: Vec<Event>,
    pub(super) connections: u32,
}

impl Reading {
    /// Whether every event came once, in order, to the end, with so many tokens.
    pub(super) fn is_whole(&self, tokens: u64) -> bool {
        let in_order = self
            .events
            .iter()
            .zip(1..)
            .all(|(event, due)| event.id == due);
        let deltas = self.events.iter().filter(|event| event.kind == "delta");
        let made: u64 = deltas
            .filter_map(|event| event.json()["tokens"].as_u64())
            .sum();
        let ended = self
            .events
            .last()
            .is_some_and(|event| event.kind == "completed");
        in_order && ended && made == tokens
    }

    /// For the text of a failing test.
    pub(super) fn summary(&self) -> String {
        let ids: Vec<u64> = self.events.iter().map(|event| event.id).collect();
        let gaps: Vec<&[u64]> = ids
            .windows(2)
            .filter(|pair| pair[1] != pair[0] + 1)
            .collect();
        format!(
            "{}: {} events over {} connections, gaps at {gaps:?}, the last {:?}",
            self.run,
            ids.len(),
            self.connections,
            self.events.last()
        )
    }
}

/// Asks for exactly so many tokens and reads them all.
pub(super) fn read(client: &Client, key: &str, tokens: u64) -> Result<Reading> {
    let body = json!({
        "model": "random", "input": "count", "maxOutputTokens": tokens, "requestKey": key,
        "sampling": {"temperature": 0.0, "ignoreEos": true},
    });
    let started = Instant::now();
    let mut stream = client.stream(&body)?;
    let named = stream.headers.iter().find(|(name, _)| name == "x-run-id");
    let mut reading = Reading {
        run: named.context("a stream names its run")?.1.clone(),
        events: Vec::new(),
        connections: 1,
    };
    loop {
        while let Ok(Some(event)) = stream.next_event() {
            let is_last = event.is_terminal();
            reading.events.push(event);
            if is_last {
                return Ok(reading);
            }
        }
        // It broke off: on from the last event that came.
        let last = reading.events.last().map_or(0, |event| event.id);
        stream = loop {
            match client.events(&reading.run, last) {
                Ok(stream) => break stream,
                Err(error) if started.elapsed() > WITHIN => {
                    bail!("{}: {error:#}", reading.summary())
                }
                Err(_) => std::thread::sleep(Duration::from_millis(100)),
            }
        };
        reading.connections += 1;
    }
}

/// What became of short requests, one after another.
#[derive(Debug, Default)]
pub(super) struct Short {
    pub(super) answered: u32,
    pub(super) failed: Vec<String>,
}

/// Asks for a few tokens again and again, each time once, until it is over.
pub(super) fn short(client: &Client, is_over: &AtomicBool) -> Short {
    let mut short = Short::default();
    while !is_over.load(Ordering::Relaxed) {
        let key = format!("short-{}", short.answered as usize + short.failed.len());
        let body =
            json!({"model": "random", "input": "hi", "maxOutputTokens": 2, "requestKey": key});
        match client.post("/inference", &body) {
            Ok(reply) if reply.status < 300 => short.answered += 1,
            Ok(reply) => short
                .failed
                .push(format!("{} {}", reply.status, reply.body)),
            Err(error) => short.failed.push(format!("{error:#}")),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    short
}

/// How many tokens so many streams at once need to last so long, judged by shorter ones.
pub(super) fn that_last(client: &Client, streams: usize, long: Duration) -> u64 {
    const TRIED: u64 = 200;
    let started = Instant::now();
    std::thread::scope(|scope| {
        for number in 0..streams {
            scope.spawn(move || read(client, &format!("tried-{number}"), TRIED).unwrap());
        }
    });
    let took = started.elapsed().as_millis().max(1);
    let enough = u128::from(TRIED) * long.as_millis() / took;
    // A step takes longer the more tokens there are before it.
    u64::try_from(enough).unwrap_or(TRIED).clamp(TRIED, 8_000)
}
