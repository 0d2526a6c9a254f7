//! What the sampling kernel takes and gives for a row: the host's side of the structs in `kernels/sample.cu`.

use weir_model::backend::{Sampled, SamplingParams};

/// Most alternatives that a row reports.
pub const TOP_MAX: usize = 32;
/// Threads of a block of the kernel.
pub const THREADS: usize = 512;
/// A slot that no row has: the row only fills the batch up.
const NO_SLOT: u32 = u32::MAX;

/// Where a row stands, besides its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowState {
    /// Its slot.
    pub slot: u32,
    /// Position of the token to be chosen.
    pub position: u64,
    /// Tokens put out so far.
    pub output_len: u32,
    /// Row of the masks, where it has one.
    pub mask: Option<u32>,
    /// Where the tokens of [`SamplingParams::masked_until_min`] begin in the list of banned tokens.
    pub banned: u32,
}

/// Bytes of a row's parameters.
pub const PARAMS_SIZE: usize = 72;

/// A row's parameters as the kernel has them.
pub fn params(params: &SamplingParams, state: &RowState) -> [u8; PARAMS_SIZE] {
    let is_early = state.output_len < params.min_tokens;
    let banned = if is_early {
        u32::try_from(params.masked_until_min.len()).unwrap_or(u32::MAX)
    } else {
        0
    };
    let words = [
        params.temperature.to_bits(),
        params.top_p.to_bits(),
        params.min_p.to_bits(),
        params.presence_penalty.to_bits(),
        params.frequency_penalty.to_bits(),
        params.repetition_penalty.to_bits(),
        params.top_k,
        state.slot,
        params.logprobs.map_or(0, |count| count.saturating_add(1)),
        u32::from(params.is_penalised()),
        state.mask.unwrap_or(u32::MAX),
        state.banned,
        banned,
        0,
    ];
    let mut bytes = [0; PARAMS_SIZE];
    bytes[..8].copy_from_slice(&params.seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&state.position.to_le_bytes());
    for (bytes, word) in bytes[16..].chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Parameters of a row that only fills the batch up.
pub fn no_row() -> [u8; PARAMS_SIZE] {
    let mut bytes = [0; PARAMS_SIZE];
    bytes[44..48].copy_from_slice(&NO_SLOT.to_le_bytes());
    bytes
}

/// Bytes of a row's result.
pub const RESULT_SIZE: usize = 4 * (4 + 2 * TOP_MAX);

/// The result of a row; `None` where its logits were no numbers.
pub fn result(bytes: &[u8]) -> Option<Sampled> {
    let word = |at: usize| {
        let bytes = bytes[4 * at..][..4].try_into();
        u32::from_le_bytes(bytes.expect("four bytes"))
    };
    if word(2) != 0 {
        return None;
    }
    let count = (word(3) as usize).min(TOP_MAX);
    let top = |at| (word(4 + at), f32::from_bits(word(4 + TOP_MAX + at)));
    Some(Sampled {
        token: word(0),
        logprob: f32::from_bits(word(1)),
        top: (0..count).map(top).collect(),
    })
}
