//! What every backend checks before it touches memory.

use weir_scheduler::{Batch, Row, SlotId, UNSEEN};

use super::{BackendError, BackendLimits};

/// Where a token is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index in the batch's rows.
    pub row: u32,
    /// The token before, an index into the batch's tokens.
    pub token: u32,
    /// Guesses of the row up to there.
    pub drafts: u32,
}

impl Place {
    /// All of a row whose tokens end before `end` in the batch.
    fn all(index: u32, row: &Row, end: u32) -> impl Iterator<Item = Self> {
        let first = end - 1 - row.draft_count;
        (0..=row.draft_count).map(move |drafts| Self {
            row: index,
            token: first + drafts,
            drafts,
        })
    }
}

/// A size of an engine that no backend takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSize {
    /// Which.
    pub option: &'static str,
    /// Its value.
    pub value: u64,
    /// What would be right.
    pub why: &'static str,
}

/// Refuses sizes that no backend takes: positions per block, slots, tokens per step.
///
/// # Errors
/// The first that is out of bounds.
pub fn check_sizes(
    block_tokens: u32,
    max_running: u32,
    max_batch_tokens: u32,
) -> Result<(), BadSize> {
    let is_block = block_tokens.is_multiple_of(16) && (1..=1024).contains(&block_tokens);
    for (option, value, is_right, why) in [
        (
            "block_tokens",
            block_tokens,
            is_block,
            "must be a multiple of 16 up to 1024",
        ),
        (
            "max_running",
            max_running,
            (1..=4096).contains(&max_running),
            "must be from 1 to 4096",
        ),
        (
            "max_batch_tokens",
            max_batch_tokens,
            (1..=1 << 16).contains(&max_batch_tokens),
            "must be from 1 to 65536",
        ),
    ] {
        if !is_right {
            let value = value.into();
            return Err(BadSize { option, value, why });
        }
    }
    Ok(())
}

/// Refuses a batch that would touch what is not there, and notes where it samples. `takes_unseen`: a token may be [`UNSEEN`].
///
/// # Errors
/// The batch breaks the contract; nothing was touched.
pub fn check_batch(
    batch: &Batch,
    limits: &BackendLimits,
    (vocab_size, takes_unseen): (usize, bool),
    is_open: impl Fn(SlotId) -> bool,
    sampling: &mut Vec<Place>,
) -> Result<(), BackendError> {
    let refuse = |what: String| BackendError::Batch {
        step: batch.step,
        what,
    };
    if batch.tokens.len() > limits.max_batch_tokens as usize
        || batch.rows.len() > limits.max_running as usize
    {
        return Err(refuse(format!(
            "{} tokens in {} rows are too many",
            batch.tokens.len(),
            batch.rows.len()
        )));
    }
    if let Some(token) = batch
        .tokens
        .iter()
        .find(|&&token| token as usize >= vocab_size && !(takes_unseen && token == UNSEEN))
    {
        return Err(refuse(format!("token {token} is not in the vocabulary")));
    }
    if let Some(block) = batch.blocks.iter().find(|block| block.0 >= limits.blocks) {
        return Err(refuse(format!("block {} does not exist", block.0)));
    }
    sampling.clear();
    let mut next_token = 0;
    for (index, row) in (0u32..).zip(&batch.rows) {
        check_row(batch, limits, row, (index, next_token)).map_err(refuse)?;
        next_token += row.token_count;
        if row.samples {
            if !is_open(row.slot) {
                return Err(refuse(format!("slot {} is not open", row.slot.0)));
            }
            sampling.extend(Place::all(index, row, next_token));
        }
    }
    if next_token as usize != batch.tokens.len() {
        return Err(refuse(format!(
            "rows have {next_token} tokens, the batch {}",
            batch.tokens.len()
        )));
    }
    Ok(())
}

/// One row, whose tokens must begin where the ones before ended.
fn check_row(
    batch: &Batch,
    limits: &BackendLimits,
    row: &Row,
    (index, next_token): (u32, u32),
) -> Result<(), String> {
    let end = row
        .start
        .checked_add(row.token_count)
        .filter(|&end| end <= limits.context_tokens);
    let Some(end) = end else {
        return Err(format!("sequence {} goes past the context", row.sequence.0));
    };
    let tables = row
        .block_offset
        .checked_add(row.block_count)
        .is_some_and(|end| end as usize <= batch.blocks.len());
    let covered = end.div_ceil(limits.block_tokens) <= row.block_count;
    if row.token_count <= row.draft_count || row.token_offset != next_token || !tables || !covered {
        return Err(format!("row {index} does not fit the batch's arrays"));
    }
    if row.draft_count > limits.max_drafts {
        return Err(format!(
            "row {index} has {} guesses, at most {} can be tried",
            row.draft_count, limits.max_drafts
        ));
    }
    Ok(())
}
