//! Making a group durable: one statement that changes nothing unless all it rests on is still as it was read.

use std::collections::HashSet;

use sqlx::{PgConnection, Row};
use weir_store::engine::{Evaluated, chunk_of, key};

use crate::error::{Failed, failed};
use crate::memory::{Last, Memory, Record, Used, chunk_run};

const COMMIT: &str = "SELECT kind, key, version, value FROM weir.commit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)";

/// The arguments of the statement.
#[derive(Debug, Default)]
pub(crate) struct Group {
    keys: Vec<Vec<u8>>,
    versions: Vec<i64>,
    runs: Vec<Vec<u8>>,
    lasts: Vec<i64>,
    /// Written, and read as absent.
    new: Pairs,
    /// Written, and read as present.
    set: Pairs,
    /// Written without having been read: their keys have a run's id in them, and the run's own records are among those read.
    put: Pairs,
    drop: Vec<Vec<u8>>,
    chunks: Chunks,
    drop_chunks: Chunks,
    expired: Vec<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Pairs {
    keys: Vec<Vec<u8>>,
    values: Vec<Vec<u8>>,
}

impl Pairs {
    fn push(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.keys.push(key);
        self.values.push(value);
    }
}

#[derive(Debug, Default)]
struct Chunks {
    runs: Vec<Vec<u8>>,
    firsts: Vec<i64>,
    values: Vec<Vec<u8>>,
}

/// What the statement said.
#[derive(Debug)]
pub(crate) enum Committed {
    /// Durable; what was written has this version, if it is known.
    Done(Option<i64>),
    /// Nothing was changed; memory was brought up to date.
    Raced,
}

impl Group {
    /// What an evaluation changes and rests on.
    pub(crate) fn new(evaluated: &Evaluated, used: &Used, memory: &Memory) -> Self {
        let mut group = Self::default();
        for key in &used.records {
            group.rest_on(key, memory);
        }
        for run in &used.lasts {
            let last = memory.lasts.get(run).map_or(0, |last| last.first);
            group.runs.push(run.to_bytes().to_vec());
            group.lasts.push(last);
        }
        for (key, value) in &evaluated.batch {
            match (chunk_of(key), value) {
                (Some((run, first)), value) => {
                    let to = if value.is_some() {
                        &mut group.chunks
                    } else {
                        &mut group.drop_chunks
                    };
                    to.runs.push(run.to_bytes().to_vec());
                    to.firsts.push(first.0.cast_signed());
                    to.values.extend(value.clone());
                }
                (None, value) => group.write(key, value.as_deref(), used, memory),
            }
        }
        group.expired = evaluated
            .expired
            .iter()
            .map(|run| run.to_bytes().to_vec())
            .collect();
        group
    }

    fn rest_on(&mut self, key: &[u8], memory: &Memory) {
        let version = memory.records.get(key).map_or(0, |record| record.version);
        self.keys.push(key.to_vec());
        self.versions.push(version);
    }

    fn write(&mut self, key: &[u8], value: Option<&[u8]>, used: &Used, memory: &Memory) {
        let known = memory.records.get(key);
        if !used.records.contains(key) && known.is_some() {
            // Seen by the way, in a range: it is written as it was seen then.
            self.rest_on(key, memory);
        }
        let (key, there) = (key.to_vec(), known.map(|record| record.value.is_some()));
        match (value, there) {
            (None, _) => self.drop.push(key),
            (Some(value), None) => self.put.push(key, value.to_vec()),
            (Some(value), Some(false)) => self.new.push(key, value.to_vec()),
            (Some(value), Some(true)) => self.set.push(key, value.to_vec()),
        }
    }

    /// Whether it rests on nothing and changes nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.runs.is_empty() && !self.writes()
    }

    /// Whether it takes a turn.
    pub(crate) fn writes(&self) -> bool {
        let parts = [
            &self.new.keys,
            &self.set.keys,
            &self.put.keys,
            &self.drop,
            &self.chunks.runs,
            &self.drop_chunks.runs,
            &self.expired,
        ];
        parts.iter().any(|part| !part.is_empty())
    }

    /// Runs whose events it has, for their partitions.
    pub(crate) fn chunk_runs(&self) -> &[Vec<u8>] {
        &self.chunks.runs
    }

    /// Carries it out. What another gateway changed meanwhile is put into `memory`.
    pub(crate) async fn commit(
        &self,
        connection: &mut PgConnection,
        (boot, turn): (&str, i64),
        memory: &mut Memory,
    ) -> Result<Committed, Failed> {
        let rows = sqlx::query(COMMIT)
            .bind(boot)
            .bind(turn)
            .bind(&self.keys)
            .bind(&self.versions)
            .bind(&self.runs)
            .bind(&self.lasts)
            .bind(&self.new.keys)
            .bind(&self.new.values)
            .bind(&self.set.keys)
            .bind(&self.set.values)
            .bind(&self.put.keys)
            .bind(&self.put.values)
            .bind(&self.drop)
            .bind(&self.chunks.runs)
            .bind(&self.chunks.firsts)
            .bind(&self.chunks.values)
            .bind(&self.drop_chunks.runs)
            .bind(&self.drop_chunks.firsts)
            .bind(&self.expired)
            .fetch_all(connection)
            .await
            .map_err(|error| failed(&error))?;
        let mut stamp = None;
        for row in rows {
            let undecodable = |error: sqlx::Error| Failed::Unknown(error.to_string());
            let kind: i32 = row.try_get(0).map_err(undecodable)?;
            let key: Option<Vec<u8>> = row.try_get(1).map_err(undecodable)?;
            let version: i64 = row.try_get(2).map_err(undecodable)?;
            let value: Option<Vec<u8>> = row.try_get(3).map_err(undecodable)?;
            match (kind, key) {
                (1, Some(key)) => {
                    memory.records.insert(key, Record { version, value });
                }
                (2, Some(run)) => {
                    let run = chunk_run(&[&[key::CHUNK], run.as_slice()].concat());
                    if let Some(run) = run {
                        let first = version;
                        memory.lasts.insert(run, Last { first, value });
                    }
                }
                _ => stamp = Some(version),
            }
        }
        Ok(stamp.map_or(Committed::Raced, |stamp| Committed::Done(Some(stamp))))
    }
}

/// Brings memory to what a commit has made durable, and keeps of it only what the next groups are likely to rest on.
pub(crate) fn remember(memory: &mut Memory, evaluated: Evaluated, stamp: Option<i64>) {
    let Some(stamp) = stamp else {
        // It is not known which version was written: everything is read again.
        *memory = Memory::default();
        return;
    };
    memory.ranges.clear();
    memory.ends.clear();
    let mut ended = HashSet::new();
    for (key, value) in evaluated.batch {
        if let Some((run, first)) = chunk_of(&key) {
            if value.is_some() {
                let first = first.0.cast_signed();
                memory.lasts.insert(run, Last { first, value });
            } else {
                memory.lasts.remove(&run);
            }
            continue;
        }
        if key.first() == Some(&key::OPEN) && value.is_none() {
            ended.extend(key::trailing_run(&key));
        }
        let version = if value.is_some() { stamp } else { 0 };
        memory.records.insert(key, Record { version, value });
    }
    // Nothing is appended to a run that has ended.
    memory.lasts.retain(|run, _| !ended.contains(run));
    let is_kept = |key: &[u8]| {
        let family = key.first().is_some_and(|family| KEPT.contains(family));
        let over = !matches!(key.first(), Some(&key::ACCOUNT | &key::HEAD))
            && key::trailing_run(key).is_some_and(|run| ended.contains(&run));
        family && !over
    };
    memory
        .records
        .retain(|key, record| record.value.is_some() && is_kept(key));
    if memory.records.len() > MOST || memory.lasts.len() > MOST {
        *memory = Memory::default();
    }
}

/// Accounts, heads of chains, and what says of a live run: owner, row, reservation.
const KEPT: [u8; 5] = [key::ACCOUNT, key::HEAD, b'i', b'r', key::OPEN];
/// Records kept between groups: those of 100,000 live runs. Beyond it all are read again.
const MOST: usize = 400_000;
