//! Carries frozen tables over into the checkpoint and keeps a spare segment at hand.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use super::frame::BLOCK;
use super::replay::save_mark;
use super::{Core, Frozen, MAX_FROZEN, Named};
use crate::Durability;
use crate::fault;
use crate::kv::KvError;

/// Spares that are kept; more are left over when commits came faster than checkpoints.
const MAX_SPARES: usize = 3;
/// Space that a segment made ahead leaves to others.
const LEAVE_BYTES: u64 = 32 << 20;

/// How often commits are synced that did not wait for it.
const SYNC_EVERY: Duration = Duration::from_secs(1);

pub(super) fn start(core: Arc<Core>) -> io::Result<JoinHandle<()>> {
    let world = fault::inherit();
    std::thread::Builder::new()
        .name("weir-store-log".into())
        .spawn(move || {
            world.enter();
            core.keep();
        })
}

impl Core {
    pub(super) fn wake_keeper(&self) {
        *self.work.lock() = true;
        self.wake.notify_one();
    }

    /// What is frozen stays in the log: the next opening carries it over.
    pub(super) fn stop_keeper(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.wake_keeper();
    }

    fn keep(&self) {
        loop {
            let mut work = self.work.lock();
            let mut late = false;
            while !*work && !late {
                match self.durability {
                    Durability::Disk => self.wake.wait(&mut work),
                    Durability::Memory => {
                        late = self.wake.wait_for(&mut work, SYNC_EVERY).timed_out();
                    }
                }
            }
            *work = false;
            drop(work);
            if self.stopping.load(Ordering::Relaxed) {
                return;
            }
            if self.durability == Durability::Memory {
                let _ = self.sync_written();
            }
            // The error was noted as the fault that the next commit meets.
            let _ = self.keep_up();
        }
    }

    /// Syncs what commits did not wait for, oldest first.
    pub(super) fn sync_written(&self) -> Result<(), KvError> {
        self.sound()?;
        let mut files = vec![];
        for frozen in &self.shown.read().frozen {
            files.extend(frozen.segments.lock().iter().map(|s| Arc::clone(&s.file)));
        }
        let tail = self.tail.lock();
        files.extend(tail.segment.as_ref().map(|s| Arc::clone(&s.file)));
        drop(tail);
        for file in files {
            let synced = file.sync();
            synced.map_err(|error| self.fail(KvError::Io(error.to_string())))?;
        }
        Ok(())
    }

    /// All there is to do now.
    pub(super) fn keep_up(&self) -> Result<(), KvError> {
        loop {
            let room = self.segment_bytes.saturating_add(LEAVE_BYTES);
            if self.spares.lock().is_empty()
                && self.disk.free_bytes() >= room
                && let Err(error) = self.make_spare(self.segment_bytes)
            {
                // Not a fault: whoever needs the segment tries again and is told.
                tracing::warn!(%error, "no segment could be made ahead");
            }
            if !self.carry_over()? {
                return Ok(());
            }
        }
    }

    /// A segment that takes a frame of this size, as soon as there may be one more.
    pub(super) fn spare(&self, size: u64) -> Result<Named, KvError> {
        loop {
            self.sound()?;
            if self.shown.read().frozen.len() >= MAX_FROZEN {
                self.carry_over()?;
                continue;
            }
            {
                let mut spares = self.spares.lock();
                if let Some(place) = spares.iter().position(|spare| spare.bytes >= size) {
                    return Ok(spares.swap_remove(place));
                }
            }
            let bytes = size.next_multiple_of(BLOCK as u64).max(self.segment_bytes);
            match self.make_spare(bytes) {
                // Carrying over what is frozen makes a spare of its segment.
                Err(KvError::Full) if self.carry_over()? => {}
                made => made?,
            }
        }
    }

    fn make_spare(&self, bytes: u64) -> Result<(), KvError> {
        let _making = self.making.lock();
        if self.spares.lock().iter().any(|spare| spare.bytes >= bytes) {
            return Ok(());
        }
        if self.disk.free_bytes() < bytes {
            return Err(KvError::Full);
        }
        let number = self.names.fetch_add(1, Ordering::Relaxed) + 1;
        let name = format!("{number:08}.segment");
        let file = self.disk.create(&name, bytes);
        let file = file.map_err(|error| KvError::from_io(&error))?;
        let file = Arc::from(file);
        self.spares.lock().push(Named { name, bytes, file });
        Ok(())
    }

    /// Carries the oldest frozen table over into the checkpoint; whether there was one.
    pub(super) fn carry_over(&self) -> Result<bool, KvError> {
        let _carrying = self.carrying.lock();
        self.sound()?;
        let Some(oldest) = self.shown.read().frozen.front().cloned() else {
            return Ok(false);
        };
        fault::point("log.carrying");
        match self.copy(&oldest) {
            Ok(true) => {}
            // Given up, not failed: the log has it all, and the next opening goes on from there.
            Ok(false) => return Ok(false),
            Err(error) => return Err(self.fail(error)),
        }
        fault::point("log.carried");
        self.shown.write().frozen.pop_front();
        self.recycle(&oldest)?;
        Ok(true)
    }

    /// One transaction: the table and the mark. `false`: stopped before the end.
    fn copy(&self, frozen: &Frozen) -> Result<bool, KvError> {
        let mut stopped = false;
        let copied = self.base.write(|put| {
            frozen.table.each(|key, value| {
                stopped = self.stopping.load(Ordering::Relaxed);
                if stopped {
                    // Rolls the transaction back.
                    return Err(KvError::Io("stopped".into()));
                }
                put(key, value)
            })?;
            save_mark(frozen.mark, &self.secret, put)
        });
        if stopped {
            return Ok(false);
        }
        copied.map(|()| true)
    }

    /// What the checkpoint holds may be overwritten.
    fn recycle(&self, frozen: &Frozen) -> Result<(), KvError> {
        let segments = std::mem::take(&mut *frozen.segments.lock());
        for segment in segments {
            segment.file.forget();
            let mut spares = self.spares.lock();
            if segment.bytes == self.segment_bytes && spares.len() < MAX_SPARES {
                spares.push(segment);
                continue;
            }
            drop(spares);
            self.disk
                .remove(&segment.name)
                .map_err(|error| KvError::from_io(&error))?;
        }
        Ok(())
    }
}
