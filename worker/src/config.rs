//! What a worker is told at its start.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::listen::Listen;

/// Everything a worker needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Stable within the pool; gateways show it and keep their view of the worker under it.
    pub name: String,
    /// The load plan.
    pub load_plan: PathBuf,
    /// Where it takes sessions.
    pub listen: Listen,
    /// Where it serves health and metrics, if anywhere.
    pub admin: Option<SocketAddr>,
    /// The engine's limits.
    pub engine: EngineSettings,
    /// What the engine runs on.
    pub device: DeviceSettings,
    /// Ends by itself when no gateway had a session for this long; `None`: never.
    pub orphan_grace: Option<Duration>,
    /// From the order to drain to the end.
    pub drain: Duration,
}

/// What the engine runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSettings {
    /// Which kind.
    pub choice: DeviceChoice,
    /// Folder with compiled kernels of a GPU; whoever can write there decides what runs on it. `None`: compile at each start.
    pub kernel_cache: Option<PathBuf>,
}

/// Kinds of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DeviceChoice {
    /// The CPU; the log says what GPU there is.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU; the worker does not start without.
    Cuda,
}

/// Limits of the engine. The pool's `spec.engine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineSettings {
    /// Sequences that run at the same time.
    pub max_running: u32,
    /// Tokens per step.
    pub max_batch_tokens: u32,
    /// Memory for keys and values.
    pub kv_bytes: u64,
    /// Positions per KV block.
    pub block_tokens: u32,
    /// Number format of keys and values.
    pub kv_dtype: KvDtype,
    /// What becomes of the weights.
    pub weights: WeightFormat,
    /// Tokens guessed ahead per sequence and step; 0 is none.
    pub draft_tokens: u32,
    /// Sequences that may wait; one more is refused.
    pub max_waiting: u32,
    /// Threads for the forward pass; `None`: as many as the machine has.
    pub threads: Option<usize>,
}

/// Number format of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum KvDtype {
    /// 32 bits.
    F32,
    /// 16 bits, 8 of them exponent.
    Bf16,
    /// 16 bits, 5 of them exponent.
    F16,
    /// Integers of 8 bits, with a scale for each position and head.
    Int8,
}

/// What becomes of the weights when they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum WeightFormat {
    /// They stay as the artifact has them.
    Stored,
    /// 8 bits, with a scale for each group of 64.
    Int8,
    /// 4 bits, with a scale and a minimum for each group of 64.
    Int4,
}

impl Default for EngineSettings {
    /// The defaults of a pool that says nothing: what a laptop serves a small model with.
    fn default() -> Self {
        Self {
            max_running: 64,
            max_batch_tokens: 2048,
            kv_bytes: 1 << 30,
            block_tokens: 16,
            kv_dtype: KvDtype::Bf16,
            weights: WeightFormat::Stored,
            draft_tokens: 7,
            max_waiting: 256,
            threads: None,
        }
    }
}
