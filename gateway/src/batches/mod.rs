//! Batches: requests in a file, carried out behind interactive work, with one result for each line whatever dies meanwhile.
//!
//! A batch is a document (space `batch`). As long as it is not done it is listed (space `open-batch`), and every gateway of the store looks
//! there for one that nobody works on. Who does holds a lease in the document, with an epoch: it writes the document and the results
//! (space `batch-result`) in one commit and only where the document is as it left it, so that a worker who was replaced writes nothing.
//! A line's run has a request key made of the batch and the line's number: whoever begins the line again finds the same run. So a line
//! is run once, billed once, and has one result.

mod doc;
mod held;
mod http;
mod line;
mod lines;
mod output;
mod runner;
mod validate;

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

pub(crate) use doc::reading;
pub(crate) use http::{cancel, create, list, retrieve};
pub(crate) use runner::keep_working;

/// Lines of one batch in work at once.
const BATCH_LINES: usize = 8;
/// Lines of all batches of one tenant in work at once, at most, on one gateway.
const TENANT_LINES: usize = 16;
/// Batches in work at once on one gateway; the others wait their turn or are taken by another.
const AT_ONCE: usize = 32;

/// What this gateway works on.
pub(crate) struct Batches {
    /// There is a new batch, or a place is free.
    pub(crate) news: Notify,
    /// Names this process to others: a lease of a process that died is not mistaken for its successor's.
    holder: String,
    /// By id, with their tenants.
    working: Mutex<HashMap<String, String>>,
    places: Mutex<HashMap<String, Weak<Semaphore>>>,
}

impl Default for Batches {
    fn default() -> Self {
        Self {
            news: Notify::new(),
            holder: format!("{:032x}", crate::clock::random_u128()),
            working: Mutex::default(),
            places: Mutex::default(),
        }
    }
}

impl Batches {
    /// The tenant's places for lines: at most half of the runs it may have at once, so that its interactive work goes on.
    fn places(&self, tenant: &crate::snapshot::Tenant) -> Arc<Semaphore> {
        let mut all = self.places.lock();
        if let Some(known) = all.get(&tenant.name).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, places| places.strong_count() > 0);
        let half = tenant.limits.concurrent_runs.map(|runs| runs / 2);
        let most = half.map_or(TENANT_LINES, |half| {
            usize::try_from(half)
                .unwrap_or(TENANT_LINES)
                .clamp(1, TENANT_LINES)
        });
        let places = Arc::new(Semaphore::new(most));
        all.insert(tenant.name.clone(), Arc::downgrade(&places));
        places
    }
}
