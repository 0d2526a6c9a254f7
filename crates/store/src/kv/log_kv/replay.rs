//! Opening: what the log holds beyond the checkpoint.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use parking_lot::{Condvar, Mutex, RwLock};

use super::disk::Disk;
use super::frame::{self, Secret};
use super::table::Table;
use super::{Core, Frozen, Mark, Named, Shown, Tail};
use crate::Durability;
use crate::kv::redb_kv::{Put, RedbKv};
use crate::kv::{Batch, Kv, KvError};
use crate::record::{BadRecord, Decoder, Encoder, seal, unseal};

/// Where the mark is in the checkpoint: before all families of records, and in none of their ranges.
const MARK_KEY: &[u8] = b"\0log";
/// There while commits may have been made that were not synced.
const LOOSE_KEY: &[u8] = b"\0loose";
/// Format of mark and frames.
const FORMAT: u64 = 1;
/// With more than this many segments to read back, they are carried over before the first commit: a process that is killed again and again
/// must not gather ever more.
const MAX_BEHIND: usize = 2;

/// Opens the log; the keeper is yet to be started.
pub(super) fn open(
    disk: Box<dyn Disk>,
    segment_bytes: u64,
    durability: Durability,
) -> Result<Core, KvError> {
    let io = |error: std::io::Error| KvError::from_io(&error);
    let names = disk.segments().map_err(io)?;
    if !names.is_empty() && !disk.has_base().map_err(io)? {
        return Err(damaged("there are segments, and no checkpoint".into()));
    }
    let base = disk.base(&first_mark)?;
    let (mark, secret) = mark(&base)?;
    let last_name = names.iter().filter_map(|name| number(name)).max();
    let found = read(&*disk, names, mark, &secret).map_err(io)?;
    let is_loose = loosened(&base, durability)?;
    let frozen = replay(found.commits, mark, is_loose)?;
    let (end, behind) = match frozen {
        None => (mark, VecDeque::new()),
        Some((table, end)) => {
            let frozen = Frozen {
                table: Arc::new(table),
                mark: end,
                segments: Mutex::new(found.used),
            };
            (end, VecDeque::from([Arc::new(frozen)]))
        }
    };
    let (spares, odd): (Vec<_>, Vec<_>) = found
        .spares
        .into_iter()
        .partition(|spare| spare.bytes == segment_bytes);
    for segment in odd {
        disk.remove(&segment.name).map_err(io)?;
    }
    let many = behind
        .front()
        .is_some_and(|frozen| is_loose || frozen.segments.lock().len() > MAX_BEHIND);
    let core = Core {
        disk,
        base,
        secret,
        durability,
        segment_bytes,
        tail: Mutex::new(Tail {
            segment: None,
            number: end.segment,
            offset: 0,
            buffer: vec![],
        }),
        shown: RwLock::new(Shown {
            sequence: end.sequence,
            active: Arc::default(),
            frozen: behind,
        }),
        views: AtomicUsize::new(0),
        spares: Mutex::new(spares),
        names: AtomicU64::new(last_name.unwrap_or(0)),
        making: Mutex::new(()),
        carrying: Mutex::new(()),
        fault: Mutex::new(None),
        work: Mutex::new(false),
        wake: Condvar::new(),
        stopping: AtomicBool::new(false),
    };
    if many {
        // After gaps also so that what was dropped can never be taken for something new.
        core.carry_over()?;
    }
    if is_loose && durability == Durability::Disk {
        core.base.write(|put| put(LOOSE_KEY, None))?;
    }
    core.wake_keeper();
    Ok(core)
}

/// The number that the name of a segment is made of.
fn number(name: &str) -> Option<u64> {
    name.strip_suffix(".segment")?.parse().ok()
}

/// The mark and the secret of this store.
fn mark(base: &RedbKv) -> Result<(Mark, Secret), KvError> {
    let sealed = base.view()?.get(MARK_KEY)?;
    let sealed = sealed.ok_or_else(|| damaged("the checkpoint has no mark".into()))?;
    unseal(MARK_KEY, &sealed)
        .and_then(decode_mark)
        .map_err(|error| damaged(format!("the mark: {error}")))
}

/// What a new checkpoint begins with.
fn first_mark(base: &RedbKv) -> Result<(), KvError> {
    let mut secret = Secret::default();
    getrandom::fill(&mut secret).map_err(|error| KvError::Io(error.to_string()))?;
    let mark = Mark {
        segment: 0,
        sequence: 0,
    };
    base.write(|put| save_mark(mark, &secret, put))
}

pub(super) fn save_mark(mark: Mark, secret: &Secret, put: Put<'_>) -> Result<(), KvError> {
    let mut to = Encoder::with_capacity(40);
    to.number(FORMAT);
    to.number(mark.segment);
    to.number(mark.sequence);
    to.raw(secret);
    put(MARK_KEY, Some(&seal(MARK_KEY, to.into_bytes())))
}

fn decode_mark(payload: &[u8]) -> Result<(Mark, Secret), BadRecord> {
    let mut from = Decoder::new(payload);
    if from.number("format of the log")? != FORMAT {
        return Err(BadRecord::Value("format of the log"));
    }
    let mark = Mark {
        segment: from.number("segment")?,
        sequence: from.number("sequence")?,
    };
    let secret = from.raw("secret")?;
    from.finish()?;
    Ok((mark, secret))
}

/// A commit read back.
struct Commit {
    sequence: u64,
    segment: u64,
    batch: Result<Batch, BadRecord>,
}

struct Found {
    commits: Vec<Commit>,
    /// Segments that hold them.
    used: Vec<Named>,
    spares: Vec<Named>,
}

fn read(
    disk: &dyn Disk,
    names: Vec<String>,
    mark: Mark,
    secret: &Secret,
) -> std::io::Result<Found> {
    let mut found = Found {
        commits: vec![],
        used: vec![],
        spares: vec![],
    };
    for name in names {
        let file = disk.open(&name)?;
        // A killed process may have left a frame in the kernel's memory: what is read and shown from here on has to be on the medium.
        file.sync()?;
        let bytes = file.read()?;
        let frames = frame::scan(secret, &bytes, mark.segment);
        let segment = Named {
            name,
            bytes: bytes.len() as u64,
            file: Arc::from(file),
        };
        if frames.is_empty() {
            found.spares.push(segment);
        } else {
            found.used.push(segment);
        }
        found.commits.extend(frames.iter().map(|frame| Commit {
            sequence: frame.sequence,
            segment: frame.segment,
            batch: frame.batch(),
        }));
    }
    Ok(found)
}

/// Whether commits were made, or are going to be, that did not wait for a sync; noted in the checkpoint before the first.
fn loosened(base: &RedbKv, durability: Durability) -> Result<bool, KvError> {
    let noted = base.view()?.get(LOOSE_KEY)?.is_some();
    if durability == Durability::Memory && !noted {
        base.write(|put| put(LOOSE_KEY, Some(&seal(LOOSE_KEY, vec![]))))?;
    }
    Ok(noted)
}

/// The commits after the mark as a table. None may be missing before the last; where commits were not synced, those up to the first that is
/// missing count, and the mark that is returned leaves the rest behind.
fn replay(
    mut commits: Vec<Commit>,
    mark: Mark,
    is_loose: bool,
) -> Result<Option<(Table, Mark)>, KvError> {
    commits.sort_by_key(|commit| (commit.sequence, commit.segment));
    let last_segment = commits.iter().map(|commit| commit.segment).max();
    let table = Table::default();
    let mut end = mark;
    let mut segments = BTreeSet::new();
    for commit in commits {
        let wanted = end.sequence + 1;
        if commit.sequence != wanted || commit.segment < end.segment {
            if is_loose {
                break;
            }
            return Err(damaged(format!(
                "commit {wanted} is missing, commit {} of segment {} is there",
                commit.sequence, commit.segment
            )));
        }
        let batch = commit
            .batch
            .map_err(|error| damaged(format!("commit {wanted}: {error}")))?;
        table.put(commit.sequence, &batch, false);
        segments.insert(commit.segment);
        end = Mark {
            segment: commit.segment,
            sequence: commit.sequence,
        };
    }
    if is_loose && let Some(segment) = last_segment {
        let sequence = end.sequence;
        return Ok(Some((table, Mark { segment, sequence })));
    }
    Ok((!segments.is_empty()).then_some((table, end)))
}

fn damaged(cause: String) -> KvError {
    KvError::Damaged {
        engine: "log",
        cause,
    }
}
