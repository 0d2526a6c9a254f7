//! A client of any server that speaks `/v1/completions` with events.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use weir_e2e::Seeded;

use super::workload::{Group, Outcome, Timing, Workload};

/// Longest silence of a server.
const PATIENCE: Duration = Duration::from_mins(2);

/// Where to ask, and as whom.
pub(super) struct Server {
    /// HOST:PORT
    pub(super) address: String,
    pub(super) key: Option<String>,
    pub(super) model: &'static str,
}

/// Asks until the server has answered once.
pub(super) fn first_token(server: &Server, begun: Instant) -> Result<()> {
    loop {
        let mut timing = Timing::default();
        match stream(server, &words(8, 1), 1, (begun, &mut timing)) {
            Ok(()) => return Ok(()),
            Err(error) if begun.elapsed() > PATIENCE => {
                return Err(error.context("the server does not answer"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Runs one workload: every request on a thread of its own.
pub(super) fn run(server: &Server, workload: &Workload) -> Result<Outcome> {
    let begun = Instant::now();
    let seed = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(1, |time| u64::from(time.subsec_nanos()));
    std::thread::scope(|scope| {
        let mut groups = Vec::new();
        for (at, group) in workload.groups.iter().enumerate() {
            let threads: Vec<_> = (0..group.count)
                .map(|index| {
                    let seed = seed + (at * 1000 + index) as u64;
                    scope.spawn(move || one(server, group, index, (seed, begun)))
                })
                .collect();
            groups.push(threads);
        }
        let mut outcome = Vec::new();
        for threads in groups {
            let mut timings = Vec::new();
            for thread in threads {
                timings.push(thread.join().ok().context("a client panicked")??);
            }
            outcome.push(timings);
        }
        Ok(Outcome(outcome))
    })
}

fn one(
    server: &Server,
    group: &Group,
    index: usize,
    (seed, begun): (u64, Instant),
) -> Result<Timing> {
    let prompt = words(group.prompt_tokens, seed);
    std::thread::sleep(Duration::from_millis(
        group.start_ms + group.gap_ms * index as u64,
    ));
    let mut timing = Timing {
        sent: begun.elapsed().as_secs_f64(),
        prompt_tokens: group.prompt_tokens,
        ..Timing::default()
    };
    stream(server, &prompt, group.output_tokens, (begun, &mut timing))?;
    ensure!(!timing.events.is_empty(), "no text came");
    if timing.tokens == 0 {
        timing.tokens = timing.events.len();
    }
    Ok(timing)
}

/// Two-letter words, which are one token each to the models' tokenizers.
fn words(count: usize, seed: u64) -> String {
    let mut random = Seeded(seed);
    let mut letter = || char::from(b'a' + u8::try_from(random.below(26)).expect("a letter"));
    let words: Vec<String> = (0..count)
        .map(|_| [letter(), letter()].iter().collect())
        .collect();
    words.join(" ")
}

fn stream(
    server: &Server,
    prompt: &str,
    tokens: usize,
    (begun, timing): (Instant, &mut Timing),
) -> Result<()> {
    let mut body = json!({
        "model": server.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": true,
        "stream_options": {"include_usage": true}, "ignore_eos": true,
    });
    if server.key.is_none() {
        // llama.cpp: every prompt here is new, but slots remember.
        body["cache_prompt"] = Value::Bool(false);
    }
    let body = body.to_string();
    let socket = TcpStream::connect(&server.address)
        .with_context(|| format!("cannot connect to {}", server.address))?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let authorization = server.key.as_ref().map_or(String::new(), |key| {
        format!("authorization: Bearer {key}\r\n")
    });
    let mut reader = BufReader::new(socket.try_clone()?);
    let mut writer = socket;
    write!(
        writer,
        "POST /v1/completions HTTP/1.1\r\nhost: {}\r\n{authorization}content-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        server.address,
        body.len()
    )?;
    let mut line = String::new();
    reader.read_line(&mut line)?;
    ensure!(line.contains(" 200 "), "the server says {line:?}");
    // Chunks of the transfer coding are lines of their own and begin with no `data:`.
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 {
            bail!("the answer ended without its end");
        }
        let Some(data) = line.trim_end().strip_prefix("data:") else {
            continue;
        };
        let data = data.trim_start();
        if data == "[DONE]" {
            return Ok(());
        }
        let event: Value =
            serde_json::from_str(data).with_context(|| format!("an event {data:?}"))?;
        ensure!(event.get("error").is_none(), "the server says {event}");
        let text = event.pointer("/choices/0/text").and_then(Value::as_str);
        if text.is_some_and(|text| !text.is_empty()) {
            timing.events.push(begun.elapsed().as_secs_f64());
        }
        if let Some(tokens) = event
            .pointer("/usage/completion_tokens")
            .and_then(Value::as_u64)
        {
            timing.tokens = usize::try_from(tokens)?;
        }
    }
}
