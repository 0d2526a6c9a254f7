//! A backend that is a function: what it samples depends on nothing but the sequence, so tests know every token beforehand.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

use weir_model::backend::{
    Ahead, Backend, BackendError, BackendLimits, DeviceName, Masks, Sampled, SamplingParams, Scored,
};
use weir_model::tokenizer::Tokenizer;
use weir_scheduler::{Batch, Row, SlotId, UNSEEN};

/// A prompt that begins with it is a script: the output is the rest of the prompt, over and over.
pub(crate) const SCRIPT: u32 = 257;
/// The only end token.
pub(crate) const END: u32 = 256;
/// One past the highest token id. Tokens 0 to 255 are bytes.
pub(crate) const VOCAB: u32 = 258;

/// What a test does to a running backend.
#[derive(Clone, Default)]
pub(crate) struct Controls {
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    /// Steps that may still be made, if they are counted.
    allowed: Option<u64>,
    fault: Option<Fault>,
    ignores_masks: bool,
    steps_ahead: u64,
}

/// How a backend dies.
#[derive(Clone, Copy)]
pub(crate) enum Fault {
    Error,
    Panic,
}

impl Controls {
    /// From now on steps wait until they are allowed.
    pub(crate) fn hold(&self) {
        self.change(|state| state.allowed = Some(0));
    }

    /// Lets so many steps pass.
    pub(crate) fn allow(&self, steps: u64) {
        self.change(|state| *state.allowed.get_or_insert(0) += steps);
    }

    /// Lets every step pass.
    pub(crate) fn release(&self) {
        self.change(|state| state.allowed = None);
    }

    /// From now on tokens are sampled as if no output had a grammar: a broken device.
    pub(crate) fn ignore_masks(&self) {
        self.change(|state| state.ignores_masks = true);
    }

    fn ignores_masks(&self) -> bool {
        self.state.0.lock().unwrap().ignores_masks
    }

    /// Steps that were started while the one before was not read.
    pub(crate) fn steps_ahead(&self) -> u64 {
        self.state.0.lock().unwrap().steps_ahead
    }

    /// The next step dies.
    pub(crate) fn break_with(&self, fault: Fault) {
        self.change(|state| state.fault = Some(fault));
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.0.lock().unwrap());
        self.state.1.notify_all();
    }

    fn pass(&self) -> Option<Fault> {
        let mut state = self.state.0.lock().unwrap();
        while state.allowed == Some(0) {
            state = self.state.1.wait(state).unwrap();
        }
        if let Some(allowed) = &mut state.allowed {
            *allowed -= 1;
        }
        state.fault
    }
}

/// See the module. It keeps a running hash of the sequence per position in paged memory, as a real backend keeps keys and values:
/// a wrong block table, position or reuse of a prefix changes every token behind it.
pub(crate) struct FakeBackend {
    limits: BackendLimits,
    kv: Vec<u64>,
    slots: Vec<Option<(SamplingParams, Vec<u32>)>>,
    controls: Controls,
    /// Whether steps may be started ahead; then those that were started and not read, and what each slot sampled last.
    runs_ahead: bool,
    flights: VecDeque<Vec<Sampled>>,
    scored: Vec<Scored>,
    last: Vec<u32>,
}

impl FakeBackend {
    pub(crate) fn new(limits: BackendLimits, controls: Controls, runs_ahead: bool) -> Self {
        Self {
            kv: vec![0; (limits.blocks * limits.block_tokens) as usize],
            slots: vec![None; limits.max_running as usize],
            last: vec![0; limits.max_running as usize],
            limits,
            controls,
            runs_ahead,
            flights: VecDeque::new(),
            scored: Vec::new(),
        }
    }

    fn place(&self, batch: &Batch, row: &Row, position: u32) -> usize {
        let block = batch.row_blocks(row)[(position / self.limits.block_tokens) as usize];
        (block.0 * self.limits.block_tokens + position % self.limits.block_tokens) as usize
    }
}

impl Backend for FakeBackend {
    fn name(&self) -> DeviceName {
        DeviceName {
            kind: "fake",
            name: "function".to_owned(),
        }
    }

    fn limits(&self) -> BackendLimits {
        self.limits
    }

    fn open(&mut self, slot: SlotId, params: &SamplingParams, prompt: &[u32], _output: &[u32]) {
        let before = self.slots[slot.0 as usize].replace((params.clone(), prompt.to_vec()));
        assert!(before.is_none(), "a slot was opened twice");
    }

    fn close(&mut self, slot: SlotId) {
        assert!(
            self.slots[slot.0 as usize].take().is_some(),
            "a slot was closed twice"
        );
    }

    fn step(
        &mut self,
        batch: &Batch,
        masks: &dyn Masks,
        sampled: &mut Vec<Sampled>,
    ) -> Result<(), BackendError> {
        *sampled = self.compute(batch, masks)?;
        self.scored = self.score(batch);
        Ok(())
    }

    fn take_scored(&mut self, scored: &mut Vec<Scored>) {
        scored.append(&mut self.scored);
    }

    fn ahead(&mut self) -> Option<&mut dyn Ahead> {
        if self.runs_ahead { Some(self) } else { None }
    }
}

impl Ahead for FakeBackend {
    fn launch(&mut self, batch: &Batch, masks: &dyn Masks) -> Result<(), BackendError> {
        let is_ahead = !self.flights.is_empty();
        let sampled = self.compute(batch, masks)?;
        self.flights.push_back(sampled);
        assert!(self.flights.len() <= 2, "two steps at most are in flight");
        self.controls
            .change(|state| state.steps_ahead += u64::from(is_ahead));
        Ok(())
    }

    fn collect(&mut self, sampled: &mut Vec<Sampled>) -> Result<(), BackendError> {
        *sampled = self.flights.pop_front().expect("a step was started");
        Ok(())
    }
}

impl FakeBackend {
    /// A token's log-probability is its own place, negated.
    fn score(&self, batch: &Batch) -> Vec<Scored> {
        let mut all = Vec::new();
        for row in &batch.rows {
            let (params, prompt) = self.slots[row.slot.0 as usize].as_ref().expect("open");
            let Some(alternatives) = params.prompt_logprobs else {
                continue;
            };
            for position in row.start + 1..=row.start + row.known_count() {
                let Some(&token) = prompt.get(position as usize) else {
                    break;
                };
                all.push(Scored {
                    sequence: row.sequence,
                    position,
                    token: Sampled {
                        token,
                        logprob: -(position as f32),
                        top: (0..alternatives)
                            .map(|rank| (u32::from(b'a') + rank, -0.5))
                            .collect(),
                    },
                });
            }
        }
        all
    }

    fn compute(&mut self, batch: &Batch, masks: &dyn Masks) -> Result<Vec<Sampled>, BackendError> {
        let mut sampled = Vec::new();
        match self.controls.pass() {
            Some(Fault::Error) => {
                return Err(BackendError::Device {
                    step: batch.step,
                    what: "injected".to_owned(),
                });
            }
            Some(Fault::Panic) => panic!("injected"),
            None => {}
        }
        for row in &batch.rows {
            let mut chain = match row.start {
                0 => 0,
                start => self.kv[self.place(batch, row, start - 1)],
            };
            let mut chains = Vec::new();
            for (position, &token) in (row.start..).zip(batch.row_tokens(row)) {
                let is_unseen = self.runs_ahead && token == UNSEEN;
                let token = if is_unseen {
                    self.last[row.slot.0 as usize]
                } else {
                    token
                };
                assert!(token < VOCAB, "token {token} is not in the vocabulary");
                chain = extend(chain, token);
                let place = self.place(batch, row, position);
                self.kv[place] = chain;
                chains.push(chain);
            }
            let places = if row.samples { row.draft_count + 1 } else { 0 };
            for place in 0..places {
                let (params, prompt) = self.slots[row.slot.0 as usize].as_ref().expect("open");
                let position = row.start + row.known_count() + place;
                let made = position - u32::try_from(prompt.len()).unwrap();
                let chain = chains[(row.known_count() - 1 + place) as usize];
                let mut token = next(chain, params.seed, prompt, made);
                if made < params.min_tokens && params.masked_until_min.contains(&token) {
                    token = u32::from(b'z');
                }
                if let Some(mask) = masks.mask(row.sequence, place)
                    && !self.controls.ignores_masks()
                {
                    token = allowed(&mask, token, extend(chain, made));
                }
                let top = (0..params.logprobs.unwrap_or(0))
                    .map(|rank| (token + rank, -0.5 - rank as f32));
                sampled.push(Sampled {
                    token,
                    logprob: -0.5,
                    top: top.collect(),
                });
                self.last[row.slot.0 as usize] = token;
                if batch.row_drafts(row).get(place as usize) != Some(&token) {
                    break;
                }
            }
        }
        Ok(sampled)
    }
}

/// The output for a prompt, of any length.
pub(crate) fn expected(prompt: &[u32], seed: u64, count: usize) -> Vec<u32> {
    let mut chain = prompt.iter().fold(0, |chain, token| extend(chain, *token));
    (0..count)
        .map(|made| {
            let token = next(chain, seed, prompt, u32::try_from(made).unwrap());
            chain = extend(chain, token);
            token
        })
        .collect()
}

/// Seed of a choice, as the worker derives it.
pub(crate) fn choice_seed(seed: u64, choice: u32) -> u64 {
    seed.wrapping_add(u64::from(choice).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// Tokens as text: they are bytes.
pub(crate) fn text_of(tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens
        .iter()
        .filter_map(|token| u8::try_from(*token).ok())
        .collect();
    String::from_utf8(bytes).unwrap()
}

/// The token itself where the mask allows it, else one that depends on the chain.
fn allowed(mask: &[u32], token: u32, chain: u64) -> u32 {
    let is_set = |token: &u32| {
        mask.get(*token as usize / 32)
            .is_some_and(|word| word >> (token % 32) & 1 == 1)
    };
    if is_set(&token) {
        return token;
    }
    let all: Vec<u32> = (0..VOCAB).filter(is_set).collect();
    all.get((chain >> 7) as usize % all.len().max(1))
        .copied()
        .unwrap_or(0)
}

fn extend(chain: u64, token: u32) -> u64 {
    (chain ^ u64::from(token).wrapping_add(0x51))
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(23)
}

fn next(chain: u64, seed: u64, prompt: &[u32], made: u32) -> u32 {
    if prompt[0] == SCRIPT {
        let script = &prompt[1..];
        return script[made as usize % script.len()];
    }
    let letter = (extend(chain, 7) ^ seed.wrapping_mul(0xD6E8_FEB8_6659_FD93)).rotate_left(29) % 26;
    u32::from(b'a') + u32::try_from(letter).unwrap()
}

/// A tokenizer whose tokens are the 256 bytes, [`END`] and [`SCRIPT`].
pub(crate) fn tokenizer() -> Arc<Tokenizer> {
    let vocab: serde_json::Map<String, serde_json::Value> = (0..=255_u8)
        .map(|byte| (printable(byte).to_string(), u32::from(byte).into()))
        .collect();
    let special = |id: u32, content: &str| serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    let json = serde_json::json!({
        "version": "1.0",
        "added_tokens": [special(END, "<end>"), special(SCRIPT, "<script>")],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    Arc::new(Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap())
}

/// GPT-2's printable stand-in for a byte.
fn printable(byte: u8) -> char {
    let stands = |byte: &u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    if stands(&byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|other| !stands(other)).count();
    char::from_u32(0x100 + u32::try_from(rank).unwrap()).unwrap()
}
