//! A medium in memory. What was not synced when the power goes is lost sector by sector, in any combination.

#![allow(
    clippy::unwrap_used,
    reason = "a part of the tests that tests of other crates use too"
)]

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

#[path = "../../../../../e2e/src/splitmix.rs"]
#[allow(
    dead_code,
    unreachable_pub,
    reason = "it is a module of the end-to-end tests"
)]
mod splitmix;

use super::disk::{Disk, Fill, Segment};
use crate::kv::KvError;
use crate::kv::redb_kv::RedbKv;

const SECTOR: usize = 512;
const BASE: &str = "checkpoint";

#[derive(Clone, Debug)]
pub(crate) struct Medium(Arc<Mutex<State>>);

#[derive(Debug)]
pub(crate) struct State {
    files: BTreeMap<String, File>,
    random: Random,
    /// Writes and syncs that still succeed; `None`: all.
    pub(crate) fuel: Option<u64>,
    /// One that says it has synced a segment and has not.
    pub(crate) lies: bool,
    /// One that is out of space for new segments.
    pub(crate) full: bool,
}

#[derive(Debug, Default)]
struct File {
    /// As a running process sees it.
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors written since the last sync, each write of each.
    pending: Vec<(usize, Vec<u8>)>,
}

impl Medium {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            files: BTreeMap::new(),
            random: Random(seed),
            fuel: None,
            lies: false,
            full: false,
        })))
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.lock());
    }

    /// The power goes and comes back.
    pub(crate) fn cut_power(&self) {
        let state = &mut *self.0.lock();
        let random = &mut state.random;
        for file in state.files.values_mut() {
            // In one cut out of three everything goes, or nothing, or anything.
            let kept = [0, 50, 100][usize::try_from(random.below(3)).unwrap()];
            if file.now.len() != file.durable.len() && random.below(100) < kept {
                file.durable.resize(file.now.len(), 0);
            }
            for (sector, bytes) in std::mem::take(&mut file.pending) {
                if random.below(100) < kept {
                    overwrite(&mut file.durable, sector * SECTOR, &bytes);
                }
            }
            file.now.clone_from(&file.durable);
        }
        state.fuel = None;
    }

    /// The process dies, the kernel does not.
    pub(crate) fn kill(&self) {
        self.set(|state| state.fuel = None);
    }

    /// Whether nothing can be written any more.
    #[cfg(feature = "faults")]
    pub(crate) fn is_dead(&self) -> bool {
        self.0.lock().fuel == Some(0)
    }

    /// Segments with what a reader sees.
    pub(crate) fn contents(&self) -> Vec<(String, Vec<u8>)> {
        let state = self.0.lock();
        let segments = state.files.iter().filter(|(name, _)| *name != BASE);
        segments
            .map(|(name, file)| (name.clone(), file.now.clone()))
            .collect()
    }

    /// Another medium with the same bytes.
    #[cfg(test)]
    pub(crate) fn copy(&self) -> Self {
        let copy = Self::new(1);
        let files = self.0.lock();
        for (name, file) in &files.files {
            let bytes = file.now.clone();
            copy.put(name, bytes);
        }
        drop(files);
        copy
    }

    /// Replaces a file by other durable bytes.
    pub(crate) fn put(&self, name: &str, bytes: Vec<u8>) {
        let file = File {
            now: bytes.clone(),
            durable: bytes,
            pending: vec![],
        };
        self.0.lock().files.insert(name.to_owned(), file);
    }

    /// Does something to a file, if there is power.
    fn with<T>(&self, name: &str, act: impl FnOnce(&mut File, bool) -> T) -> io::Result<T> {
        let state = &mut *self.0.lock();
        let on = state.burn();
        let file = state.files.get_mut(name).ok_or_else(missing)?;
        let done = act(file, on);
        if on { Ok(done) } else { Err(no_power()) }
    }

    fn write(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        let dead = self.0.lock().fuel == Some(0);
        // The write that the cut meets is under way: its sectors may be on the medium.
        if dead {
            return Err(no_power());
        }
        self.with(name, |file, _| {
            assert!(offset + bytes.len() <= file.now.len(), "within the file");
            overwrite(&mut file.now, offset, bytes);
            let (first, end) = (offset / SECTOR, (offset + bytes.len()).div_ceil(SECTOR));
            for sector in first..end {
                let end = file.now.len().min((sector + 1) * SECTOR);
                let bytes = file.now[sector * SECTOR..end].to_vec();
                file.pending.push((sector, bytes));
            }
        })
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        let lies = self.0.lock().lies && name != BASE;
        self.with(name, |file, on| {
            if on && !lies {
                file.pending.clear();
                file.durable.clone_from(&file.now);
            }
        })
    }
}

impl State {
    /// Whether there is power for one more write or sync.
    fn burn(&mut self) -> bool {
        match &mut self.fuel {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                *left > 0
            }
        }
    }
}

fn overwrite(file: &mut [u8], offset: usize, bytes: &[u8]) {
    // What is beyond the end was cut off with the length.
    for (to, from) in file.iter_mut().skip(offset).zip(bytes) {
        *to = *from;
    }
}

fn no_power() -> io::Error {
    io::Error::other("no power")
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl Disk for Medium {
    fn segments(&self) -> io::Result<Vec<String>> {
        Ok(self.contents().into_iter().map(|(name, _)| name).collect())
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn Segment>> {
        Ok(Box::new(Handle(self.clone(), name.to_owned())))
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Box<dyn Segment>> {
        let on = self.0.lock().burn();
        // A cut before the name is durable leaves the file or does not; its zeros were synced before.
        if on || self.0.lock().random.below(2) == 0 {
            self.put(name, vec![0; usize::try_from(bytes).unwrap()]);
        }
        if on { self.open(name) } else { Err(no_power()) }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let state = &mut *self.0.lock();
        // Removing is not synced: at a cut just after it the file may be there again. The log must not mind, so it is left half the time.
        if state.burn() && state.random.below(2) == 0 {
            state.files.remove(name);
        }
        Ok(())
    }

    fn free_bytes(&self) -> u64 {
        if self.0.lock().full { 0 } else { u64::MAX }
    }

    fn has_base(&self) -> io::Result<bool> {
        Ok(self.0.lock().files.contains_key(BASE))
    }

    fn base(&self, fill: Fill<'_>) -> Result<RedbKv, KvError> {
        if !self.has_base().unwrap() {
            // Without its name a file that was begun is gone after a crash.
            let unnamed = Self::new(7);
            unnamed.put(BASE, vec![]);
            fill(&RedbKv::on(Handle(unnamed.clone(), BASE.to_owned()))?)?;
            let bytes = unnamed.0.lock().files[BASE].now.clone();
            let on = self.0.lock().burn();
            if on || self.0.lock().random.below(2) == 0 {
                self.put(BASE, bytes);
            }
        }
        RedbKv::on(Handle(self.clone(), BASE.to_owned()))
    }
}

#[derive(Debug)]
struct Handle(Medium, String);

impl Segment for Handle {
    fn read(&self) -> io::Result<Vec<u8>> {
        self.0.with(&self.1, |file, _| file.now.clone())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write(&self.1, offset, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync(&self.1)
    }

    fn forget(&self) {}
}

impl redb::StorageBackend for Handle {
    fn len(&self) -> io::Result<u64> {
        self.0.with(&self.1, |file, _| file.now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let offset = usize::try_from(offset).unwrap();
        self.0.with(&self.1, |file, _| {
            out.copy_from_slice(&file.now[offset..][..out.len()]);
        })
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).unwrap();
        self.0.with(&self.1, |file, on| {
            if on {
                file.now.resize(len, 0);
            }
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync(&self.1)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(&self.1, offset, data)
    }
}

/// What a cut takes.
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        splitmix::next(&mut self.0)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
