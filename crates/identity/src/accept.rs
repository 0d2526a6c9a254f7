//! Connections of callers who proved their role.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::follow::Identity;
use crate::role::Role;

/// Handshakes at once: each is a millisecond of work for whom nothing is known of yet.
const HANDSHAKES: usize = 256;
/// Of one address: whoever says nothing holds up nobody else.
const HANDSHAKES_OF_ONE: usize = 16;
/// A caller that says nothing holds one of them for this long.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that were taken and not fetched yet.
const WAITING: usize = 64;
/// Refusals are told at most this often: strangers must not fill the log.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Between two attempts where the system gives no connection (too many files).
const BREATH: Duration = Duration::from_millis(50);

/// Takes connections of this role until `stop`. Whoever is another, or shows a certificate of another authority or one that is over, is
/// refused in the handshake; the log says why.
pub fn accept(
    listener: TcpListener,
    identity: Arc<Identity>,
    caller: Role,
    stop: CancellationToken,
) -> mpsc::Receiver<io::Result<TlsStream<TcpStream>>> {
    let (taken, connections) = mpsc::channel(WAITING);
    tokio::spawn(async move {
        let mut refusals = Refusals::default();
        let (told, mut failed) = mpsc::channel::<(SocketAddr, String)>(HANDSHAKES);
        let places = Arc::new(Semaphore::new(HANDSHAKES));
        let pending = Pending::default();
        loop {
            let next = async {
                // The place first: beyond it callers wait in the listener's backlog.
                let place = Arc::clone(&places).acquire_owned().await;
                (place, listener.accept().await)
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = taken.closed() => return,
                Some((from, why)) = failed.recv() => refusals.tell(caller, from, &why),
                (place, accepted) = next => {
                    let Ok((stream, from)) = accepted else {
                        tokio::time::sleep(BREATH).await;
                        continue;
                    };
                    let Some(handshake) = pending.call(from.ip()) else {
                        refusals.tell(caller, from, "too many connections of this address say nothing");
                        continue;
                    };
                    let (identity, taken, told) = (Arc::clone(&identity), taken.clone(), told.clone());
                    tokio::spawn(async move {
                        match timeout(PATIENCE, greet(stream, &identity, caller)).await {
                            Ok(Ok(stream)) => drop(taken.send(Ok(stream)).await),
                            // Somebody looks whether the port is open: a probe.
                            Ok(Err(error)) if error.kind() == ErrorKind::UnexpectedEof => {}
                            Ok(Err(error)) => drop(told.try_send((from, error.to_string()))),
                            Err(_) => drop(told.try_send((from, "it said nothing".to_owned()))),
                        }
                        drop((place, handshake));
                    });
                }
            }
        }
    });
    connections
}

async fn greet(
    stream: TcpStream,
    identity: &Identity,
    caller: Role,
) -> io::Result<TlsStream<TcpStream>> {
    stream.set_nodelay(true)?;
    let config = identity.current().and_then(|now| now.server(caller));
    let config = config.map_err(io::Error::other)?;
    TlsAcceptor::from(Arc::new(config)).accept(stream).await
}

/// How many handshakes each address has.
#[derive(Clone, Default)]
struct Pending(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A handshake of an address, while it lasts.
struct Called {
    pending: Pending,
    address: IpAddr,
}

impl Pending {
    /// `None` where the address has enough of them.
    fn call(&self, address: IpAddr) -> Option<Called> {
        let mut counts = self.0.lock();
        let count = counts.entry(address).or_default();
        if *count == HANDSHAKES_OF_ONE {
            return None;
        }
        *count += 1;
        let pending = self.clone();
        Some(Called { pending, address })
    }
}

impl Drop for Called {
    fn drop(&mut self) {
        let mut counts = self.pending.0.lock();
        if let Entry::Occupied(mut count) = counts.entry(self.address) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

/// What is told of those who were refused.
#[derive(Default)]
struct Refusals {
    last: Option<Instant>,
    untold: u64,
}

impl Refusals {
    fn tell(&mut self, wanted: Role, from: SocketAddr, why: &str) {
        if self.last.is_some_and(|last| last.elapsed() < TELL_EVERY) {
            self.untold += 1;
            return;
        }
        let (wanted, untold) = (wanted.name(), std::mem::take(&mut self.untold));
        tracing::warn!(%from, wanted, why, untold, "refused a connection");
        self.last = Some(Instant::now());
    }
}
