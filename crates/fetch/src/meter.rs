//! How far a fetch has come, for whoever wants to know.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Counts the bytes of one fetch; shared by those who count and those who look.
#[derive(Debug, Default)]
pub struct Meter {
    total: AtomicU64,
    done: AtomicU64,
    received: AtomicU64,
    trouble: Mutex<Option<String>>,
}

/// What a [`Meter`] shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Bytes of all files.
    pub total: u64,
    /// Bytes that are here, whether fetched now or before.
    pub done: u64,
    /// Bytes that came over the network since the beginning.
    pub received: u64,
    /// Why it is not going on, while it is being tried again.
    pub trouble: Option<String>,
}

impl Meter {
    /// What it shows now.
    pub fn read(&self) -> Reading {
        Reading {
            total: self.total.load(Ordering::Relaxed),
            done: self.done.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            trouble: self.trouble.lock().clone(),
        }
    }

    pub(crate) fn begin(&self, total: u64) {
        self.total.store(total, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
    }

    /// Bytes that need not come.
    pub(crate) fn have(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that came.
    pub(crate) fn receive(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
        self.have(bytes);
        if self.trouble.lock().is_some() {
            *self.trouble.lock() = None;
        }
    }

    /// Bytes that turned out to be worth nothing.
    pub(crate) fn lose(&self, bytes: u64) {
        self.done.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn trouble(&self, text: String) {
        *self.trouble.lock() = Some(text);
    }
}

impl std::fmt::Display for Reading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} bytes", self.done, self.total)?;
        match &self.trouble {
            Some(trouble) => write!(f, "; trying again: {trouble}"),
            None => Ok(()),
        }
    }
}
