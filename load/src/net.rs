//! Sockets that do not block, and bytes on their way out.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, ToSocketAddrs};
use std::time::SystemTime;

use anyhow::{Context, Result};
use mio::net::TcpStream;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};

/// Nanoseconds since the Unix epoch.
pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::UNIX_EPOCH.elapsed();
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// `http://HOST:PORT/PATH`, taken apart.
pub(crate) struct Target {
    pub(crate) address: SocketAddr,
    pub(crate) host: String,
    pub(crate) path: String,
}

impl Target {
    pub(crate) fn parse(url: &str) -> Result<Self> {
        let rest = url.strip_prefix("http://").context("not an http:// URL")?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let address = host.to_socket_addrs()?.next();
        Ok(Self {
            address: address.with_context(|| format!("no address for {host}"))?,
            host: host.to_owned(),
            path: format!("/{path}"),
        })
    }
}

/// Source addresses 127.0.0.2 and on: each has its own ports.
const SOURCES: usize = 8;

/// Begins a connection; the socket is writable once it is open.
pub(crate) fn begin_connect(to: SocketAddr, number: usize) -> io::Result<TcpStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    if to.ip().is_loopback() {
        let source = Ipv4Addr::new(127, 0, 0, 2 + (number % SOURCES) as u8);
        bind(&socket, &SocketAddrV4::new(source, 0))?;
    }
    match connect(&socket, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = std::net::TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(TcpStream::from_std(stream))
}

/// Bytes that wait for a socket.
#[derive(Default)]
pub(crate) struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outgoing {
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Writes what the socket takes.
    pub(crate) fn flush(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        while self.sent < self.bytes.len() {
            match stream.write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if is_later(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(())
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::NotConnected
    )
}

/// What a socket had to give.
pub(crate) enum Got {
    Bytes(usize),
    Nothing,
    End,
}

/// Reads once.
pub(crate) fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<Got> {
    match stream.read(buffer) {
        Ok(0) => Ok(Got::End),
        Ok(count) => Ok(Got::Bytes(count)),
        Err(error) if is_later(&error) => Ok(Got::Nothing),
        Err(error) => Err(error),
    }
}
