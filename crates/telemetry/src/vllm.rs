//! Names under which vLLM shows what Weir measures too, with vLLM's own bounds: dashboards, autoscalers and endpoint pickers made for it
//! read a worker of Weir, and `weir up`, unchanged. Shared by the two processes that show them.

/// A histogram of vLLM's.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    /// What it measures.
    pub help: &'static str,
    /// Upper bounds of its buckets.
    pub bounds: &'static [f64],
}

const fn kind(name: &'static str, help: &'static str, bounds: &'static [f64]) -> Kind {
    Kind { name, help, bounds }
}

const FIRST: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
];
const BETWEEN: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
];
const WHOLE: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
];
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0,
    20_000.0, 50_000.0, 100_000.0,
];
const STEP_TOKENS: &[f64] = &[
    1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0,
];

/// Time to the first token.
pub const FIRST_TOKEN: Kind = kind(
    "vllm:time_to_first_token_seconds",
    "Time from submit to the first token",
    FIRST,
);
/// Time between tokens.
pub const INTER_TOKEN: Kind = kind(
    "vllm:inter_token_latency_seconds",
    "Time between two tokens of a run",
    BETWEEN,
);
/// The older name of [`INTER_TOKEN`], which most boards still have.
pub const OUTPUT_TOKEN: Kind = kind(
    "vllm:time_per_output_token_seconds",
    "Time between two tokens of a run (the older name)",
    BETWEEN,
);
/// From end to end.
pub const WHOLE_RUN: Kind = kind(
    "vllm:e2e_request_latency_seconds",
    "Time from submit to the end",
    WHOLE,
);
/// Waiting.
pub const QUEUE: Kind = kind(
    "vllm:request_queue_time_seconds",
    "Time from submit to the first slot",
    WHOLE,
);
/// Reading the prompt.
pub const PREFILL: Kind = kind(
    "vllm:request_prefill_time_seconds",
    "Time from the first slot to the first token",
    WHOLE,
);
/// Making tokens.
pub const DECODE: Kind = kind(
    "vllm:request_decode_time_seconds",
    "Time from the first token to the end",
    WHOLE,
);
/// Computing.
pub const INFERENCE: Kind = kind(
    "vllm:request_inference_time_seconds",
    "Time from the first slot to the end",
    WHOLE,
);
/// Length of prompts.
pub const PROMPT_TOKENS: Kind = kind(
    "vllm:request_prompt_tokens",
    "Prompt tokens of a run",
    TOKENS,
);
/// Length of outputs.
pub const GENERATION_TOKENS: Kind = kind(
    "vllm:request_generation_tokens",
    "Output tokens of a run",
    TOKENS,
);
/// Tokens of a step.
pub const ITERATION_TOKENS: Kind = kind(
    "vllm:iteration_tokens_total",
    "Tokens computed in one engine step",
    STEP_TOKENS,
);

/// How vLLM calls the ends of choices: stop, length, cancelled, failed.
pub const FINISHED_REASONS: [&str; 4] = ["stop", "length", "abort", "error"];
