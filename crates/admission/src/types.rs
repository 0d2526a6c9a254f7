//! What goes into and comes out of admission.

/// How urgent a run is. The order is the order of service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Someone waits for every token.
    Interactive,
    /// The default.
    Standard,
    /// Nobody waits; served when there is room, and by aging when there never is.
    Batch,
}

impl Priority {
    /// How many there are.
    pub const COUNT: usize = 3;
    /// All, most urgent first.
    pub const ALL: [Self; Self::COUNT] = [Self::Interactive, Self::Standard, Self::Batch];
}

/// Prompt-size classes: short, medium, long.
pub const CLASSES: usize = 3;

/// Bounds of one queue. [`Config::default`] has the pool's own defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Runs that may wait, all priorities together.
    pub max_depth: u32,
    /// Runs that may wait, per priority.
    pub max_depth_per_priority: [u32; Priority::COUNT],
    /// Runs that may wait, per prompt-size class within a priority: long prompts cannot fill the queue.
    pub max_depth_per_class: [u32; CLASSES],
    /// Largest prompt of the short and of the medium class, in tokens.
    pub class_bounds: [u32; CLASSES - 1],
    /// Of a tenant's runs of one priority, how many of each class go in one round.
    pub class_weights: [u32; CLASSES],
    /// After so long without service a priority counts one better.
    pub aging_ms: u64,
    /// How often smaller runs may pass one that does not fit yet.
    pub max_passed: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_depth: 256,
            max_depth_per_priority: [256; Priority::COUNT],
            max_depth_per_class: [256, 128, 64],
            class_bounds: [512, 4096],
            class_weights: [4, 2, 1],
            aging_ms: 5_000,
            max_passed: 16,
        }
    }
}

impl Config {
    /// The class of a prompt.
    pub fn class_of(&self, prompt_tokens: u32) -> usize {
        self.class_bounds
            .iter()
            .position(|bound| prompt_tokens <= *bound)
            .unwrap_or(CLASSES - 1)
    }
}

/// A run that wants in. `R` names runs, `T` names tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting<R, T> {
    /// Which run.
    pub run: R,
    /// Whose.
    pub tenant: T,
    /// How urgent.
    pub priority: Priority,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Output tokens at most, over all choices.
    pub ceiling: u32,
    /// How long it is willing to wait here.
    pub max_wait_ms: u64,
    /// When it must have ended, on the same clock as `enqueued_at_ms`.
    pub deadline_ms: Option<u64>,
    /// Now.
    pub enqueued_at_ms: u64,
}

/// A place in the queue, for [`crate::Admission::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// The run waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered<R> {
    /// Its place.
    pub ticket: Ticket,
    /// How long it is expected to wait; 0 before anything was measured.
    pub estimate_ms: u64,
    /// The queue was full and this less urgent run was shed: it must be ended, and told why.
    pub displaced: Option<R>,
}

/// The run does not wait; nothing was queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The queue is at its bound, and nobody in it is less urgent.
    #[error(
        "{depth} runs wait and the queue holds {bound}; the wait would be about {estimate_ms} ms"
    )]
    QueueFull {
        /// How many wait.
        depth: u32,
        /// The bound that was reached.
        bound: u32,
        /// When it may be worth trying again.
        estimate_ms: u64,
    },
    /// It would not start within its patience, or not end before its deadline.
    #[error(
        "the wait would be about {estimate_ms} ms, too long for the run's deadline or patience"
    )]
    DeadlineUnmeetable {
        /// Expected wait.
        estimate_ms: u64,
        /// Expected time from its start to its end.
        service_ms: u64,
        /// It would not end before its deadline; else its patience is too short.
        is_late: bool,
    },
}

/// What the workers could take now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Runs that could be sent now, to all workers together.
    pub seats: u32,
    /// Seats of all workers, free or not.
    pub total: u32,
    /// KV tokens that are free or evictable where there is most room.
    pub kv_tokens: u64,
}

/// What [`crate::Admission::next`] decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<R> {
    /// Send it to a worker.
    Start(Started<R>),
    /// It waited too long; end it.
    Expired(Expired<R>),
}

/// A run whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started<R> {
    /// Which.
    pub run: R,
    /// The place it had.
    pub ticket: Ticket,
    /// How long it waited.
    pub waited_ms: u64,
}

/// A run that waited too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expired<R> {
    /// Which.
    pub run: R,
    /// The place it had.
    pub ticket: Ticket,
    /// How long it waited.
    pub waited_ms: u64,
    /// Which limit it met.
    pub why: ExpiredWhy,
}

/// Which limit a waiting run met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiredWhy {
    /// Its own patience.
    MaxWait,
    /// Its deadline.
    Deadline,
}

/// A run that ended on a worker, whatever its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Output tokens made.
    pub output_tokens: u32,
    /// Output tokens it might have made.
    pub ceiling: u32,
    /// From dispatch to end.
    pub service_ms: u64,
}

/// How many wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depths {
    /// All.
    pub total: u32,
    /// By priority.
    pub per_priority: [u32; Priority::COUNT],
    /// By priority and prompt-size class.
    pub per_class: [[u32; CLASSES]; Priority::COUNT],
}
