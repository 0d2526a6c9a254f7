//! Where the worker takes sessions: a Unix socket on one machine, TCP in a cluster.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use tokio::net::{TcpListener, UnixListener, UnixStream};
use weir_identity::Identity;

use crate::config::Callers;
use crate::error::WorkerError;

/// An address to take sessions on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// `unix:/path/to/socket`.
    Unix(PathBuf),
    /// `127.0.0.1:7000`, with or without `tcp:` in front.
    Tcp(SocketAddr),
}

/// The text is not an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an address to listen on: \"{given}\"; use unix:/path/to/socket or tcp:127.0.0.1:7000")]
pub struct ParseListenError {
    given: String,
}

impl FromStr for Listen {
    type Err = ParseListenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        let address = text.strip_prefix("tcp:").unwrap_or(text);
        address
            .parse()
            .map(Self::Tcp)
            .map_err(|_| ParseListenError {
                given: text.to_owned(),
            })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// A bound address.
#[derive(Debug)]
pub(crate) enum Listener {
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener),
}

/// Removes the socket's file when the worker ends.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listen {
    /// Binds the address. A socket file that nobody answers on is what a killed worker left, and is replaced.
    pub(crate) async fn bind(&self) -> io::Result<Listener> {
        match self {
            Self::Tcp(address) => Ok(Listener::Tcp(TcpListener::bind(address).await?)),
            Self::Unix(path) => {
                remove_stale(path).await?;
                let listener = UnixListener::bind(path)?;
                // Only this user: whoever can open the socket can run and read everything on this worker.
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
                Ok(Listener::Unix(listener, SocketFile(path.clone())))
            }
        }
    }
}

impl Listen {
    /// What callers are asked to prove themselves with; `None` where the address itself keeps strangers away, or something else does.
    pub(crate) fn identity(&self, callers: Callers) -> Result<Option<Arc<Identity>>, WorkerError> {
        let Self::Tcp(address) = self else {
            return Ok(None);
        };
        match callers {
            Callers::Gateways(folder) => Ok(Some(Arc::new(Identity::open(&folder)?))),
            Callers::Local if !address.ip().is_loopback() => Err(WorkerError::Open {
                address: self.to_string(),
            }),
            Callers::Local | Callers::Anybody => Ok(None),
        }
    }
}

async fn remove_stale(path: &Path) -> io::Result<()> {
    match UnixStream::connect(path).await {
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another process answers on this socket",
        )),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Err(_) => Ok(()),
    }
}

impl Listener {
    /// The address others connect to: with the port the system chose, where port 0 was asked for.
    pub(crate) fn address(&self) -> io::Result<Listen> {
        match self {
            Self::Unix(_, file) => Ok(Listen::Unix(file.0.clone())),
            Self::Tcp(listener) => listener.local_addr().map(Listen::Tcp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_and_others_are_refused() {
        for text in ["unix:/run/weir/w.sock", "tcp:127.0.0.1:7000", "tcp:[::1]:0"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        assert_eq!(
            "127.0.0.1:1".parse::<Listen>().unwrap().to_string(),
            "tcp:127.0.0.1:1"
        );
        for text in ["", "unix:", "localhost", "tcp:nowhere:1"] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_address_that_others_reach_is_open_only_where_that_was_asked_for() {
        for (text, callers, is_open) in [
            ("unix:/run/w.sock", Callers::Local, true),
            ("tcp:127.0.0.1:7000", Callers::Local, true),
            ("tcp:[::1]:7000", Callers::Local, true),
            ("tcp:0.0.0.0:7000", Callers::Local, false),
            ("tcp:10.0.0.7:7000", Callers::Local, false),
            ("tcp:0.0.0.0:7000", Callers::Anybody, true),
        ] {
            let listen: Listen = text.parse().unwrap();
            match listen.identity(callers) {
                Ok(identity) => assert!(is_open && identity.is_none(), "{text}"),
                Err(error) => {
                    assert!(!is_open && error.is_configuration(), "{text}");
                    assert_eq!(error.reason(), "IdentityMissing");
                }
            }
        }
        let nowhere = Callers::Gateways("/nowhere".into());
        let error = "tcp:127.0.0.1:7000".parse::<Listen>().unwrap();
        let error = error.identity(nowhere).unwrap_err();
        assert_eq!(error.reason(), "IdentityInvalid");
    }

    #[tokio::test]
    async fn a_dead_socket_file_is_replaced_and_a_live_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w.sock");
        let listen = Listen::Unix(path.clone());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "the standard library leaves the file");
        let first = listen.bind().await.unwrap();
        assert_eq!(
            listen.bind().await.unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
        drop(first);
        assert!(!path.exists());
    }
}
