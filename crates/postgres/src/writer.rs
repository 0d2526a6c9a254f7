//! The one task of a gateway that writes. It takes whatever is queued, evaluates it over what it has read, commits it in one statement,
//! and only then answers. When another gateway changed something meanwhile, it evaluates again.
//!
//! The task is never dropped while a statement is under way, whatever becomes of those who asked, and a statement is a transaction of
//! its own: no connection is ever left within one.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{ConnectOptions, Connection, PgConnection, Row};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use weir_store::StoreError;
use weir_store::engine::{Closing, Evaluated, KvError, Op, Queue, ReadError, evaluate, gather};

use crate::commit::{Committed, Group, remember};
use crate::error::{Cause, Failed, failed, store_error};
use crate::fetch::fetch;
use crate::memory::{Memory, MemoryView, Used, Wants};
use crate::open::Server;

/// A server that does not answer a statement for this long is away; longer than its own limit on statements.
const PATIENCE: Duration = Duration::from_secs(20);
const FIRST_BACKOFF: Duration = Duration::from_millis(50);
const LONGEST_BACKOFF: Duration = Duration::from_secs(2);
/// Rounds of reading that one evaluation may need: each op needs four at most, one after the other.
const ROUNDS: usize = 64;
/// A group that loses this many races in a row pauses a little longer each time.
const PATIENT_RACES: u32 = 3;

pub(crate) struct Writer {
    server: Arc<Server>,
    memory: Memory,
    line: Line,
    /// The last turn that was taken.
    turn: i64,
}

/// The writer's own connection.
struct Line {
    server: Arc<Server>,
    connection: Option<PgConnection>,
    backoff: Duration,
    /// When to try to connect again, and why not before.
    away: Option<(Instant, String)>,
}

/// Why a group was not carried out; each of its writes is answered with it.
type Refused = StoreError;

impl Writer {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self {
            line: Line {
                server: Arc::clone(&server),
                connection: None,
                backoff: FIRST_BACKOFF,
                away: None,
            },
            server,
            memory: Memory::default(),
            turn: 0,
        }
    }

    /// Runs until the queue is closed or a close is asked for.
    pub(crate) async fn run(mut self, mut queue: mpsc::Receiver<Queue>) {
        let mut closing: Option<Closing> = None;
        while closing.is_none()
            && let Some(first) = queue.recv().await
        {
            let group;
            (group, closing) = gather(first, &mut queue);
            self.carry_out(group).await;
        }
        queue.close();
        if let Some(connection) = self.line.connection.take() {
            // The server notices by itself otherwise.
            connection.close().await.ok();
        }
        self.server.leave().await;
        if let Some(closing) = closing {
            closing.done();
        }
    }

    async fn carry_out(&mut self, mut ops: Vec<Op>) {
        if ops.is_empty() {
            return;
        }
        let outcome = self.try_carry_out(&mut ops).await;
        self.server.went(outcome.clone());
        let fault = outcome.err();
        if fault.is_some() {
            self.memory = Memory::default();
        }
        for op in ops {
            op.answer(fault.as_ref());
        }
    }

    async fn try_carry_out(&mut self, ops: &mut [Op]) -> Result<(), Refused> {
        let mut races = 0_u32;
        loop {
            let (evaluated, used) = self.evaluate(ops).await?;
            let group = Group::new(&evaluated, &used, &self.memory);
            if group.is_empty() {
                return Ok(());
            }
            match self.commit(&group).await {
                Ok(Committed::Done(stamp)) => {
                    remember(&mut self.memory, evaluated, stamp);
                    return Ok(());
                }
                Ok(Committed::Raced) => {
                    self.memory.ranges.clear();
                    self.memory.ends.clear();
                }
                Err(Cause::Raced) => self.memory = Memory::default(),
                Err(Cause::NoPartition) => self.make_partitions(&group).await?,
                Err(Cause::Turn) => self.register().await?,
                Err(cause) => return Err(self.refusal(cause)),
            }
            races += 1;
            self.server.raced();
            if races > PATIENT_RACES {
                sleep(pause(races)).await;
            }
        }
    }

    /// Evaluates the ops, reading what they rest on until nothing is missing.
    async fn evaluate(&mut self, ops: &mut [Op]) -> Result<(Evaluated, Used), Refused> {
        for _ in 0..ROUNDS {
            let (outcome, wants, used) = {
                let view = MemoryView::new(&self.memory);
                let outcome = evaluate(&view, &self.server.boot, ops);
                let (wants, used) = view.into_parts();
                (outcome, wants, used)
            };
            match outcome {
                Ok(evaluated) if wants.is_empty() => return Ok((evaluated, used)),
                Ok(_) | Err(ReadError::Engine(KvError::NotRead)) => self.read(&wants).await?,
                Err(error) => self.is_so(&used, &error).await?,
            }
        }
        Err(StoreError::Read {
            path: self.server.path.clone(),
            cause: "a write wants to read without end".to_owned(),
        })
    }

    /// Records that contradict each other may be of different moments: only what all of them say now is an error.
    async fn is_so(&mut self, used: &Used, error: &ReadError) -> Result<(), Refused> {
        let group = Group::new(&Evaluated::default(), used, &self.memory);
        match self.commit(&group).await {
            Ok(Committed::Done(_)) => Err(StoreError::Read {
                path: self.server.path.clone(),
                cause: error.to_string(),
            }),
            Ok(Committed::Raced) => {
                self.server.raced();
                Ok(())
            }
            Err(cause) => Err(self.refusal(cause)),
        }
    }

    async fn read(&mut self, wants: &Wants) -> Result<(), Refused> {
        let connection = self.line.open().await;
        let connection = connection.map_err(|cause| store_error(&self.server.path, cause))?;
        let reading = fetch(&mut *connection, wants, &mut self.memory);
        let cause = match timeout(PATIENCE, reading).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => match failed(&error) {
                Failed::Undone(cause) => cause,
                Failed::Unknown(cause) => Cause::Away(cause),
            },
            Err(_) => Cause::Away("it does not answer".to_owned()),
        };
        self.line.connection = None;
        Err(self.refusal(cause))
    }

    /// Commits. An outcome that was lost with the connection is asked for until it is known.
    async fn commit(&mut self, group: &Group) -> Result<Committed, Cause> {
        let turn = self.turn + 1;
        let connection = self.line.open().await?;
        let committing = group.commit(connection, (&self.server.boot, turn), &mut self.memory);
        let failure = match timeout(PATIENCE, committing).await {
            Ok(Ok(done)) => {
                if group.writes() && matches!(done, Committed::Done(_)) {
                    self.turn = turn;
                }
                return Ok(done);
            }
            Ok(Err(failure)) => failure,
            Err(_) => Failed::Unknown("it does not answer".to_owned()),
        };
        match failure {
            Failed::Undone(cause) => {
                if matches!(cause, Cause::Away(_)) {
                    self.line.connection = None;
                }
                Err(cause)
            }
            Failed::Unknown(cause) => {
                self.line.connection = None;
                if !group.writes() {
                    return Err(Cause::Away(cause));
                }
                tracing::warn!(cause, "the outcome of a commit was lost; asking for it");
                self.resolve(turn, cause).await
            }
        }
    }

    /// What became of the commit of a turn. Takes the turn if nothing has: a commit that is still on its way then fails when it comes.
    async fn resolve(&mut self, turn: i64, cause: String) -> Result<Committed, Cause> {
        const RESOLVE: &str =
            "UPDATE weir.gateway SET turn = $2 WHERE boot = $1 AND turn = $2 - 1 RETURNING turn";
        loop {
            let Ok(connection) = self.line.open().await else {
                sleep(self.line.backoff).await;
                continue;
            };
            let query = sqlx::query(RESOLVE).bind(&self.server.boot).bind(turn);
            match timeout(PATIENCE, query.fetch_optional(&mut *connection)).await {
                Ok(Ok(taken)) => {
                    self.turn = turn;
                    if taken.is_some() {
                        tracing::info!(cause, "the commit had not happened; it is repeated");
                        return Err(Cause::Raced);
                    }
                    tracing::info!(cause, "the commit had happened");
                    return Ok(Committed::Done(None));
                }
                _ => self.line.connection = None,
            }
        }
    }

    /// Makes itself known to the store again, after it was forgotten.
    async fn register(&mut self) -> Result<(), Refused> {
        const REGISTER: &str = "
            INSERT INTO weir.gateway AS g (boot, name, turn, beat) VALUES ($1, $2, $3, clock_timestamp())
            ON CONFLICT (boot) DO UPDATE SET beat = excluded.beat, gone = false RETURNING g.turn";
        let connection = self.line.open().await;
        let connection = connection.map_err(|cause| store_error(&self.server.path, cause))?;
        let query = sqlx::query(REGISTER)
            .bind(&self.server.boot)
            .bind(&self.server.name)
            .bind(self.turn);
        let row = query.fetch_one(&mut *connection).await;
        let turn = row.and_then(|row| row.try_get::<i64, _>(0));
        match turn {
            Ok(turn) => {
                self.turn = turn;
                self.memory = Memory::default();
                Ok(())
            }
            Err(error) => {
                self.line.connection = None;
                Err(self.refusal(Cause::Away(error.to_string())))
            }
        }
    }

    async fn make_partitions(&mut self, group: &Group) -> Result<(), Refused> {
        let connection = self.line.open().await;
        let connection = connection.map_err(|cause| store_error(&self.server.path, cause))?;
        let made = crate::upkeep::make_partitions(connection, group.chunk_runs()).await;
        made.map_err(|error| match failed(&error) {
            Failed::Undone(cause) => self.refusal(cause),
            Failed::Unknown(cause) => self.refusal(Cause::Away(cause)),
        })
    }

    fn refusal(&mut self, cause: Cause) -> StoreError {
        if let Cause::Away(cause) = &cause {
            tracing::error!(
                cause,
                store = self.server.path,
                "the store cannot be reached"
            );
        }
        store_error(&self.server.path, cause)
    }
}

/// Longer with every race that was lost, and not the same for every gateway.
fn pause(races: u32) -> Duration {
    let spread = u64::from(Instant::now().elapsed().subsec_nanos() % 7) + 1;
    Duration::from_micros(200 * spread * u64::from(races.min(20)))
}

impl Line {
    /// The connection, opened where there is none. While the server is away it is asked at growing intervals, not for every write.
    async fn open(&mut self) -> Result<&mut PgConnection, Cause> {
        if self.connection.is_none() {
            if let Some((until, why)) = &self.away
                && Instant::now() < *until
            {
                return Err(Cause::Away(why.clone()));
            }
            let why = match timeout(PATIENCE, self.server.options.connect()).await {
                Ok(Ok(opened)) => {
                    self.connection = Some(opened);
                    self.away = None;
                    self.backoff = FIRST_BACKOFF;
                    String::new()
                }
                Ok(Err(error)) => crate::error::chain(&error),
                Err(_) => "it does not answer".to_owned(),
            };
            if self.connection.is_none() {
                self.backoff = (self.backoff * 2).min(LONGEST_BACKOFF);
                self.away = Some((Instant::now() + self.backoff, why.clone()));
                return Err(Cause::Away(why));
            }
        }
        self.connection
            .as_mut()
            .ok_or_else(|| Cause::Away("there is no connection".to_owned()))
    }
}
