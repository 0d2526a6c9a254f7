//! A network between two processes that can be held, cut, and made to lose an answer.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;

/// Where a proxy leads.
#[derive(Clone, Debug)]
pub enum Target {
    /// A host and port.
    Tcp(SocketAddr),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// What becomes of bytes on their way to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// They arrive.
    Arrives,
    /// The connection is cut before they do.
    Lost,
    /// They arrive; the connection is cut instead of the answer.
    Unanswered,
    /// The sender's connection is cut; they arrive after it is gone.
    Late(Duration),
}

/// Decides on the bytes that one connection is about to send; each connection has one of its own.
pub type Judge = Box<dyn FnMut(&[u8]) -> Fate + Send>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Open,
    /// Nothing passes, and nobody is told: packets are lost.
    Held,
    /// Every connection is cut, and each new one at once.
    Cut,
}

struct State {
    way: Mutex<Way>,
    changed: Condvar,
    /// Rises with every cut: connections of before it end.
    cuts: AtomicU64,
    over: AtomicBool,
    target: Target,
    judge: Box<dyn Fn() -> Judge + Send + Sync>,
}

/// A listener that leads to a target; ends when dropped.
pub struct Proxy {
    /// Where to connect.
    pub address: SocketAddr,
    state: Arc<State>,
}

impl Proxy {
    /// Lets everything through.
    ///
    /// # Errors
    /// There is no port.
    pub fn start(target: Target) -> Result<Self> {
        Self::judging(target, || Box::new(|_| Fate::Arrives))
    }

    /// Asks a judge of its own for each connection.
    ///
    /// # Errors
    /// There is no port.
    pub fn judging(
        target: Target,
        judge: impl Fn() -> Judge + Send + Sync + 'static,
    ) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = Arc::new(State {
            way: Mutex::new(Way::Open),
            changed: Condvar::new(),
            cuts: AtomicU64::new(0),
            over: AtomicBool::new(false),
            target,
            judge: Box::new(judge),
        });
        let accepting = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if accepting.over.load(Ordering::SeqCst) {
                    return;
                }
                accepting.connect(client);
            }
        });
        Ok(Self { address, state })
    }

    /// From now on nothing passes, in either direction; connections stay open. What was on its way arrives after [`Proxy::open`].
    pub fn hold(&self) {
        self.state.set(Way::Held);
    }

    /// Everything passes again.
    pub fn open(&self) {
        self.state.set(Way::Open);
    }

    /// Cuts every connection, and each new one until [`Proxy::open`].
    pub fn cut(&self) {
        self.state.set(Way::Cut);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::SeqCst);
        self.state.set(Way::Cut);
        // Wakes the listener.
        drop(TcpStream::connect(self.address));
    }
}

impl State {
    fn way(&self) -> std::sync::MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, way: Way) {
        *self.way() = way;
        if way == Way::Cut {
            self.cuts.fetch_add(1, Ordering::SeqCst);
        }
        self.changed.notify_all();
    }

    /// Waits while the way is held; whether a connection of before `cuts` cuts may go on.
    fn passes(&self, cuts: u64) -> bool {
        let held = |way: &mut Way| *way == Way::Held;
        let way = self.changed.wait_while(self.way(), held);
        let way = *way.unwrap_or_else(PoisonError::into_inner);
        way == Way::Open && self.cuts.load(Ordering::SeqCst) == cuts
    }

    fn connect(self: &Arc<Self>, client: TcpStream) {
        let cuts = self.cuts.load(Ordering::SeqCst);
        if *self.way() == Way::Cut {
            return;
        }
        let (state, judge) = (Arc::clone(self), (self.judge)());
        std::thread::spawn(move || {
            // A connection that is made while the way is held is made when it is open again.
            if state.passes(cuts)
                && let Some(there) = Wire::to(&state.target)
            {
                carry(&state, cuts, &Wire::Tcp(client), &there, judge);
            }
        });
    }
}

/// Both directions of a connection, until one ends.
fn carry(state: &Arc<State>, cuts: u64, here: &Wire, there: &Wire, mut judge: Judge) {
    let ends = (there.twin(), here.twin(), here.twin(), there.twin());
    let (Some(mut answers), Some(mut sender), Some(mut asks), Some(mut target)) = ends else {
        return;
    };
    let swallow = Arc::new(AtomicBool::new(false));
    let (back_state, swallowed) = (Arc::clone(state), Arc::clone(&swallow));
    let mut back = Some(std::thread::spawn(move || {
        pump(&back_state, cuts, &mut answers, &mut sender, |_, _| {
            !swallowed.load(Ordering::SeqCst)
        });
    }));
    // The other direction ends with the answer, or with its process.
    let mut let_go = |bytes: &[u8], target: &mut Wire| {
        swallow.store(true, Ordering::SeqCst);
        if target.write_all(bytes).is_ok() {
            drop(back.take().map(std::thread::JoinHandle::join));
        }
        false
    };
    pump(
        state,
        cuts,
        &mut asks,
        &mut target,
        |bytes, target| match judge(bytes) {
            Fate::Arrives => true,
            Fate::Lost => false,
            Fate::Unanswered => let_go(bytes, target),
            Fate::Late(after) => {
                here.end();
                std::thread::sleep(after);
                let_go(bytes, target)
            }
        },
    );
}

/// One direction. `goes_on` sees what is about to be sent and may send it itself.
fn pump(
    state: &State,
    cuts: u64,
    from: &mut Wire,
    to: &mut Wire,
    mut goes_on: impl FnMut(&[u8], &mut Wire) -> bool,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Some(length) = from.read(&mut buffer, || state.passes(cuts)) {
        let bytes = &buffer[..length];
        if !state.passes(cuts) || !goes_on(bytes, to) || to.write_all(bytes).is_err() {
            break;
        }
    }
    from.end();
    to.end();
}

/// One end of a connection.
enum Wire {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// How often a silent connection looks whether it was cut.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Wire {
    fn to(target: &Target) -> Option<Self> {
        Some(match target {
            Target::Tcp(address) => Self::Tcp(TcpStream::connect(address).ok()?),
            Target::Unix(path) => Self::Unix(UnixStream::connect(path).ok()?),
        })
    }

    fn twin(&self) -> Option<Self> {
        Some(match self {
            Self::Tcp(stream) => {
                stream.set_nodelay(true).ok()?;
                Self::Tcp(stream.try_clone().ok()?)
            }
            Self::Unix(stream) => Self::Unix(stream.try_clone().ok()?),
        })
    }

    fn end(&self) {
        // It may have ended by itself.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }

    fn set_timeout(&self, timeout: Duration) {
        let _ = match self {
            Self::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
            Self::Unix(stream) => stream.set_read_timeout(Some(timeout)),
        };
    }

    /// What comes next; `None` at the end, or when `alive` says so.
    fn read(&mut self, buffer: &mut [u8], alive: impl Fn() -> bool) -> Option<usize> {
        use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
        self.set_timeout(LOOK_EVERY);
        loop {
            let read = match self {
                Self::Tcp(stream) => stream.read(buffer),
                Self::Unix(stream) => stream.read(buffer),
            };
            match read {
                Ok(0) => return None,
                Ok(length) => return Some(length),
                Err(error) if matches!(error.kind(), WouldBlock | TimedOut | Interrupted) => {
                    if !alive() {
                        return None;
                    }
                }
                Err(_) => return None,
            }
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.write_all(bytes),
            Self::Unix(stream) => stream.write_all(bytes),
        }
    }
}
