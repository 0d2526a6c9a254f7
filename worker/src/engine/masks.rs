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
    mask: Option<Made>,
    /// The same after guesses, while a step with guesses runs.
    ahead: Option<Ahead>,
}

type Made = Result<Arc<[u32]>, GrammarError>;

/// A grammar after some guesses of its output.
struct Ahead {
    /// Where the output would be after as many guesses as there are masks.
    matcher: Matcher,
    drafts: Vec<u32>,
    /// For the token after each guess.
    masks: Vec<Made>,
    /// Guesses that came true.
    taken: usize,
}

impl Place {
    /// For the token after the first `drafts` guesses.
    fn mask(&mut self, drafts: usize, seconds: &Histogram) -> Made {
        if drafts > 0 {
            let ahead = self.ahead.as_mut();
            return ahead.map_or_else(|| Err(unguessed()), |ahead| ahead.mask(drafts, seconds));
        }
        let Self { matcher, mask, .. } = self;
        mask.get_or_insert_with(|| timed(seconds, || matcher.mask()))
            .clone()
    }

    /// How many of the guesses the grammar allows.
    fn guess(&mut self, drafts: &[u32]) -> usize {
        // Whoever takes the next token gets the error.
        let allowed = self.matcher.allowed(drafts).unwrap_or(0);
        self.ahead = (allowed > 0).then(|| Ahead {
            matcher: self.matcher.fork(),
            drafts: drafts[..allowed].to_vec(),
            masks: Vec::new(),
            taken: 0,
        });
        allowed
    }

    /// A token was taken: its mask is used up, and that after the guess it was equal to is the next one.
    fn pass(&mut self, token: u32) {
        self.mask = None;
        let Some(ahead) = &mut self.ahead else { return };
        if ahead.drafts.get(ahead.taken) == Some(&token) {
            self.mask = ahead.masks.get(ahead.taken).cloned();
            ahead.taken += 1;
        } else {
            self.ahead = None;
        }
    }
}

impl Ahead {
    fn mask(&mut self, drafts: usize, seconds: &Histogram) -> Made {
        while self.masks.len() < drafts {
            let Some(draft) = self.drafts.get(self.masks.len()) else {
                return Err(unguessed());
            };
            let matcher = &mut self.matcher;
            let made = timed(seconds, || {
                matcher.advance(*draft)?;
                if matcher.is_complete() {
                    // The output ends with this guess, if it comes true.
                    return Ok(Arc::from([]));
                }
                matcher.mask()
            });
            self.masks.push(made);
        }
        self.masks[drafts - 1].clone()
    }
}

fn timed(seconds: &Histogram, make: impl FnOnce() -> Made) -> Made {
    let begin = Instant::now();
    let mask = make();
    seconds.observe(begin.elapsed().as_secs_f64());
    mask
}

fn unguessed() -> GrammarError {
    GrammarError::Left {
        why: "a mask was asked for after guesses that were not checked".to_owned(),
    }
}

type Shared = Arc<Mutex<Place>>;

/// All outputs with a grammar.
pub(crate) struct Places {
    by_sequence: BTreeMap<SequenceId, Shared>,
    ahead: Option<mpsc::Sender<Vec<(Shared, u32)>>>,
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
            ahead: None,
        };
        self.by_sequence
            .insert(sequence, Arc::new(Mutex::new(place)));
    }

    /// Whether no output has a grammar.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_sequence.is_empty()
    }

    pub(crate) fn remove(&mut self, sequence: SequenceId) {
        self.by_sequence.remove(&sequence);
    }

    /// How many of the guesses of an output's row may be computed.
    pub(crate) fn allowed(&self, sequence: SequenceId, drafts: &[u32]) -> usize {
        let place = self.by_sequence.get(&sequence);
        place.map_or(drafts.len(), |place| lock(place).guess(drafts))
    }

    /// Begins to make the masks that a batch will ask for.
    pub(crate) fn look_ahead(&mut self, batch: &Batch) {
        if self.by_sequence.is_empty() {
            return;
        }
        let rows = batch.rows.iter().filter(|row| row.samples);
        let places: Vec<(Shared, u32)> = rows
            .filter_map(|row| {
                let place = self.by_sequence.get(&row.sequence)?;
                Some((place.clone(), row.draft_count))
            })
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
        let allowed = match place.mask(0, &self.seconds) {
            Ok(mask) => is_allowed(&mask, token),
            Err(error) => return Some(Err(error)),
        };
        place.pass(token);
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
    fn mask(&self, sequence: SequenceId, drafts: u32) -> Option<Arc<[u32]>> {
        let place = self.by_sequence.get(&sequence)?;
        // A grammar that fails here allows nothing; `advance` says why and ends the output.
        Some(
            lock(place)
                .mask(drafts as usize, &self.seconds)
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
fn helper(seconds: Histogram) -> mpsc::Sender<Vec<(Shared, u32)>> {
    let (ahead, batches) = mpsc::channel::<Vec<(Shared, u32)>>();
    let run = move || {
        while let Ok(places) = batches.recv() {
            for (place, drafts) in places {
                for drafts in 0..=drafts as usize {
                    // Whoever else has it makes it.
                    if let Ok(mut place) = place.try_lock() {
                        // The row that asks gets the error.
                        let _ = place.mask(drafts, &seconds);
                    }
                }
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("masks".to_owned()).spawn(run) {
        tracing::warn!(%error, "no thread for masks; rows make their own");
    }
    ahead
}
