//! What a worker is told at its start.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use crate::listen::Listen;

/// Everything a worker needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Stable within the pool; gateways show it and keep their view of the worker under it.
    pub name: String,
    /// What it holds.
    pub holds: Holds,
    /// Where it takes sessions.
    pub listen: Listen,
    /// Who may open them.
    pub callers: Callers,
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

/// What a worker holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holds {
    /// One version, and its adapters.
    One {
        /// The load plan.
        plan: PathBuf,
        /// Folder with load plans of adapters, one a file; they may come and go. `None`: no adapters.
        adapters: Option<PathBuf>,
    },
    /// Several versions, which may come and go.
    Several {
        /// Folder with their load plans, one in each `NAME.json`; adapters of that version are in `NAME.adapters`.
        plans: PathBuf,
        /// Most versions; each has an equal part of the memory for keys and values.
        most: NonZeroU32,
    },
}

/// Who may open sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Callers {
    /// Whoever reaches the address: for a Unix socket or a loopback address, which others do not reach.
    #[default]
    Local,
    /// Whoever reaches the address, whatever it is: something else keeps others away.
    Anybody,
    /// Gateways that prove themselves by TLS. The folder has `tls.crt`, `tls.key` and `ca.crt`.
    Gateways(PathBuf),
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

/// Limits of the engine. The pool's `spec.engine`. What is absent depends on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineSettings {
    /// Sequences that run at the same time.
    pub max_running: Option<u32>,
    /// Tokens per step.
    pub max_batch_tokens: Option<u32>,
    /// Memory for keys and values; on a GPU by itself most of what weights and steps leave.
    pub kv_bytes: Option<u64>,
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

/// What a device takes where nothing was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepLimits {
    pub(crate) max_running: u32,
    pub(crate) max_batch_tokens: u32,
}

/// What a laptop serves a small model with.
pub(crate) const ON_CPU: StepLimits = StepLimits {
    max_running: 64,
    max_batch_tokens: 2048,
};
/// Likewise, for keys and values.
pub(crate) const KV_BYTES_ON_CPU: u64 = 1 << 30;

/// A GPU reads its weights once a step, whatever is in it, so steps are large.
#[cfg_attr(
    not(feature = "cuda"),
    expect(dead_code, reason = "nothing else runs on a GPU")
)]
pub(crate) const ON_GPU: StepLimits = StepLimits {
    max_running: 256,
    max_batch_tokens: 8192,
};

impl EngineSettings {
    /// What was told, else what the device takes.
    pub(crate) fn limits(&self, absent: StepLimits) -> StepLimits {
        StepLimits {
            max_running: self.max_running.unwrap_or(absent.max_running),
            max_batch_tokens: self.max_batch_tokens.unwrap_or(absent.max_batch_tokens),
        }
    }
}

impl Default for EngineSettings {
    /// The defaults of a pool that says nothing.
    fn default() -> Self {
        Self {
            max_running: None,
            max_batch_tokens: None,
            kv_bytes: None,
            block_tokens: 16,
            kv_dtype: KvDtype::Bf16,
            weights: WeightFormat::Stored,
            draft_tokens: 7,
            max_waiting: 256,
            threads: None,
        }
    }
}
