//! The smallest client that can keep a gateway busy: blocking sockets, one buffer for each connection, no parsing beyond status and length.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

/// One kept connection.
pub(super) struct Connection {
    stream: TcpStream,
    host: String,
    key: &'static str,
    out: Vec<u8>,
    answer: Vec<u8>,
}

impl Connection {
    /// To `http://HOST:PORT`.
    pub(super) fn open(base: &str, key: &'static str) -> Result<Self> {
        let host = base
            .strip_prefix("http://")
            .context("not an http address")?
            .to_owned();
        let stream =
            TcpStream::connect(&host).with_context(|| format!("cannot connect to {host}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self {
            stream,
            host,
            key,
            out: Vec::new(),
            answer: Vec::new(),
        })
    }

    /// Sends a JSON body and reads the whole answer: its status.
    pub(super) fn post(&mut self, path: &str, body: &str) -> Result<u16> {
        self.out.clear();
        write!(
            self.out,
            "POST {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.host,
            self.key,
            body.len()
        )?;
        self.stream.write_all(&self.out)?;
        self.answer.clear();
        let mut chunk = [0; 4096];
        loop {
            let count = self.stream.read(&mut chunk).context("no answer")?;
            ensure!(count > 0, "the gateway closed the connection");
            self.answer.extend_from_slice(&chunk[..count]);
            if let Some((status, length)) = head(&self.answer)?
                && self.answer.len() >= length
            {
                return Ok(status);
            }
        }
    }

    /// The last answer as text.
    pub(super) fn answer(&self) -> String {
        String::from_utf8_lossy(&self.answer).into_owned()
    }
}

/// Status and length of an answer, head and body, once its head is complete.
fn head(answer: &[u8]) -> Result<Option<(u16, usize)>> {
    let Some(end) = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = std::str::from_utf8(&answer[..end]).context("the head of an answer is not text")?;
    let mut lines = text.lines();
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let status = status.context("an answer without status")?;
    for line in lines {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            let body: usize = value.trim().parse().context("content-length")?;
            return Ok(Some((status, end + 4 + body)));
        }
    }
    bail!("an answer without content-length")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_when_its_body_is() {
        let text = b"HTTP/1.1 202 Accepted\r\nContent-Length: 5\r\n\r\nhe";
        let (status, length) = head(text).unwrap().unwrap();
        assert_eq!((status, length), (202, text.len() + 3));
        assert_eq!(head(b"HTTP/1.1 202 Accepted\r\n").unwrap(), None);
        assert!(head(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
