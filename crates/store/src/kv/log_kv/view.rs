//! One state, put together from the tables and the checkpoint below them.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::table::{Known, Table};
use crate::kv::{KvError, Pair, View, Visit};

/// Keys taken from a table at a time; its lock is not held in between.
const STRIDE: usize = 256;

pub(super) struct LogView<'a> {
    /// Newest first.
    pub(super) tables: Vec<Arc<Table>>,
    pub(super) sequence: u64,
    pub(super) base: Box<dyn View + 'a>,
    /// Open views, this one included.
    pub(super) open: &'a AtomicUsize,
}

impl Drop for LogView<'_> {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl View for LogView<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KvError> {
        let known = self
            .tables
            .iter()
            .find_map(|table| table.get(key, self.sequence));
        known.map_or_else(|| self.base.get(key), |fate| Ok(fate.0))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visit<'_>) -> Result<(), KvError> {
        if from >= to {
            return Ok(());
        }
        let mut above = Above {
            view: self,
            buffer: vec![].into_iter().peekable(),
            from: Some(Bound::Included(from.to_vec())),
            to,
        };
        let mut stopped = false;
        self.base.scan(from, to, &mut |key, value| {
            let shadowed = loop {
                match above.peek() {
                    Some((next, _)) if next.as_slice() <= key => {
                        let same = next.as_slice() == key;
                        if above.show(visit).is_break() {
                            stopped = true;
                            return ControlFlow::Break(());
                        }
                        if same {
                            break true;
                        }
                    }
                    _ => break false,
                }
            };
            let flow = if shadowed {
                ControlFlow::Continue(())
            } else {
                visit(key, value)
            };
            stopped = flow.is_break();
            flow
        })?;
        while !stopped && above.peek().is_some() {
            stopped = above.show(visit).is_break();
        }
        Ok(())
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<Pair>, KvError> {
        let mut to = to.to_vec();
        while from < to.as_slice() {
            let below = self.base.last(from, &to)?;
            let above = self.last_above(from, &to);
            match (below, above) {
                (below, None) => return Ok(below),
                (Some(below), Some((key, _))) if below.0 > key => return Ok(Some(below)),
                (_, Some((key, Some(value)))) => return Ok(Some((key, value))),
                // Removed: look before it.
                (_, Some((key, None))) => to = key,
            }
        }
        Ok(None)
    }
}

impl LogView<'_> {
    fn last_above(&self, from: &[u8], to: &[u8]) -> Option<Known> {
        let mut last: Option<Known> = None;
        for table in &self.tables {
            let found = table.last(from, to, self.sequence);
            // Of the same key the newer table has the say.
            if let Some(found) = found
                && last.as_ref().is_none_or(|last| found.0 > last.0)
            {
                last = Some(found);
            }
        }
        last
    }

    /// The next keys of all tables, and where to go on, if there may be more.
    fn stride(&self, from: &Bound<Vec<u8>>, to: &[u8]) -> (Vec<Known>, Option<Bound<Vec<u8>>>) {
        let mut merged: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
        let mut complete_to: Option<Vec<u8>> = None;
        let from = from.as_ref().map(Vec::as_slice);
        for table in &self.tables {
            let known = table.first(from, to, self.sequence, STRIDE);
            if known.len() == STRIDE
                && let Some((last, _)) = known.last()
                && complete_to.as_ref().is_none_or(|to| last < to)
            {
                complete_to = Some(last.clone());
            }
            for (key, value) in known {
                merged.entry(key).or_insert(value);
            }
        }
        // Beyond the end of a table that was cut short, others may be out of date.
        if let Some(end) = &complete_to {
            merged.retain(|key, _| key <= end);
        }
        (
            merged.into_iter().collect(),
            complete_to.map(Bound::Excluded),
        )
    }
}

/// The tables' keys in order.
struct Above<'a, 'v> {
    view: &'a LogView<'v>,
    buffer: std::iter::Peekable<std::vec::IntoIter<Known>>,
    /// `None` when the tables have no more.
    from: Option<Bound<Vec<u8>>>,
    to: &'a [u8],
}

impl Above<'_, '_> {
    fn peek(&mut self) -> Option<&Known> {
        while self.buffer.peek().is_none() {
            let from = self.from.take()?;
            let (known, next) = self.view.stride(&from, self.to);
            self.buffer = known.into_iter().peekable();
            self.from = next;
        }
        self.buffer.peek()
    }

    /// Takes the next key and shows it, unless it was removed.
    fn show(&mut self, visit: Visit<'_>) -> ControlFlow<()> {
        match self.buffer.next() {
            Some((key, Some(value))) => visit(&key, &value),
            _ => ControlFlow::Continue(()),
        }
    }
}
