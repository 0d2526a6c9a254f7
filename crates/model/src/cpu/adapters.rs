//! The adapters that a backend holds, and the rows of a batch that have one.

use std::sync::Arc;

use weir_scheduler::{Batch, SlotId};

use super::CpuBackend;
use super::kernels::{Kernels, LowRankTask, Spaces};
use super::pool::Pool;
use crate::adapter::{Adapter, AdapterError, Part};
use crate::backend::{AdapterId, Adapters, BackendLimits};
use crate::config::ModelConfig;

/// Adapters at a time: their memory is the real bound, this one keeps tables small.
const ADAPTERS_MAX: usize = 1024;

/// Tokens of a row that one task takes: a long prompt keeps all threads busy, and its activations stay in the first-level cache.
const SPAN_TOKENS: u32 = 16;

/// Products that an adapter adds to in one job.
const PARTS_MAX: usize = 3;

/// Some tokens of a row with an adapter.
#[derive(Clone, Copy)]
struct Span {
    first_token: usize,
    tokens: usize,
    adapter: usize,
}

/// See the module.
pub(super) struct HeldAdapters {
    held: Vec<Option<Arc<Adapter>>>,
    /// (slots) what each sequence has.
    by_slot: Vec<Option<AdapterId>>,
    /// Of the present batch.
    spans: Vec<Span>,
    /// (tokens, parts, rank) what the first products of pairs give.
    between: Vec<f32>,
    rank: usize,
    max_tokens: usize,
}

impl HeldAdapters {
    pub(super) fn new(limits: &BackendLimits) -> Self {
        let (tokens, rows) = (limits.max_batch_tokens, limits.max_running);
        let spans = tokens.div_ceil(SPAN_TOKENS) + rows;
        Self {
            held: Vec::new(),
            by_slot: vec![None; rows as usize],
            spans: Vec::with_capacity(spans as usize),
            between: Vec::new(),
            rank: 0,
            max_tokens: tokens as usize,
        }
    }

    /// The slot's sequence has none, or is gone.
    pub(super) fn close(&mut self, slot: SlotId) {
        self.by_slot[slot.0 as usize] = None;
    }

    /// Whether the slot's sequence has one.
    pub(super) fn has(&self, slot: SlotId) -> bool {
        self.by_slot[slot.0 as usize].is_some()
    }

    /// Finds the tokens of a checked batch that have an adapter.
    pub(super) fn lay_out(&mut self, batch: &Batch) {
        self.spans.clear();
        for row in &batch.rows {
            let Some(Some(adapter)) = self.by_slot.get(row.slot.0 as usize) else {
                continue;
            };
            for at in (0..row.token_count).step_by(SPAN_TOKENS as usize) {
                self.spans.push(Span {
                    first_token: (row.token_offset + at) as usize,
                    tokens: (row.token_count - at).min(SPAN_TOKENS) as usize,
                    adapter: adapter.0 as usize,
                });
            }
        }
    }

    /// Adds to some products of a layer what the adapters of the batch's rows add: each part to the output's columns from a place on.
    pub(super) fn add(
        &mut self,
        (kernels, pool): (&Kernels, &mut Pool),
        (layer, parts): (usize, &[(Part, usize)]),
        (x, x_width): (&[f32], usize),
        (out, out_width): (&mut [f32], usize),
    ) {
        if self.spans.is_empty() {
            return;
        }
        assert!(parts.len() <= PARTS_MAX, "parts fit the space between");
        let (spans, held, rank) = (&self.spans, &self.held, self.rank);
        let task = |index: usize| {
            let span = spans[index / parts.len()];
            let (place, (part, out_col)) = (index % parts.len(), parts[index % parts.len()]);
            let adapter = held[span.adapter]
                .as_ref()
                .expect("an adapter in use is held");
            let pair = adapter.part(layer, part)?;
            Some(LowRankTask {
                first_token: span.first_token,
                tokens: span.tokens,
                pair,
                scale: adapter.scale(),
                between_col: place * rank,
                out_col,
            })
        };
        let spaces = Spaces {
            x,
            x_width,
            between: &mut self.between,
            between_width: PARTS_MAX * rank,
            out,
            out_width,
        };
        kernels.add_low_rank(pool, spans.len() * parts.len(), &task, spaces);
    }
}

impl Adapters for CpuBackend {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn insert(&mut self, adapter: Arc<Adapter>) -> Result<AdapterId, AdapterError> {
        let own = &mut self.adapters;
        let free = own.held.iter().position(Option::is_none);
        if free.is_none() && own.held.len() >= ADAPTERS_MAX {
            return Err(AdapterError::TooMany { most: ADAPTERS_MAX });
        }
        own.rank = own.rank.max(adapter.rank());
        own.between
            .resize(own.max_tokens * PARTS_MAX * own.rank, 0.0);
        let at = free.unwrap_or_else(|| {
            own.held.push(None);
            own.held.len() - 1
        });
        own.held[at] = Some(adapter);
        Ok(AdapterId(u32::try_from(at).expect("bounded above")))
    }

    fn remove(&mut self, adapter: AdapterId) {
        let own = &mut self.adapters;
        // A slot whose sequence has ended is closed with the next plan.
        for slot in own
            .by_slot
            .iter_mut()
            .filter(|slot| **slot == Some(adapter))
        {
            *slot = None;
        }
        own.held[adapter.0 as usize] = None;
    }

    fn apply(&mut self, slot: SlotId, adapter: AdapterId) {
        let own = &mut self.adapters;
        assert!(
            own.held[adapter.0 as usize].is_some(),
            "an adapter that is applied is held"
        );
        own.by_slot[slot.0 as usize] = Some(adapter);
    }
}
