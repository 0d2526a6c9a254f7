//! Open sessions: who may write, and what waits to be sent to whom.

use std::collections::{BTreeMap, VecDeque};

use tonic::Status;
use weir_protocol::worker::{Detached, Hello, Rejected, Row, StepOutput, WorkerFrame};

use super::command::{OpenRefused, SessionId};
use super::held::HeldRuns;
use super::outbox::Outbox;
use super::request::{Refusal, RunKey};
use super::run::RunNumber;

/// Sessions at the same time: one per gateway replica, so this is far above any real number.
const SESSIONS_MAX: usize = 256;
/// Gateways whose newest session epoch is remembered after they left; the oldest is forgotten beyond it.
const EPOCHS_MAX: usize = 4096;
/// Answers that wait for a session that does not read. A gateway that asks for more without reading is cut off.
const ANSWERS_MAX: usize = 4096;
/// Rows in one frame: a frame then stays well below the message limit, with the largest set of alternatives as well.
const FRAME_ROWS_MAX: usize = 1024;

/// Identity and replica of a gateway.
type Peer = (String, String);

#[derive(Debug)]
struct Session {
    peer: Peer,
    outbox: Outbox,
    answers: VecDeque<WorkerFrame>,
    /// Runs with rows to send.
    unsent: VecDeque<RunNumber>,
    stalled: bool,
}

/// All open sessions of this worker.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    open: BTreeMap<SessionId, Session>,
    by_peer: BTreeMap<Peer, SessionId>,
    newest_epoch: BTreeMap<Peer, (u64, u64)>,
    last: u64,
}

/// What a flush did to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Nothing changed.
    Same,
    /// It does not read: pause its runs.
    Stalled,
    /// It reads again: let them go on.
    Flowing,
}

impl Sessions {
    /// Opens a session; an older one of the same gateway and replica is closed and returned.
    pub(crate) fn open(
        &mut self,
        hello: &Hello,
        outbox: Outbox,
    ) -> Result<(SessionId, Option<SessionId>), OpenRefused> {
        let peer = (hello.gateway.clone(), hello.replica.clone());
        if let Some((known, _)) = self.newest_epoch.get(&peer)
            && hello.session_epoch <= *known
        {
            return Err(OpenRefused::StaleSession {
                gateway: hello.gateway.clone(),
                given: hello.session_epoch,
                known: *known,
            });
        }
        if self.open.len() >= SESSIONS_MAX && !self.by_peer.contains_key(&peer) {
            return Err(OpenRefused::TooManySessions {
                limit: SESSIONS_MAX,
            });
        }
        self.last += 1;
        let id = SessionId(self.last);
        let older = self.by_peer.insert(peer.clone(), id);
        if let Some(older) = older {
            self.close_with(
                older,
                Status::aborted("a newer session of this gateway is open"),
            );
        }
        self.remember_epoch(peer.clone(), hello.session_epoch);
        self.open.insert(
            id,
            Session {
                peer,
                outbox,
                answers: VecDeque::new(),
                unsent: VecDeque::new(),
                stalled: false,
            },
        );
        Ok((id, older))
    }

    fn remember_epoch(&mut self, peer: Peer, epoch: u64) {
        self.newest_epoch.insert(peer, (epoch, self.last));
        if self.newest_epoch.len() > EPOCHS_MAX {
            let gone = self
                .newest_epoch
                .iter()
                .filter(|(peer, _)| !self.by_peer.contains_key(*peer));
            let oldest = gone
                .min_by_key(|(_, (_, seen))| *seen)
                .map(|(peer, _)| peer.clone());
            if let Some(oldest) = oldest {
                self.newest_epoch.remove(&oldest);
            }
        }
    }

    /// Forgets a session whose stream is gone. False if it is not open.
    pub(crate) fn close(&mut self, id: SessionId) -> bool {
        self.close_with(id, Status::unavailable("the session is closed"))
    }

    /// Ends every session; frames already handed over still arrive.
    pub(crate) fn close_all(&mut self, status: &Status) {
        for id in self.ids() {
            self.close_with(id, status.clone());
        }
    }

    fn close_with(&mut self, id: SessionId, status: Status) -> bool {
        let Some(session) = self.open.remove(&id) else {
            return false;
        };
        session.outbox.end(status);
        if self.by_peer.get(&session.peer) == Some(&id) {
            self.by_peer.remove(&session.peer);
        }
        true
    }

    /// Identity of a session's gateway.
    pub(crate) fn gateway(&self, id: SessionId) -> Option<&str> {
        self.open.get(&id).map(|session| session.peer.0.as_str())
    }

    pub(crate) fn is_open(&self, id: SessionId) -> bool {
        self.open.contains_key(&id)
    }

    pub(crate) fn is_stalled(&self, id: SessionId) -> bool {
        self.open.get(&id).is_some_and(|session| session.stalled)
    }

    pub(crate) fn count(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn stalled_count(&self) -> usize {
        self.open.values().filter(|session| session.stalled).count()
    }

    pub(crate) fn ids(&self) -> Vec<SessionId> {
        self.open.keys().copied().collect()
    }

    /// Says that nothing was started or changed.
    pub(crate) fn reject(&mut self, id: SessionId, run: &[u8], epoch: u64, refusal: Refusal) {
        let rejected = Rejected {
            run: run.to_vec().into(),
            epoch,
            code: refusal.code.into(),
            message: refusal.message,
        };
        self.answer(id, rejected.into());
    }

    /// Says that another session has the run now.
    pub(crate) fn detach(&mut self, id: SessionId, run: &RunKey) {
        self.answer(
            id,
            Detached {
                run: run.to_vec().into(),
            }
            .into(),
        );
    }

    /// Sends a frame in front of all rows not sent yet.
    pub(crate) fn answer(&mut self, id: SessionId, frame: WorkerFrame) {
        let Some(session) = self.open.get_mut(&id) else {
            return;
        };
        session.answers.push_back(frame);
        if session.answers.len() > ANSWERS_MAX {
            self.close_with(
                id,
                Status::resource_exhausted("this session asks and does not read the answers"),
            );
        }
    }

    /// Notes that a run may have rows to send.
    pub(crate) fn list_unsent(&mut self, runs: &mut HeldRuns, number: RunNumber) {
        let Some(run) = runs.get(number) else { return };
        let Some(session) = run.owner.and_then(|owner| self.open.get_mut(&owner)) else {
            return;
        };
        if !run.listed && run.has_unsent() {
            runs.change(number, |run| run.listed = true);
            session.unsent.push_back(number);
        }
    }

    /// Sends what can be sent to a session.
    pub(crate) fn flush(&mut self, id: SessionId, step: u64, runs: &mut HeldRuns) -> Flow {
        let Some(session) = self.open.get_mut(&id) else {
            return Flow::Same;
        };
        let is_blocked = !session.send(id, step, runs);
        match (session.stalled, is_blocked) {
            (false, true) => {
                session.stalled = true;
                Flow::Stalled
            }
            (true, false) => {
                session.stalled = false;
                Flow::Flowing
            }
            _ => Flow::Same,
        }
    }
}

impl Session {
    /// False when something is left because the peer does not read.
    fn send(&mut self, id: SessionId, step: u64, runs: &mut HeldRuns) -> bool {
        while !self.answers.is_empty() || !self.unsent.is_empty() {
            let Some(room) = self.outbox.reserve() else {
                return false;
            };
            if let Some(answer) = self.answers.pop_front() {
                room.send(answer);
                continue;
            }
            let rows = collect_rows(&mut self.unsent, id, runs);
            if !rows.is_empty() {
                room.send(StepOutput { step, rows }.into());
            }
        }
        true
    }
}

/// Takes rows of the session's runs, as many as one frame carries.
fn collect_rows(unsent: &mut VecDeque<RunNumber>, id: SessionId, runs: &mut HeldRuns) -> Vec<Row> {
    let mut rows = Vec::with_capacity(unsent.len().min(FRAME_ROWS_MAX));
    while rows.len() < FRAME_ROWS_MAX
        && let Some(number) = unsent.pop_front()
    {
        let has_more = runs.change(number, |run| {
            if run.owner != Some(id) {
                return false;
            }
            while rows.len() < FRAME_ROWS_MAX {
                match run.next_row() {
                    Some(row) => rows.push(row),
                    None => break,
                }
            }
            run.listed = run.has_unsent();
            run.listed
        });
        if has_more == Some(true) {
            unsent.push_front(number);
        }
    }
    rows
}
