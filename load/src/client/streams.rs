//! Many streams at once, one thread: opened evenly over a ramp, read to their end, each event judged as it comes.

use std::io;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use mio::event::Event;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use serde_json::{Value, json};

use super::Asking;
use super::h1::Answer;
use super::h2::{self, Came};
use super::sse::{Seen, Stream};
use crate::net::{Got, Outgoing, Target, begin_connect, now_ns, read};
use crate::watch::Watch;

#[derive(Args)]
pub(crate) struct StreamsArgs {
    #[command(flatten)]
    asking: Asking,
    /// Streams.
    #[arg(long, default_value_t = 1000)]
    n: usize,
    /// Milliseconds over which they are opened.
    #[arg(long, default_value_t = 2000)]
    ramp_ms: u64,
    /// Streams on one HTTP/2 connection; 0: each has a connection of HTTP/1.1.
    #[arg(long, default_value_t = 0)]
    per_connection: usize,
    /// Further gateways that share the streams, in turn by connection.
    #[arg(long)]
    also: Vec<String>,
}

struct Connection {
    socket: TcpStream,
    out: Outgoing,
    wire: Wire,
    /// First of its streams, and how many have been asked for.
    first: usize,
    asked: usize,
    left: usize,
    open: bool,
}

enum Wire {
    One(Answer),
    Two(h2::Reader),
}

struct Load<'a> {
    args: &'a StreamsArgs,
    targets: Vec<Target>,
    poll: Poll,
    connections: Vec<Connection>,
    streams: Vec<Stream>,
    begun: usize,
    ended: usize,
    most_open: usize,
    seen: Seen,
    buffer: Vec<u8>,
}

const BUFFER: usize = 256 << 10;
/// How often the time is looked at where nothing comes.
const LOOK: Duration = Duration::from_millis(20);

/// Runs to the end; the result as JSON.
pub(crate) fn run(args: &StreamsArgs) -> Result<Value> {
    let urls = std::iter::once(&args.asking.url).chain(&args.also);
    let mut load = Load {
        args,
        targets: urls.map(|url| Target::parse(url)).collect::<Result<_>>()?,
        poll: Poll::new()?,
        connections: Vec::new(),
        streams: (0..args.n).map(|_| Stream::default()).collect(),
        begun: 0,
        ended: 0,
        most_open: 0,
        seen: Seen::default(),
        buffer: vec![0; BUFFER],
    };
    let watch = Watch::start(&args.asking.pids);
    load.drive()?;
    let unfinished = load.streams.iter().filter(|stream| stream.open).count();
    let mut result = load.seen.summary();
    let more = json!({
        "mode": "streams", "n": args.n, "expected": args.n as u64 * u64::from(args.asking.tokens), "unfinished": unfinished,
        "most_open": load.most_open, "watched": watch.finish(args.n as u64, load.seen.events),
    });
    let (Some(result_fields), Value::Object(more)) = (result.as_object_mut(), more) else {
        return Ok(result);
    };
    result_fields.extend(more);
    Ok(result)
}

impl Load<'_> {
    fn drive(&mut self) -> Result<()> {
        let begun = Instant::now();
        let (ramp, n) = (Duration::from_millis(self.args.ramp_ms), self.args.n);
        let deadline = Duration::from_secs(self.args.asking.timeout_s);
        let mut events = Events::with_capacity(1024);
        while self.ended < n && begun.elapsed() < deadline {
            let share = begun.elapsed().as_secs_f64() / ramp.as_secs_f64().max(1e-9);
            let due = ((share * n as f64) as usize + 1).min(n);
            while self.begun < due {
                self.begin().context("cannot open a stream")?;
            }
            self.most_open = self.most_open.max(self.begun - self.ended);
            let next = ramp.mul_f64(self.begun as f64 / n as f64);
            let wait = if self.begun < n {
                next.saturating_sub(begun.elapsed()).min(LOOK)
            } else {
                LOOK
            };
            match self.poll.poll(&mut events, Some(wait)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(error.into());
                }
                _ => {}
            }
            for event in &events {
                self.handle(event);
            }
        }
        Ok(())
    }

    /// Asks for one more stream, over a connection that has room or a new one.
    fn begin(&mut self) -> Result<()> {
        let at = self.begun;
        self.begun += 1;
        let (asking, per) = (&self.args.asking, self.args.per_connection);
        self.streams[at].sent_ns = now_ns();
        self.streams[at].open = true;
        let number = at / per.max(1);
        let target = &self.targets[number % self.targets.len()];
        let (body, headers) = (asking.body(true), asking.headers(true));
        if per > 0
            && let Some(connection) = self.connections.get_mut(number)
        {
            let block = h2::block(&target.host, &target.path, &headers);
            let id = 2 * connection.asked as u32 + 1;
            connection.asked += 1;
            connection.left += 1;
            if connection.open {
                h2::request(connection.out.buffer(), id, &block, body.as_bytes());
                // What cannot be written now is when the socket says so.
                connection.out.flush(&mut connection.socket).ok();
            } else {
                self.fail(at, "the connection is gone");
            }
            return Ok(());
        }
        let mut socket = begin_connect(target.address, number)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        let token = Token(self.connections.len());
        self.poll
            .registry()
            .register(&mut socket, token, interest)?;
        let mut out = Outgoing::default();
        let wire = if per > 0 {
            h2::greet(out.buffer());
            let block = h2::block(&target.host, &target.path, &headers);
            h2::request(out.buffer(), 1, &block, body.as_bytes());
            Wire::Two(h2::Reader::default())
        } else {
            let text = http1(target, &headers, &body, false);
            out.buffer().extend_from_slice(text.as_bytes());
            Wire::One(Answer::default())
        };
        self.connections.push(Connection {
            socket,
            out,
            wire,
            first: at,
            asked: 1,
            left: 1,
            open: true,
        });
        Ok(())
    }

    fn handle(&mut self, event: &Event) {
        let number = event.token().0;
        let connection = &mut self.connections[number];
        if !connection.open {
            return;
        }
        let outcome = if event.is_writable() && !connection.out.is_empty() {
            connection.out.flush(&mut connection.socket)
        } else {
            Ok(())
        };
        let outcome = outcome.map_err(anyhow::Error::from).and_then(|()| {
            if event.is_readable() || event.is_read_closed() {
                self.receive(number)
            } else {
                Ok(false)
            }
        });
        match outcome {
            Ok(false) => {}
            Ok(true) => self.close(number, "the connection was closed"),
            Err(error) => self.close(number, &error.to_string()),
        }
    }

    /// Reads what there is; whether the connection has come to its end.
    fn receive(&mut self, number: usize) -> Result<bool> {
        loop {
            let connection = &mut self.connections[number];
            let count = match read(&mut connection.socket, &mut self.buffer)? {
                Got::Bytes(count) => count,
                Got::Nothing => return Ok(false),
                Got::End => return Ok(true),
            };
            let (bytes, now) = (&self.buffer[..count], now_ns());
            let (seen, first) = (&mut self.seen, connection.first);
            let tokens = self.args.asking.tokens;
            match &mut connection.wire {
                Wire::One(answer) => {
                    let stream = &mut self.streams[first];
                    let status = answer.feed(bytes, |piece| stream.feed(piece, now, seen))?;
                    if let Some(status) = status.filter(|status| *status != 200) {
                        anyhow::bail!("status {status}");
                    }
                    // The body's end need not be waited for once everything was said.
                    if answer.is_done() || stream.done {
                        stream.finish(tokens, seen);
                        self.ended += 1;
                        connection.left -= 1;
                        return Ok(true);
                    }
                }
                Wire::Two(reader) => {
                    let (streams, ended) = (&mut self.streams, &mut self.ended);
                    let left = &mut connection.left;
                    let came = |came: Came<'_>| {
                        take(came, streams, (first, now), seen, |stream, seen| {
                            stream.finish(tokens, seen);
                            *ended += 1;
                            *left -= 1;
                        });
                    };
                    reader.feed(bytes, connection.out.buffer(), came)?;
                    connection.out.flush(&mut connection.socket)?;
                    let all =
                        connection.asked == self.args.per_connection || self.begun == self.args.n;
                    if all && connection.left == 0 {
                        return Ok(true);
                    }
                }
            }
            // A short read has emptied the socket: what comes later wakes us again.
            if count < BUFFER {
                return Ok(false);
            }
        }
    }

    fn fail(&mut self, stream: usize, why: &str) {
        self.seen.error(why);
        self.streams[stream].open = false;
        self.ended += 1;
    }

    fn close(&mut self, number: usize, why: &str) {
        let connection = &mut self.connections[number];
        connection.open = false;
        self.poll.registry().deregister(&mut connection.socket).ok();
        connection.socket.shutdown(std::net::Shutdown::Both).ok();
        let range = connection.first..connection.first + connection.asked;
        let left: Vec<usize> = range.filter(|at| self.streams[*at].open).collect();
        for stream in left {
            self.fail(stream, why);
        }
    }
}

/// One thing that came over HTTP/2, for the stream it is of.
fn take(
    came: Came<'_>,
    streams: &mut [Stream],
    (first, now): (usize, u64),
    seen: &mut Seen,
    finish: impl FnOnce(&mut Stream, &mut Seen),
) {
    let at = |id: u32| first + (id as usize).saturating_sub(1) / 2;
    match came {
        Came::Head(true) => {}
        Came::Head(false) => seen.error("a status other than 200"),
        Came::Body(id, piece) => {
            if let Some(stream) = streams.get_mut(at(id)) {
                stream.feed(piece, now, seen);
            }
        }
        Came::End(id) => {
            if let Some(stream) = streams.get_mut(at(id)).filter(|stream| stream.open) {
                finish(stream, seen);
            }
        }
        Came::GoAway => seen.error("the server goes away"),
    }
}

/// A request of HTTP/1.1.
pub(crate) fn http1(
    target: &Target,
    headers: &[(&'static str, String)],
    body: &str,
    keep: bool,
) -> String {
    let mut text = format!(
        "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-length: {}\r\n",
        target.path,
        target.host,
        body.len()
    );
    for (name, value) in headers {
        text.extend([name, ": ", value, "\r\n"]);
    }
    text += if keep {
        "\r\n"
    } else {
        "connection: close\r\n\r\n"
    };
    text + body
}
