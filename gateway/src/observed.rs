//! What this gateway tells the operator: tables in force, counts of runs on trial, workers, queues, budgets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use weir_rollout::report::{GatewayReport, ModelReport, PoolReport, WorkerReport};
use weir_telemetry::admin::{Action, Query};

use crate::clock::now_ms;
use crate::gateway::Gateway;
use crate::http::route::{parameters, repeated};
use crate::snapshot::ModelRoute;

/// Whether this gateway can make prompts for a version: one that it cannot read is no version for it, whoever serves it.
pub(crate) type Reads = Arc<dyn Fn(&str) -> bool + Send + Sync>;

impl Gateway {
    /// What the operator may ask a gateway in a cluster: `/observed` and `/budget`.
    pub(crate) fn observed_queries(&self, reads: Reads) -> BTreeMap<&'static str, Query> {
        let json = |answer| Query {
            content_type: "application/json",
            answer,
        };
        let (observed, budget) = (self.clone(), self.clone());
        let observed = Action(Arc::new(move |query| {
            let answer = observed.answer_observed(&query, &reads);
            Box::pin(std::future::ready(answer))
        }));
        let budget = Action(Arc::new(move |query| {
            let gateway = budget.clone();
            Box::pin(async move { gateway.answer_budget(&query).await })
        }));
        BTreeMap::from([("/observed", json(observed)), ("/budget", json(budget))])
    }

    fn answer_observed(&self, query: &Bytes, reads: &Reads) -> Result<String, String> {
        let query = text(query)?;
        // Once for each model on trial.
        let asked = repeated(query, "evidence").map_err(|error| error.body().message.clone())?;
        let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
        serde_json::to_string(&self.observed(&asked, reads)).map_err(|error| error.to_string())
    }

    /// Everything, with counts of the models that are `asked` for.
    fn observed(&self, asked: &[&str], reads: &Reads) -> GatewayReport {
        let core = self.core();
        let directory = core.directory.load();
        let model = |(name, route): (&String, &ModelRoute)| {
            let in_force = core.tables.get(name);
            let age = in_force.as_ref().map(|in_force| in_force.since.elapsed());
            let waiting = route.versions.iter().map(|version| {
                let waiting = core.queues.waiting(&version.digest);
                (version.digest.clone(), waiting as u64)
            });
            let is_asked = asked.contains(&name.as_str());
            let report = ModelReport {
                age_ms: age.map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
                table: in_force.map(|in_force| in_force.table.as_ref().clone()),
                waiting: waiting.filter(|(_, waiting)| *waiting > 0).collect(),
                evidence: is_asked.then(|| self.evidence(name)),
                shadow: is_asked.then(|| self.shadow(name)).flatten(),
            };
            (name.clone(), report)
        };
        let models = directory.models.iter().map(model).collect();
        let views = self.workers();
        // A pool that sleeps has no workers, and perhaps runs that wait for one.
        let served = directory.models.values().flat_map(|model| &model.versions);
        let served = served.map(|version| version.pool.clone());
        let pools: BTreeSet<String> = served
            .chain(views.iter().map(|view| view.pool.clone()))
            .collect();
        let pools = pools.into_iter().map(|pool| {
            let (depth, oldest) = (self.queue_depth(&pool), core.queues.oldest_ms(&pool));
            (
                pool,
                PoolReport {
                    queue_depth: depth as u64,
                    queue_ms: oldest,
                },
            )
        });
        let pools = pools.collect();
        let workers = views.into_iter().map(|view| {
            let report = WorkerReport {
                pool: view.pool,
                digests: view
                    .digests
                    .into_iter()
                    .filter(|digest| reads(digest))
                    .collect(),
                connected: view.connected,
                draining: view.draining,
                in_flight: view.in_flight,
                kv_total: view.kv_tokens,
                kv_held: view.status.kv_tokens,
                prompt_tokens: [view.status.prompt_tokens, view.status.cached_tokens],
                output_tokens: view.status.output_tokens,
            };
            (view.name, report)
        });
        GatewayReport {
            replica: core.config.replica.clone(),
            models,
            workers: workers.collect(),
            pools,
        }
    }

    async fn answer_budget(&self, query: &Bytes) -> Result<String, String> {
        let given = given(query, &["tenant", "periods"])?;
        let of = |name: &str| {
            given
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.as_str())
        };
        let tenant = of("tenant").ok_or("name the tenant: ?tenant=NAME&periods=SECONDS,…")?;
        let periods = of("periods")
            .unwrap_or_default()
            .split(',')
            .filter(|text| !text.is_empty());
        let periods: Result<Vec<u64>, _> = periods.map(str::parse).collect();
        let periods = periods
            .map_err(|_| "periods are numbers of seconds with commas between them".to_owned())?;
        let now = now_ms();
        let budget = self.core().store.budget(tenant, periods, now).await;
        let budget = budget.map_err(|error| error.to_string())?;
        let windows: Vec<_> = budget
            .windows
            .iter()
            .map(|window| {
                json!({
                    "periodS": window.period_s, "startMs": window.start_ms, "endMs": window.end_ms(),
                    "usedTokens": window.used_tokens, "reservedTokens": window.reserved_tokens,
                    "usedMicros": window.used_micros, "reservedMicros": window.reserved_micros,
                })
            })
            .collect();
        Ok(json!({"windows": windows, "liveRuns": budget.live_runs}).to_string())
    }
}

fn given(query: &Bytes, known: &[&str]) -> Result<Vec<(String, String)>, String> {
    parameters(text(query)?, known).map_err(|error| error.body().message.clone())
}

fn text(query: &Bytes) -> Result<&str, String> {
    std::str::from_utf8(query).map_err(|_| "the query is no text".to_owned())
}
