//! Requests that are answered at once: as fast as they are answered over some connections, or at a rate whatever the answers do.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use serde_json::{Value, json};

use super::Asking;
use super::h1::Answer;
use super::streams::http1;
use crate::histogram::Histogram;
use crate::net::{Got, Outgoing, Target, begin_connect, read};
use crate::watch::Watch;

#[derive(Args)]
pub(crate) struct RequestsArgs {
    #[command(flatten)]
    asking: Asking,
    /// Connections, each with one request under way.
    #[arg(long, default_value_t = 64)]
    n: usize,
    /// Requests a second, over as many connections as that takes; 0: as fast as they are answered.
    #[arg(long, default_value_t = 0.0)]
    rate: f64,
    /// Seconds.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

struct Connection {
    socket: TcpStream,
    out: Outgoing,
    answer: Answer,
    status: u16,
    body_bytes: usize,
    /// When the request under way was due.
    asked: Option<Instant>,
}

struct Load<'a> {
    args: &'a RequestsArgs,
    target: Target,
    text: String,
    poll: Poll,
    connections: Vec<Option<Connection>>,
    idle: Vec<usize>,
    latency: Histogram,
    answered: u64,
    errors: BTreeMap<String, u64>,
    buffer: Vec<u8>,
}

/// Runs to the end; the result as JSON.
pub(crate) fn run(args: &RequestsArgs) -> Result<Value> {
    let target = Target::parse(&args.asking.url)?;
    let text = http1(
        &target,
        &args.asking.headers(false),
        &args.asking.body(false),
        true,
    );
    let mut load = Load {
        args,
        target,
        text,
        poll: Poll::new()?,
        connections: Vec::new(),
        idle: Vec::new(),
        latency: Histogram::default(),
        answered: 0,
        errors: BTreeMap::new(),
        buffer: vec![0; 64 << 10],
    };
    let watch = Watch::start(&args.asking.pids);
    let seconds = load.drive()?;
    Ok(json!({
        "mode": "requests", "n": args.n, "rate": args.rate, "answered": load.answered, "per_s": load.answered as f64 / seconds,
        "latency": load.latency.summary(), "errors": load.errors, "watched": watch.finish(args.n as u64, load.answered),
    }))
}

impl Load<'_> {
    fn drive(&mut self) -> Result<f64> {
        let begun = Instant::now();
        let length = Duration::from_secs(self.args.seconds);
        let patience = length + Duration::from_secs(10);
        let mut events = Events::with_capacity(256);
        let mut sent = 0_u64;
        if self.args.rate == 0.0 {
            for _ in 0..self.args.n {
                self.ask(begun)?;
            }
        }
        loop {
            let elapsed = begun.elapsed();
            let ending = elapsed >= length;
            let under_way = self.connections.iter().flatten().any(|c| c.asked.is_some());
            if ending && !under_way || elapsed >= patience {
                return Ok(elapsed.min(length).as_secs_f64());
            }
            let mut wait = Duration::from_millis(10);
            if self.args.rate > 0.0 && !ending {
                let due = |number: u64| Duration::from_secs_f64(number as f64 / self.args.rate);
                while due(sent) <= begun.elapsed() && due(sent) < length {
                    self.ask(begun + due(sent))?;
                    sent += 1;
                }
                wait = due(sent).saturating_sub(begun.elapsed()).min(wait);
            }
            match self.poll.poll(&mut events, Some(wait)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(error.into());
                }
                _ => {}
            }
            for event in &events {
                let number = event.token().0;
                if let Err(error) = self.handle(number) {
                    *self.errors.entry(error.to_string()).or_default() += 1;
                    self.connections[number] = None;
                    if self.args.rate == 0.0 && !ending {
                        self.ask(Instant::now())?;
                    }
                } else if self.args.rate == 0.0 && !ending {
                    while let Some(idle) = self.idle.pop() {
                        self.send(idle, Instant::now());
                    }
                }
            }
        }
    }

    /// One more request, over an idle connection or a new one.
    fn ask(&mut self, due: Instant) -> Result<()> {
        while let Some(idle) = self.idle.pop() {
            if self.connections[idle].is_some() {
                self.send(idle, due);
                return Ok(());
            }
        }
        let number = self.connections.len();
        let mut socket = begin_connect(self.target.address, number)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(&mut socket, Token(number), interest)?;
        self.connections.push(Some(Connection {
            socket,
            out: Outgoing::default(),
            answer: Answer::default(),
            status: 0,
            body_bytes: 0,
            asked: None,
        }));
        self.send(number, due);
        Ok(())
    }

    fn send(&mut self, number: usize, due: Instant) {
        let Some(connection) = &mut self.connections[number] else {
            return;
        };
        connection
            .out
            .buffer()
            .extend_from_slice(self.text.as_bytes());
        connection.asked = Some(due);
        // A connection that broke says so when it is read.
        connection.out.flush(&mut connection.socket).ok();
    }

    fn handle(&mut self, number: usize) -> Result<()> {
        let Some(connection) = &mut self.connections[number] else {
            return Ok(());
        };
        connection.out.flush(&mut connection.socket)?;
        loop {
            let count = match read(&mut connection.socket, &mut self.buffer)? {
                Got::Bytes(count) => count,
                Got::Nothing => return Ok(()),
                Got::End => {
                    anyhow::ensure!(connection.asked.is_none(), "closed before the answer");
                    self.connections[number] = None;
                    return Ok(());
                }
            };
            let bytes = &mut connection.body_bytes;
            let status = connection
                .answer
                .feed(&self.buffer[..count], |piece| *bytes += piece.len())?;
            connection.status = status.unwrap_or(connection.status);
            if !connection.answer.is_done() {
                continue;
            }
            let asked = connection.asked.take();
            let (status, bytes) = (
                connection.status,
                std::mem::take(&mut connection.body_bytes),
            );
            connection.answer = Answer::default();
            self.idle.push(number);
            if matches!(status, 200 | 202) && bytes > 0 {
                self.answered += 1;
                if let Some(asked) = asked {
                    self.latency.add(asked.elapsed().as_nanos() as u64);
                }
            } else {
                *self.errors.entry(format!("status {status}")).or_default() += 1;
            }
            return Ok(());
        }
    }
}
