//! A server of OpenAI's API without a model, for gateways that have no workers of ours: one token in each interval, or all at once.

use std::io::{self, Write as _};
use std::net::SocketAddr;

use anyhow::Result;
use clap::Args;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use serde_json::Value;

use super::pace::{TICK, Wheel};
use super::text;
use crate::net::{Got, Outgoing, read};

#[derive(Args)]
pub(crate) struct BackendArgs {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:9001")]
    listen: SocketAddr,
    /// Milliseconds between two tokens of a stream.
    #[arg(long, default_value_t = 100)]
    interval_ms: u64,
    /// Model it says it serves.
    #[arg(long, default_value = "fake")]
    model: String,
}

struct Connection {
    socket: TcpStream,
    input: Vec<u8>,
    out: Outgoing,
    /// The stream under way: the next token, and how many there will be.
    stream: Option<(u64, u64)>,
}

struct Backend {
    poll: Poll,
    model: String,
    connections: Vec<Option<Connection>>,
    free: Vec<u32>,
    wheel: Wheel,
    buffer: Vec<u8>,
}

const LISTENER: Token = Token(usize::MAX);

/// Serves until it is killed.
pub(crate) fn run(args: &BackendArgs) -> Result<()> {
    let mut listener = TcpListener::bind(args.listen)?;
    let poll = Poll::new()?;
    poll.registry()
        .register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut backend = Backend {
        poll,
        model: args.model.clone(),
        connections: Vec::new(),
        free: Vec::new(),
        wheel: Wheel::new(std::time::Duration::from_millis(args.interval_ms)),
        buffer: vec![0; 64 << 10],
    };
    let mut events = Events::with_capacity(1024);
    loop {
        match backend.poll.poll(&mut events, Some(TICK / 2)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        for event in &events {
            match event.token() {
                LISTENER => backend.accept(&listener),
                Token(number) => backend.handle(number),
            }
        }
        while let Some(due) = backend.wheel.due() {
            for number in due {
                backend.token(number);
            }
        }
    }
}

impl Backend {
    fn accept(&mut self, listener: &TcpListener) {
        while let Ok((mut socket, _)) = listener.accept() {
            let number = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() as u32 - 1
            });
            socket.set_nodelay(true).ok();
            let interest = Interest::READABLE | Interest::WRITABLE;
            let token = Token(number as usize);
            if self
                .poll
                .registry()
                .register(&mut socket, token, interest)
                .is_err()
            {
                self.free.push(number);
                continue;
            }
            self.connections[number as usize] = Some(Connection {
                socket,
                input: Vec::new(),
                out: Outgoing::default(),
                stream: None,
            });
        }
    }

    fn handle(&mut self, number: usize) {
        if self.serve(number).is_err()
            && let Some(mut gone) = self.connections[number].take()
        {
            self.poll.registry().deregister(&mut gone.socket).ok();
            // The wheel may still name a stream of it; the place is used again only when that has passed.
            if gone.stream.is_none() {
                self.free.push(number as u32);
            }
        }
    }

    fn serve(&mut self, number: usize) -> io::Result<()> {
        let Some(connection) = &mut self.connections[number] else {
            return Ok(());
        };
        connection.out.flush(&mut connection.socket)?;
        loop {
            match read(&mut connection.socket, &mut self.buffer)? {
                Got::Bytes(count) => connection.input.extend_from_slice(&self.buffer[..count]),
                Got::Nothing => break,
                Got::End => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        while connection.stream.is_none()
            && let Some((head, body)) = take_request(&mut connection.input)
        {
            if answer(connection, &self.model, &head, &body) {
                self.wheel.soon(number as u32);
            }
            connection.out.flush(&mut connection.socket)?;
        }
        Ok(())
    }

    /// One token of a stream, and the end after the last.
    fn token(&mut self, number: u32) {
        let Some(connection) = &mut self.connections[number as usize] else {
            self.free.push(number);
            return;
        };
        let Some((next, limit)) = connection.stream else {
            return;
        };
        let model = &self.model;
        let chunk = |delta: &str, reason: &str| {
            let data = format!(
                "data: {{\"id\":\"c1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"{model}\",\"choices\":[{{\"index\":0,\"delta\":{{{delta}}},\"finish_reason\":{reason}}}]}}\n\n"
            );
            format!("{:x}\r\n{data}\r\n", data.len())
        };
        let out = connection.out.buffer();
        let delta = format!("\"role\":\"assistant\",\"content\":\"{}\"", text(next));
        out.extend_from_slice(chunk(&delta, "null").as_bytes());
        connection.stream = Some((next + 1, limit));
        if next + 1 == limit {
            connection.stream = None;
            out.extend_from_slice(chunk("", "\"length\"").as_bytes());
            out.extend_from_slice(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n");
        } else {
            self.wheel.again(number);
        }
        if connection.out.flush(&mut connection.socket).is_err() {
            self.handle(number as usize);
        }
    }
}

/// A whole request off the front of what has come: its first line and its body.
fn take_request(input: &mut Vec<u8>) -> Option<(String, Vec<u8>)> {
    let end = memchr::memmem::find(input, b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&input[..end]).into_owned();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse::<usize>().ok())?
    });
    let whole = end + length.unwrap_or(0);
    if input.len() < whole {
        return None;
    }
    let body = input[end..whole].to_vec();
    input.drain(..whole);
    Some((head.lines().next().unwrap_or_default().to_owned(), body))
}

/// Answers a request, or begins a stream; whether it began one.
fn answer(connection: &mut Connection, model: &str, line: &str, body: &[u8]) -> bool {
    let asked: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let tokens = ["max_tokens", "max_completion_tokens"];
    let tokens = tokens
        .iter()
        .find_map(|name| asked[name].as_u64())
        .unwrap_or(16);
    let out = connection.out.buffer();
    if line.contains("/completions") && asked["stream"] == true {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n");
        connection.stream = Some((0, tokens.max(1)));
        return true;
    }
    let path = line.split(' ').nth(1).unwrap_or_default();
    let json = match path {
        "/v1/models" => format!(
            r#"{{"object":"list","data":[{{"id":"{model}","object":"model","created":1,"owned_by":"fake"}}]}}"#
        ),
        _ if path.contains("/completions") => format!(
            r#"{{"id":"c1","object":"chat.completion","created":1,"model":"{model}","choices":[{{"index":0,"message":{{"role":"assistant","content":"{}"}},"finish_reason":"length"}}],"usage":{{"prompt_tokens":8,"completion_tokens":{tokens},"total_tokens":{}}}}}"#,
            " token".repeat(tokens as usize),
            tokens + 8
        ),
        // What routers ask a worker before they send it work.
        _ => format!(
            r#"{{"model_path":"{model}","served_model_name":"{model}","tokenizer_path":"{model}","is_generation":true,"tp_size":1,"dp_size":1}}"#
        ),
    };
    write!(
        out,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{json}",
        json.len()
    )
    .expect("a vector takes everything");
    false
}
