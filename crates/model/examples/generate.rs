//! Answers one prompt from a model directory: `cargo run --release -p weir-model --example generate -- DIR "Who are you?"`.
//! With `--raw` the prompt is completed as it is; `--tokens N` bounds the answer; `--greedy` takes the best token each time.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example speaks to a person"
)]

use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use serde_json::json;
use weir_model::backend::{Backend as _, NoMasks, SamplingParams};
use weir_model::tokenizer::DecodeStart;
use weir_model::{CpuBackend, CpuOptions, ModelText, OpenFiles, load_cpu};
use weir_scheduler::{Batch, BlockId, Row, SequenceId, SlotId};

struct Arguments {
    dir: PathBuf,
    prompt: String,
    raw: bool,
    greedy: bool,
    max_tokens: usize,
}

fn arguments() -> Option<Arguments> {
    let (mut raw, mut greedy, mut max_tokens, mut rest) = (false, false, 128, Vec::new());
    let mut all = std::env::args().skip(1);
    while let Some(argument) = all.next() {
        match argument.as_str() {
            "--raw" => raw = true,
            "--greedy" => greedy = true,
            "--tokens" => max_tokens = all.next()?.parse().ok()?,
            _ => rest.push(argument),
        }
    }
    let [dir, prompt] = rest.try_into().ok()?;
    Some(Arguments {
        dir: dir.into(),
        prompt,
        raw,
        greedy,
        max_tokens,
    })
}

/// A batch with the sequence's tokens from `start` on.
fn batch(
    tokens: &[u32],
    start: usize,
    block_tokens: u32,
) -> Result<Batch, std::num::TryFromIntError> {
    let blocks = u32::try_from(tokens.len())?.div_ceil(block_tokens);
    let row = Row {
        sequence: SequenceId(0),
        slot: SlotId(0),
        start: start.try_into()?,
        token_offset: 0,
        token_count: (tokens.len() - start).try_into()?,
        block_offset: 0,
        block_count: blocks,
        draft_count: 0,
        samples: true,
    };
    Ok(Batch {
        step: 1,
        rows: vec![row],
        decode_rows: 0,
        tokens: tokens[start..].to_vec(),
        blocks: (0..blocks).map(BlockId).collect(),
    })
}

fn answer(
    text: &ModelText,
    backend: &mut CpuBackend,
    mut tokens: Vec<u32>,
    (start, max_tokens): (DecodeStart, usize),
) -> Result<(), Box<dyn Error>> {
    let prompt_len = tokens.len();
    let limits = backend.limits();
    let (mut sampled, mut done) = (Vec::new(), 0);
    let mut detokenizer = text.detokenizer(start);
    let (begin, mut first) = (Instant::now(), None);
    let mut out = String::new();
    while tokens.len() < limits.context_tokens as usize && tokens.len() - prompt_len < max_tokens {
        let step = batch(&tokens, done, limits.block_tokens)?;
        backend.step(&step, &NoMasks, &mut sampled)?;
        first.get_or_insert_with(|| begin.elapsed());
        done = tokens.len();
        let token = sampled[0].token;
        if text.is_eos(token) {
            break;
        }
        tokens.push(token);
        detokenizer.push(token, &mut out);
        print!("{out}");
        std::io::stdout().flush()?;
        out.clear();
    }
    detokenizer.finish(&mut out);
    println!("{out}");
    let first = first.unwrap_or_default();
    let rest = begin.elapsed().saturating_sub(first).as_secs_f64();
    let count = tokens.len() - prompt_len;
    eprintln!(
        "{prompt_len} prompt tokens in {:.1} ms, {count} tokens at {:.0} tokens/s, {:?}",
        first.as_secs_f64() * 1e3,
        count.saturating_sub(1) as f64 / rest.max(1e-9),
        backend.level(),
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let Some(arguments) = arguments() else {
        return Err("usage: generate [--raw] [--greedy] [--tokens N] DIR PROMPT".into());
    };
    let files = OpenFiles::from_dir(&arguments.dir)?;
    let begin = Instant::now();
    let text = ModelText::from_files(&files)?;
    let options = CpuOptions {
        max_running: 1,
        max_batch_tokens: 4096,
        ..CpuOptions::default()
    };
    let mut backend = load_cpu(&files, &options)?;
    eprintln!("loaded in {:.1} ms", begin.elapsed().as_secs_f64() * 1e3);
    let (tokens, start) = if arguments.raw {
        (
            text.encode_prompt(&arguments.prompt)?,
            DecodeStart::Continuation,
        )
    } else {
        let messages = [json!({"role": "user", "content": arguments.prompt})];
        (text.encode_chat(&messages, 0)?.tokens, DecodeStart::Text)
    };
    let generation = &text.generation;
    let params = SamplingParams {
        temperature: if arguments.greedy {
            0.0
        } else {
            generation.temperature
        },
        top_p: generation.top_p,
        top_k: generation.top_k,
        min_p: generation.min_p,
        seed: 1,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        repetition_penalty: generation.repetition_penalty,
        logprobs: None,
        prompt_logprobs: None,
        masked_until_min: [].into(),
        min_tokens: 0,
    };
    backend.open(SlotId(0), &params, &tokens, &[]);
    answer(&text, &mut backend, tokens, (start, arguments.max_tokens))
}
