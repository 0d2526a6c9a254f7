//! What clients saw, call by call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde_json::Value;

use crate::{Client, Event};

/// What a call asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A new run, or the one that has the key.
    Submit {
        /// Its request key.
        key: Option<String>,
        /// The body without key, as text: equal payloads are equal.
        payload: String,
    },
    /// The events of a run.
    Read {
        /// Which run.
        run: String,
        /// The cursor.
        after: u64,
    },
    /// A run's row.
    Row {
        /// Which run.
        run: String,
    },
    /// A run's end.
    Cancel {
        /// Which run.
        run: String,
    },
    /// The tenant's account.
    Usage,
}

/// One call from its request to what came of it.
#[derive(Clone, Debug)]
pub struct Call {
    /// The client's connection: one thread of one client.
    pub connection: u64,
    /// Who asked.
    pub tenant: String,
    /// What was asked.
    pub what: What,
    /// Milliseconds from the history's beginning.
    pub begun_ms: u64,
    /// The same, of the last byte.
    pub ended_ms: u64,
    /// 0: no answer came.
    pub status: u16,
    /// The run that the answer named.
    pub run: Option<String>,
    /// A JSON answer.
    pub body: Option<Value>,
    /// A stream's events.
    pub events: Vec<Event>,
    /// The answer ended as it should: a whole body, a terminal event.
    pub complete: bool,
}

/// Collects calls from any thread. Once stopped it takes nothing in: what a client hears of a process after its death is not evidence.
#[derive(Clone, Debug)]
pub struct History(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    begun: Instant,
    connections: AtomicU64,
    dead: AtomicBool,
    calls: Mutex<Vec<Call>>,
}

impl Default for History {
    fn default() -> Self {
        Self(Arc::new(Inner {
            begun: Instant::now(),
            connections: AtomicU64::new(0),
            dead: AtomicBool::new(false),
            calls: Mutex::default(),
        }))
    }
}

impl History {
    /// A client of one tenant on a connection of its own.
    pub fn client(&self, base: &str, tenant: &str) -> Recording {
        Recording {
            client: Client::new(base, &format!("{tenant}-dev-key")),
            tenant: tenant.to_owned(),
            connection: self.0.connections.fetch_add(1, Ordering::Relaxed),
            history: self.clone(),
        }
    }

    /// From now on nothing is recorded, until [`History::go_on`].
    pub fn stop(&self) {
        self.0.dead.store(true, Ordering::SeqCst);
    }

    /// Records again.
    pub fn go_on(&self) {
        self.0.dead.store(false, Ordering::SeqCst);
    }

    /// Whether nothing is recorded.
    pub fn is_stopped(&self) -> bool {
        self.0.dead.load(Ordering::SeqCst)
    }

    /// Everything so far.
    pub fn calls(&self) -> Vec<Call> {
        self.lock().clone()
    }

    /// How much was recorded.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Whether nothing was.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds one; for histories that are made by hand.
    pub fn push(&self, call: Call) {
        self.lock().push(call);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Call>> {
        self.0.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        self.0.begun.elapsed().as_millis() as u64
    }
}

/// A client whose calls are all recorded.
#[derive(Clone, Debug)]
pub struct Recording {
    client: Client,
    tenant: String,
    connection: u64,
    history: History,
}

impl Recording {
    /// The tenant it speaks for.
    pub fn tenant(&self) -> &str {
        &self.tenant
    }

    fn begin(&self, what: What) -> Call {
        let now = self.history.now_ms();
        Call {
            connection: self.connection,
            tenant: self.tenant.clone(),
            what,
            begun_ms: now,
            ended_ms: now,
            status: 0,
            run: None,
            body: None,
            events: Vec::new(),
            complete: false,
        }
    }

    fn end(&self, mut call: Call) -> Call {
        call.ended_ms = self.history.now_ms();
        // An answer that came after the death is dropped, but that the call was made is known.
        if self.history.is_stopped() && call.events.is_empty() {
            call.status = 0;
            call.run = None;
            call.body = None;
            call.complete = false;
        }
        self.history.push(call.clone());
        call
    }

    /// `POST /inference` for the run's id.
    pub fn submit(&self, body: &Value) -> Call {
        let mut call = self.begin(submit_of(body));
        if let Ok(reply) = self.client.post("/inference", body) {
            call.status = reply.status;
            call.run = Some(reply.run_id()).filter(|run| !run.is_empty());
            call.body = Some(reply.body);
            call.complete = true;
        }
        self.end(call)
    }

    /// `POST /inference` for the run's events, as far as `more` lets it.
    pub fn submit_and_read(&self, body: &Value, more: impl FnMut(&Event) -> bool) -> Call {
        let call = self.begin(submit_of(body));
        let stream = self.client.open(
            "POST",
            "/inference",
            Some(body),
            &[("accept", "text/event-stream")],
        );
        self.follow(call, stream, more)
    }

    /// The events of a run after a cursor, as far as `more` lets it.
    pub fn read(&self, run: &str, after: u64, more: impl FnMut(&Event) -> bool) -> Call {
        let call = self.begin(What::Read {
            run: run.to_owned(),
            after,
        });
        let path = format!("/runs/{run}/events?after={after}");
        let stream = self.client.open("GET", &path, None, &[]);
        self.follow(call, stream, more)
    }

    fn follow(
        &self,
        mut call: Call,
        opened: anyhow::Result<crate::client::Opened>,
        mut more: impl FnMut(&Event) -> bool,
    ) -> Call {
        use crate::client::Opened;
        match opened {
            Err(_) => {}
            Ok(Opened::Refused(reply)) => {
                call.status = reply.status;
                call.body = Some(reply.body);
                call.complete = true;
            }
            Ok(Opened::Stream(mut stream)) => {
                call.status = 200;
                let named = stream.headers.iter().find(|(name, _)| name == "x-run-id");
                call.run = named.map(|(_, run)| run.clone());
                while let Ok(Some(event)) = stream.next_event() {
                    if self.history.is_stopped() {
                        break;
                    }
                    let last = event.is_terminal();
                    let go_on = more(&event);
                    call.events.push(event);
                    if !go_on {
                        break;
                    }
                    // Whatever follows the end is recorded too: nothing may.
                    call.complete |= last;
                }
            }
        }
        self.end(call)
    }

    /// A run's row.
    pub fn row(&self, run: &str) -> Call {
        let what = What::Row {
            run: run.to_owned(),
        };
        self.plain(what, "GET", &format!("/runs/{run}"))
    }

    /// `DELETE /runs/{run}`.
    pub fn cancel(&self, run: &str) -> Call {
        let what = What::Cancel {
            run: run.to_owned(),
        };
        self.plain(what, "DELETE", &format!("/runs/{run}"))
    }

    /// `GET /usage`.
    pub fn usage(&self) -> Call {
        self.plain(What::Usage, "GET", "/usage")
    }

    fn plain(&self, what: What, method: &str, path: &str) -> Call {
        let mut call = self.begin(what);
        if let Ok(reply) = self.client.call(method, path, None, &[]) {
            call.status = reply.status;
            call.run = Some(reply.run_id()).filter(|run| !run.is_empty());
            call.body = Some(reply.body);
            call.complete = true;
        }
        self.end(call)
    }
}

fn submit_of(body: &Value) -> What {
    let mut payload = body.clone();
    let key = payload
        .as_object_mut()
        .and_then(|fields| fields.remove("requestKey"));
    What::Submit {
        key: key.and_then(|key| key.as_str().map(str::to_owned)),
        payload: payload.to_string(),
    }
}
