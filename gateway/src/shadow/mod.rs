//! The shadow: runs that stable served are asked of a version on trial too. Nothing of it reaches a client, a store or a bill; only counts
//! stay, and over any cap, or while others wait, it is left out.

mod caps;
mod compare;
mod mirror;
mod score;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use weir_rollout::report::ShadowReport;
use weir_rollout::routing::coin;
use weir_rollout::statistics::ShadowCounts;
use weir_run::{RunId, RunStatus};

use caps::Caps;
pub(crate) use mirror::ask_candidate;

use crate::admit::{Input, RunRequest, Shape};
use crate::core::Core;
use crate::link::Said;
use crate::snapshot::{Mirror, ModelRoute, ServedVersion, Tenant};

/// Runs that wait for their stable answer: their prompts are in memory.
const SEEDS: usize = 256;
/// Largest prompt that is kept for it.
const PROMPT_BYTES: usize = 256 << 10;

/// What is mirrored of all models.
#[derive(Default)]
pub(crate) struct Shadow {
    /// Whether nothing is mirrored at all: asked on every run.
    is_busy: AtomicBool,
    models: RwLock<BTreeMap<String, Arc<Mirroring>>>,
    seeds: Mutex<HashMap<RunId, Seed>>,
}

/// One version in the shadow.
pub(crate) struct Mirroring {
    model: String,
    mirror: Mirror,
    counts: Mutex<ShadowCounts>,
    caps: Mutex<Caps>,
    /// Questions under way.
    under_way: AtomicU32,
    stop: CancellationToken,
}

/// What is kept of a run until stable has answered.
struct Seed {
    mirroring: Arc<Mirroring>,
    tenant: Tenant,
    request: RunRequest,
    stable: Arc<ServedVersion>,
}

/// A run to ask of the version in the shadow, and what stable said.
pub(crate) struct Pair {
    seed: Seed,
    said: Said,
}

impl Shadow {
    /// Takes over what is to be mirrored. What goes on keeps its counts.
    pub(crate) fn apply(&self, core: &Arc<Core>, models: &[ModelRoute]) {
        let mut all = self.models.write();
        let mut next = BTreeMap::new();
        for route in models {
            let Some(mirror) = &route.mirror else {
                continue;
            };
            let known = all.remove(&route.name);
            let goes_on = |known: &Arc<Mirroring>| {
                known.mirror.attempt == mirror.attempt && known.mirror.target == mirror.target
            };
            let mirroring = match known {
                Some(known) if goes_on(&known) => known,
                other => {
                    if let Some(other) = other {
                        other.stop.cancel();
                    }
                    let begun = Arc::new(Mirroring::new(&route.name, mirror.clone()));
                    core.spawn(mirror::ask_references(Arc::clone(core), Arc::clone(&begun)));
                    begun
                }
            };
            next.insert(route.name.clone(), mirroring);
        }
        for gone in all.values() {
            gone.stop.cancel();
        }
        self.is_busy.store(!next.is_empty(), Ordering::Release);
        *all = next;
        drop(all);
        if !self.is_busy.load(Ordering::Acquire) {
            self.seeds.lock().clear();
        }
    }

    /// A run was accepted that the coin gave to stable: perhaps it is mirrored.
    pub(crate) fn accepted(
        &self,
        run: RunId,
        tenant: &Tenant,
        version: &Arc<ServedVersion>,
        request: &RunRequest,
    ) {
        if !self.is_busy.load(Ordering::Acquire) {
            return;
        }
        let Some(mirroring) = self.models.read().get(&version.model).cloned() else {
            return;
        };
        let is_plain = request.choices == 1
            && !matches!(request.shape, Shape::Tools(..))
            // Another version may have another vocabulary.
            && !matches!(request.input, Input::Tokens(_))
            && request.input.bytes() <= PROMPT_BYTES;
        if !tenant.shadow || version.digest == mirroring.mirror.target || !is_plain {
            return;
        }
        // The coin of the run, thrown again with another salt: a client cannot choose.
        let salt = format!("mirror {}", mirroring.mirror.attempt);
        let flip = coin(&run.to_string(), &salt);
        if u128::from(flip) * 100 >= u128::from(mirroring.mirror.percent) << 64 {
            return;
        }
        let mut seeds = self.seeds.lock();
        if seeds.len() >= SEEDS {
            return mirroring.dropped();
        }
        seeds.insert(
            run,
            Seed {
                mirroring,
                tenant: tenant.clone(),
                request: request.clone(),
                stable: Arc::clone(version),
            },
        );
    }

    /// A run ended: what to ask of the version in the shadow, where it was chosen for that and completed.
    pub(crate) fn ended(
        &self,
        run: RunId,
        status: RunStatus,
        said: impl FnOnce() -> Said,
    ) -> Option<Pair> {
        if !self.is_busy.load(Ordering::Acquire) {
            return None;
        }
        let seed = self.seeds.lock().remove(&run)?;
        (status == RunStatus::Completed).then(|| Pair { seed, said: said() })
    }

    /// What was counted of a model's version in the shadow, if one is there.
    pub(crate) fn counts(&self, model: &str) -> Option<ShadowReport> {
        let mirroring = self.models.read().get(model).cloned()?;
        let counts = mirroring.counts.lock().clone();
        Some(ShadowReport {
            attempt: mirroring.mirror.attempt.clone(),
            counts,
        })
    }
}

impl Mirroring {
    fn new(model: &str, mirror: Mirror) -> Self {
        let counts = ShadowCounts {
            references_due: mirror.references.len() as u64,
            ..ShadowCounts::default()
        };
        Self {
            model: model.to_owned(),
            caps: Mutex::new(Caps::new(mirror.max_tokens_per_second, Instant::now())),
            counts: Mutex::new(counts),
            mirror,
            under_way: AtomicU32::new(0),
            stop: CancellationToken::new(),
        }
    }

    fn dropped(&self) {
        self.counts.lock().dropped += 1;
    }
}
