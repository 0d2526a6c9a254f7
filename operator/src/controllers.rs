//! Works the agenda off: so many keys at once, each key once at a time, failures later and later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use weir_telemetry::Metrics;

use crate::leader::Leadership;
use crate::model::Models;
use crate::pool::Pools;
use crate::queue::Outcome;
use crate::quota::Quotas;
use crate::world::{Agenda, Key, World};

/// Looks at the same time: an API server and the hashing of files are what they wait for.
const AT_ONCE: usize = 8;
/// Everything is looked at again after this long, should a watch have missed something.
const RESYNC: Duration = Duration::from_mins(5);
/// How often it is looked whether this operator leads.
const TURN: Duration = Duration::from_millis(500);

/// One controller a kind.
pub(crate) struct Controllers {
    pub(crate) world: World,
    pub(crate) leadership: Leadership,
    pub(crate) models: Models,
    pub(crate) pools: Pools,
    pub(crate) quotas: Quotas,
    pub(crate) counts: Counts,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfController {
    controller: &'static str,
}

/// What controllers did.
pub(crate) struct Counts {
    looks: Family<OfController, Counter>,
    failures: Family<OfController, Counter>,
    depth: Gauge,
    leading: Gauge,
}

impl Counts {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let counts = Self {
            looks: Family::default(),
            failures: Family::default(),
            depth: Gauge::default(),
            leading: Gauge::default(),
        };
        metrics.with(|registry| {
            registry.register(
                "controller_reconcile",
                "Looks at an object",
                counts.looks.clone(),
            );
            registry.register(
                "controller_reconcile_errors",
                "Looks that failed",
                counts.failures.clone(),
            );
            registry.register(
                "workqueue_depth",
                "Objects that wait for a look",
                counts.depth.clone(),
            );
            registry.register(
                "weir_operator_leader",
                "1 while this operator acts",
                counts.leading.clone(),
            );
        });
        counts
    }
}

impl Controllers {
    /// Works until `stop`; what is being looked at then is finished.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let agenda: Agenda = self.world.agenda.clone();
        let mut running: JoinSet<(Key, Outcome)> = JoinSet::new();
        let (mut term, mut resynced) = (None, Instant::now());
        loop {
            let now = Instant::now();
            let leads = self.leadership.term(now);
            if leads.is_some() && (leads != term || now.duration_since(resynced) >= RESYNC) {
                // What was found while another one acted was left alone.
                self.world.touch_everything();
                resynced = now;
            }
            term = leads.or(term);
            self.counts.leading.set(i64::from(leads.is_some()));
            let room = AT_ONCE.saturating_sub(running.len());
            let (due, next) = agenda.with(|queue| {
                self.counts
                    .depth
                    .set(i64::try_from(queue.len()).unwrap_or(i64::MAX));
                (queue.take(now, room), queue.next_due())
            });
            for key in due {
                let this = Arc::clone(&self);
                running.spawn(async move {
                    let outcome = this.look(&key).await;
                    (key, outcome)
                });
            }
            let turn = now + TURN;
            let until = next
                .filter(|_| running.len() < AT_ONCE)
                .map_or(turn, |next| next.min(turn));
            tokio::select! {
                () = stop.cancelled() => break,
                () = agenda.changed() => {}
                () = tokio::time::sleep_until(until.into()) => {}
                Some(ended) = running.join_next() => match ended {
                    Ok((key, outcome)) => agenda.with(|queue| queue.done(&key, outcome, jitter(), Instant::now())),
                    // A panic is a fault in Weir; the process starts anew rather than leave a key for ever.
                    Err(error) => {
                        tracing::error!(%error, "a look panicked");
                        break;
                    }
                },
            }
        }
        while running.join_next().await.is_some() {}
    }

    async fn look(&self, key: &Key) -> Outcome {
        let (controller, outcome): (
            &'static str,
            Result<Outcome, Box<dyn std::error::Error + Send + Sync>>,
        ) = match key {
            Key::Model(name) => (
                "modelversion",
                self.models.look(name).await.map_err(Into::into),
            ),
            Key::Pool(name) => ("gpupool", self.pools.look(name).await.map_err(Into::into)),
            Key::Quota(name) => (
                "tenantquota",
                self.quotas.look(name).await.map_err(Into::into),
            ),
        };
        let label = OfController { controller };
        self.counts.looks.get_or_create(&label).inc();
        if matches!(outcome, Ok(Outcome::Hampered(_))) {
            self.counts.failures.get_or_create(&label).inc();
        }
        outcome.unwrap_or_else(|error| {
            self.counts.failures.get_or_create(&label).inc();
            tracing::warn!(
                controller,
                ?key,
                error = &*error as &dyn std::error::Error,
                "a look failed; it is tried again"
            );
            Outcome::Failed
        })
    }
}

/// A number from 0 to 1000.
pub(crate) fn jitter() -> u32 {
    getrandom::u32().map_or(500, |random| random % 1001)
}
