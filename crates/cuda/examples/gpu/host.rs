//! What a step costs the host, on a device that carries out nothing: the scheduler's part and the backend's, of sequences that decode.

use std::error::Error;
use std::time::{Duration, Instant};

use weir_cuda::idle::Idle;
use weir_cuda::kernels::CacheType;
use weir_cuda::{CudaBackend, CudaOptions};
use weir_model::backend::{Backend, NoMasks, SamplingParams};
use weir_model::config::ModelConfig;
use weir_model::network::Network;
use weir_scheduler::{Config, Event, NewSequence, Priority, Scheduler, SequenceId, Verdict};

use super::batches::BLOCK_TOKENS;

/// Positions of a sequence.
const CONTEXT: u32 = 2048;
const PROMPT: u32 = 1024;
const STEPS: u32 = 1000;
const ROWS: [u32; 3] = [1, 64, 256];

/// As small as can be: a decode step's host part is the same for every model.
const MODEL: &str = r#"{"architectures":["LlamaForCausalLM"],"hidden_size":64,"intermediate_size":64,"num_hidden_layers":1,"num_attention_heads":1,
    "num_key_value_heads":1,"vocab_size":1000,"max_position_embeddings":2048,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":true,
    "eos_token_id":1,"hidden_act":"silu"}"#;

pub(super) fn run() -> Result<(), Box<dyn Error>> {
    for rows in ROWS {
        let [scheduler, backend] = measure(rows)?.map(|part| part.as_secs_f64() * 1e6);
        println!(
            "{{\"host_rows\":{rows},\"context\":{PROMPT},\"scheduler_us\":{scheduler:.1},\"backend_us\":{backend:.1}}}"
        );
    }
    Ok(())
}

/// Mean times of a step: the scheduler's and the backend's.
fn measure(rows: u32) -> Result<[Duration; 2], Box<dyn Error>> {
    let config = ModelConfig::parse(MODEL.as_bytes())?;
    let network = Network::random(&config)?;
    let options = CudaOptions {
        kv_bytes: Some(u64::from(rows * CONTEXT) * 4 * 64),
        cache: CacheType::Act,
        block_tokens: BLOCK_TOKENS,
        max_running: rows,
        max_batch_tokens: 8192,
        context_tokens: CONTEXT,
    };
    let mut backend = CudaBackend::new(Idle::default(), &network, &config, &options)?;
    let mut scheduler = Scheduler::new(Config::new(backend.limits().plan(), [1; 32], [2; 32]))?;
    for id in 0..rows {
        let tokens: Vec<u32> = (0..PROMPT).map(|at| (at * 7 + id) % 1000).collect();
        scheduler.submit(&NewSequence {
            id: SequenceId(id.into()),
            tokens: &tokens,
            max_output: CONTEXT - PROMPT,
            priority: Priority::Standard,
            scope: None,
            group: id.into(),
            adapter: None,
            uncached: false,
        })?;
    }
    let (mut sampled, mut planning, mut computing, mut steps) =
        (Vec::new(), Duration::ZERO, Duration::ZERO, 0);
    while steps < STEPS {
        if !scheduler.is_in_flight() {
            scheduler.plan();
            for event in scheduler.events() {
                if let Event::Started { id, slot, .. } = *event
                    && let Some((prompt, output)) = scheduler.tokens(id)
                {
                    backend.open(slot, &SamplingParams::greedy(), prompt, output);
                }
            }
            let device = backend.ahead().ok_or("it runs no step ahead")?;
            device.launch(scheduler.batch(), &NoMasks)?;
        }
        let begin = Instant::now();
        let next = scheduler.plan_ahead();
        let planned = Instant::now();
        let device = backend.ahead().ok_or("it runs no step ahead")?;
        let is_ahead = next.is_some();
        if let Some(next) = next {
            device.launch(next, &NoMasks)?;
        }
        device.collect(&mut sampled)?;
        let computed = Instant::now();
        let tokens = sampled.iter().map(|sampled| sampled.token);
        scheduler.complete(tokens, |_| Verdict::Continue);
        if is_ahead {
            planning += (planned - begin) + computed.elapsed();
            computing += computed - planned;
            steps += 1;
        }
    }
    Ok([planning / STEPS, computing / STEPS])
}
