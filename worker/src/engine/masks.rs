//! Where each output with a grammar stands, and which tokens may come next. Masks are made by a thread beside the forward pass; what it
//! has not come to when a row samples is made there and then.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::Instant;

use prometheus_client::metrics::histogram::Histogram;
use weir_grammar::{GrammarError, Matcher};
use weir_model::backend::Masks;
use weir_scheduler::{Batch, SequenceId};

/// One output's place in its grammar.
struct Place {
    matcher: Matcher,
    /// For the next token; none while nobody has made it.
    mask: Option<Result<Arc<[u32]>, GrammarError>>,
}

impl Place {
    fn mask(&mut self, seconds: &Histogram) -> Result<Arc<[u32]>, GrammarError> {
        let Self { matcher, mask } = self;
        mask.get_or_insert_with(|| {
            let begin = Instant::now();
            let made = matcher.mask();
            seconds.observe(begin.elapsed().as_secs_f64());
            made
        })
        .clone()
    }
}

type Shared = Arc<Mutex<Place>>;

/// All outputs with a grammar.
pub(crate) struct Places {
    by_sequence: BTreeMap<SequenceId, Shared>,
    ahead: Option<mpsc::Sender<Vec<Shared>>>,
    seconds: Histogram,
}

/// What a token did to an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advanced {
    /// It may go on.
    Open,
    /// It is whole: nothing can follow.
    Complete,
}

impl Places {
    pub(crate) fn new(seconds: Histogram) -> Self {
        Self {
            by_sequence: BTreeMap::new(),
            ahead: None,
            seconds,
        }
    }

    pub(crate) fn insert(&mut self, sequence: SequenceId, matcher: Matcher) {
        let place = Place {
            matcher,
            mask: None,
        };
        self.by_sequence
            .insert(sequence, Arc::new(Mutex::new(place)));
    }

    pub(crate) fn remove(&mut self, sequence: SequenceId) {
        self.by_sequence.remove(&sequence);
    }

    /// Begins to make the masks that a batch will ask for.
    pub(crate) fn look_ahead(&mut self, batch: &Batch) {
        if self.by_sequence.is_empty() {
            return;
        }
        let rows = batch.rows.iter().filter(|row| row.samples);
        let places: Vec<Shared> = rows
            .filter_map(|row| self.by_sequence.get(&row.sequence).cloned())
            .collect();
        if places.is_empty() {
            return;
        }
        let seconds = &self.seconds;
        let ahead = self.ahead.get_or_insert_with(|| helper(seconds.clone()));
        // Without the helper the rows make their own.
        let _ = ahead.send(places);
    }

    /// Takes the token that an output's row sampled; `None` for an output without a grammar.
    pub(crate) fn advance(
        &self,
        sequence: SequenceId,
        token: u32,
        is_end: bool,
    ) -> Option<Result<Advanced, GrammarError>> {
        let mut place = lock(self.by_sequence.get(&sequence)?);
        let allowed = match place.mask(&self.seconds) {
            Ok(mask) => is_allowed(&mask, token),
            Err(error) => return Some(Err(error)),
        };
        place.mask = None;
        if !allowed {
            let why = format!("token {token} was chosen, which it does not allow");
            return Some(Err(GrammarError::Left { why }));
        }
        if is_end {
            return Some(Ok(Advanced::Complete));
        }
        if let Err(error) = place.matcher.advance(token) {
            return Some(Err(error));
        }
        Some(Ok(if place.matcher.is_complete() {
            Advanced::Complete
        } else {
            Advanced::Open
        }))
    }
}

impl Masks for Places {
    fn mask(&self, sequence: SequenceId) -> Option<Arc<[u32]>> {
        let place = self.by_sequence.get(&sequence)?;
        // A grammar that fails here allows nothing; `advance` says why and ends the output.
        Some(
            lock(place)
                .mask(&self.seconds)
                .unwrap_or_else(|_| Arc::from([])),
        )
    }
}

fn is_allowed(mask: &[u32], token: u32) -> bool {
    mask.get(token as usize / 32)
        .is_some_and(|word| word >> (token % 32) & 1 == 1)
}

fn lock(place: &Shared) -> MutexGuard<'_, Place> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread ends with its sender.
fn helper(seconds: Histogram) -> mpsc::Sender<Vec<Shared>> {
    let (ahead, batches) = mpsc::channel::<Vec<Shared>>();
    let run = move || {
        while let Ok(places) = batches.recv() {
            for place in places {
                // Whoever else has it makes it.
                if let Ok(mut place) = place.try_lock() {
                    // The row that asks gets the error.
                    let _ = place.mask(&seconds);
                }
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("masks".to_owned()).spawn(run) {
        tracing::warn!(%error, "no thread for masks; rows make their own");
    }
    ahead
}
