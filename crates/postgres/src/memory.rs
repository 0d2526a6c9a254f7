//! A view of the records over what was read of them so far; it notes what is wanted besides and what was relied on.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

use weir_run::{RunId, Sequence};
use weir_store::engine::{KvError, Pair, View, Visit, chunk_of, key};

/// Rows of a range that are read at first.
const FIRST_ROWS: i64 = 64;
/// By how much more are read each time that was too few.
const MORE: i64 = 16;

/// A record as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// 0 when it is not there.
    pub(crate) version: i64,
    pub(crate) value: Option<Vec<u8>>,
}

impl Record {
    pub(crate) fn there(version: i64, value: Vec<u8>) -> Self {
        let value = Some(value);
        Self { version, value }
    }
}

/// The last chunk of a run: its first sequence (0: there is none) and its value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Last {
    pub(crate) first: i64,
    pub(crate) value: Option<Vec<u8>>,
}

/// A range that was read.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) rows: Vec<Pair>,
    /// There is nothing after them.
    pub(crate) complete: bool,
}

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) records: HashMap<Vec<u8>, Record>,
    pub(crate) lasts: HashMap<RunId, Last>,
    pub(crate) ranges: HashMap<(Vec<u8>, Vec<u8>), Rows>,
    pub(crate) ends: HashMap<(Vec<u8>, Vec<u8>), Option<Pair>>,
}

/// What is to be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wants {
    pub(crate) records: BTreeSet<Vec<u8>>,
    pub(crate) lasts: BTreeSet<RunId>,
    /// From, to, rows at most.
    pub(crate) ranges: BTreeSet<(Vec<u8>, Vec<u8>, i64)>,
    /// The last pair from, to.
    pub(crate) ends: BTreeSet<(Vec<u8>, Vec<u8>)>,
}

impl Wants {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds what is new; of a range the larger part counts.
    pub(crate) fn add(&mut self, more: Self) {
        self.records.extend(more.records);
        self.lasts.extend(more.lasts);
        self.ends.extend(more.ends);
        for (from, to, rows) in more.ranges {
            self.ranges
                .retain(|(other_from, other_to, _)| (other_from, other_to) != (&from, &to));
            self.ranges.insert((from, to, rows));
        }
    }
}

/// What an evaluation relied on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Used {
    pub(crate) records: BTreeSet<Vec<u8>>,
    pub(crate) lasts: BTreeSet<RunId>,
}

/// A view over a memory.
pub(crate) struct MemoryView<'a> {
    memory: &'a Memory,
    wants: RefCell<Wants>,
    used: RefCell<Used>,
}

impl<'a> MemoryView<'a> {
    pub(crate) fn new(memory: &'a Memory) -> Self {
        Self {
            memory,
            wants: RefCell::default(),
            used: RefCell::default(),
        }
    }

    pub(crate) fn into_parts(self) -> (Wants, Used) {
        (self.wants.into_inner(), self.used.into_inner())
    }
}

/// The run whose whole log this range is.
fn whole_log(from: &[u8], to: &[u8]) -> Option<RunId> {
    let bytes: &[u8; 16] = from.strip_prefix(&[key::CHUNK])?.try_into().ok()?;
    let run = RunId::from_bytes(*bytes);
    let (start, end) = key::chunks(run);
    ((start.as_slice(), end.as_slice()) == (from, to)).then_some(run)
}

impl View for MemoryView<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        if let Some(record) = self.memory.records.get(key) {
            self.used.borrow_mut().records.insert(key.to_vec());
            return Ok(record.value.clone());
        }
        self.wants.borrow_mut().records.insert(key.to_vec());
        Err(KvError::NotRead)
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        let range = (from.to_vec(), to.to_vec());
        let known = self.memory.ranges.get(&range);
        let mut seen = 0;
        if let Some(known) = known {
            for (key, value) in &known.rows {
                seen += 1;
                if visit(key, value) == ControlFlow::Break(()) {
                    return Ok(());
                }
            }
            if known.complete {
                return Ok(());
            }
        }
        let rows = (seen * MORE).max(FIRST_ROWS);
        self.wants
            .borrow_mut()
            .ranges
            .insert((range.0, range.1, rows));
        Err(KvError::NotRead)
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<Pair>, KvError> {
        if let Some(run) = whole_log(from, to) {
            let Some(last) = self.memory.lasts.get(&run) else {
                self.wants.borrow_mut().lasts.insert(run);
                return Err(KvError::NotRead);
            };
            self.used.borrow_mut().lasts.insert(run);
            let pair = |value: &Vec<u8>| (chunk_key(run, last.first), value.clone());
            return Ok(last.value.as_ref().map(pair));
        }
        let range = (from.to_vec(), to.to_vec());
        if let Some(end) = self.memory.ends.get(&range) {
            return Ok(end.clone());
        }
        self.wants.borrow_mut().ends.insert(range);
        Err(KvError::NotRead)
    }
}

/// The key of a chunk as `weir_store` writes it.
pub(crate) fn chunk_key(run: RunId, first: i64) -> Vec<u8> {
    let (mut key, _) = key::chunks(run);
    key.extend_from_slice(&first.cast_unsigned().to_be_bytes());
    key
}

/// A bound of a range of chunks: the run and the sequence from which on, or up to which. `None`: not within one run's log.
pub(crate) fn chunk_bound(bytes: &[u8], run: RunId) -> Option<i64> {
    if let Some((of, Sequence(first))) = chunk_of(bytes) {
        return (of == run).then(|| i64::try_from(first).unwrap_or(i64::MAX));
    }
    let (start, end) = key::chunks(run);
    if bytes == start {
        Some(0)
    } else if bytes == end {
        Some(i64::MAX)
    } else {
        None
    }
}

/// The run that a key of the events' family begins with.
pub(crate) fn chunk_run(bytes: &[u8]) -> Option<RunId> {
    let rest = bytes.strip_prefix(&[key::CHUNK])?.get(..16)?;
    Some(RunId::from_bytes(rest.try_into().ok()?))
}
