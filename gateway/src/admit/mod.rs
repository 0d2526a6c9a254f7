//! From a parsed request to a durable, queued run, with the refusals in the order of the contract.

mod detach;
mod early;
mod judge;
mod limits;
mod place;
mod plan;
mod queue;
mod refusal;
mod request;
mod tokenize;
mod trial;
mod turns;

use std::sync::Arc;

use tokio::time::Instant;
use weir_budget::{Ask, Limits};
use weir_run::{EventKind, Run, RunId, Verdict};
use weir_store::fault::{broken, point};
use weir_store::{Admission, Admit};
use weir_telemetry::trace::unix_ns;

pub(crate) use judge::schema_error;
pub(crate) use plan::Asking;
pub(crate) use queue::{Next, Queues};
pub(crate) use refusal::draining;
pub(crate) use request::{Input, Params, RunRequest, Sampling, Shape, parse_replaces};
pub(crate) use tokenize::TokenizerPool;

use crate::clock::{new_run_id, now_ms};
use crate::core::{Core, SHED};
use crate::directory::{Directory, Target};
use crate::error::{ApiError, ApiResult};
use crate::hub::encode;
use crate::link::{Ending, Job, Writer};
use crate::recover::submit_of;
use crate::snapshot::{ServedVersion, Tenant};
use crate::trace::RunTrace;
use plan::Plan;
use queue::{Newcomer, Slot};
use trial::Trial;

/// A run that answers a request.
pub(crate) struct Admitted {
    pub(crate) run: Run,
    /// The request key was known.
    pub(crate) replayed: bool,
}

impl Core {
    /// Lets a request in, or says what stands against it.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        directory: &Directory,
        tenant: &Tenant,
        target: &Target,
        mut request: RunRequest,
    ) -> ApiResult<Admitted> {
        let (begun, begun_ns) = (Instant::now(), unix_ns());
        if let Some(known) = self.known(tenant, &request).await? {
            return Ok(known);
        }
        point("admit.known");
        if self.is_draining() {
            return Err(refusal::draining());
        }
        request.check_priority(tenant)?;
        let looked = self.look_before(directory, tenant, &target.version.model, &mut request);
        let verdicts = looked.await?;
        let request = &request;
        let id = new_run_id();
        let is_ready = |version: &ServedVersion| self.links.any(&version.digest);
        let first = directory.assign(tenant, target, id, is_ready)?;
        let placed = self.place(directory, tenant, (id, first), request).await;
        let (mut plan, slot) = placed?;
        plan.verdicts = verdicts;
        // Its turn may be now: then it holds a seat while it becomes durable, and no place in the line.
        let version = Arc::clone(&plan.candidate.version);
        self.pump(&version.digest);
        let trace = RunTrace::new(&self.tracer, id, request.trace);
        let admitted = self
            .commit(
                (directory, tenant),
                request,
                (id, plan, trace.as_ref()),
                slot,
            )
            .await;
        if let (
            Some(trace),
            Ok(Admitted {
                replayed: false, ..
            }),
        ) = (&trace, &admitted)
        {
            trace.admitted(&self.tracer, id, begun_ns);
        }
        self.metrics
            .admission_seconds
            .observe(begun.elapsed().as_secs_f64());
        // The run can go now; or its seat is free again.
        self.pump(&version.digest);
        admitted
    }

    /// What policies say to the prompt; they may change it.
    async fn look_before(
        &self,
        directory: &Directory,
        tenant: &Tenant,
        model: &str,
        request: &mut RunRequest,
    ) -> ApiResult<Vec<Verdict>> {
        let Some(sets) = directory.policies.of(&tenant.name, model) else {
            return Ok(Vec::new());
        };
        let verdicts = sets.before(&tenant.name, model, request).await?;
        for verdict in &verdicts {
            self.metrics.policy(verdict);
        }
        Ok(verdicts)
    }

    /// The run that already has the request's key. Repeats find it whatever became of limits, queues and models meanwhile.
    async fn known(&self, tenant: &Tenant, request: &RunRequest) -> ApiResult<Option<Admitted>> {
        let Some(key) = &request.request_key else {
            return Ok(None);
        };
        match self.store.run_by_key(&tenant.name, key).await? {
            _ if broken("key-twice") => Ok(None),
            None => Ok(None),
            Some(run) if run.payload_hash == request.payload_hash => Ok(Some(Admitted {
                run,
                replayed: true,
            })),
            Some(run) => Err(refusal::conflict(run.id)),
        }
    }

    /// Takes a place in the line of the plan's version. Who is shed for it ends here.
    fn take_place(
        self: &Arc<Self>,
        directory: &Directory,
        tenant: &Tenant,
        (id, plan): (RunId, &Plan),
        request: &RunRequest,
    ) -> ApiResult<Slot> {
        let version = &plan.candidate.version;
        let pool = directory.pool(&version.pool);
        if !self.links.any(&version.digest) && !pool.sleeps {
            return Err(refusal::no_worker(&version.model));
        }
        let priority = request.priority.unwrap_or(tenant.priority);
        let (ask, now) = (plan.ask(), now_ms());
        let newcomer = Newcomer {
            run: id,
            tenant: &tenant.name,
            priority: weir_admission::Priority::ALL[usize::from(priority.index())],
            prompt_tokens: ask.prompt_tokens,
            ceiling: ask.output_tokens,
            max_wait_ms: pool.queues[usize::from(priority.index())]
                .max_wait_ms
                .min(request.max_queue_ms.unwrap_or(u64::MAX)),
            deadline_in_ms: request.deadline_ms.map(|at| at.saturating_sub(now)),
        };
        let offered = self.queues.offer(version, &pool, &newcomer);
        let (slot, shed) = offered.map_err(|refused| refusal::line(&refused, &newcomer, &pool))?;
        if let Some(job) = shed {
            self.end_unsent(*job, Ending::of(&SHED));
        }
        Ok(slot)
    }

    /// The queue or the workers said no; limits that stand before them in the order of refusal are reported first.
    async fn first_refusal(
        &self,
        tenant: &Tenant,
        plan: &Plan,
        refused: ApiError,
    ) -> ApiResult<ApiError> {
        let (ask, limits) = self.ask(tenant, plan);
        let earlier = self
            .store
            .would_refuse(&tenant.name, ask, limits, now_ms())
            .await?;
        Ok(match earlier {
            Some(earlier) => refusal::limit(&earlier, plan),
            None => refused,
        })
    }

    fn ask(&self, tenant: &Tenant, plan: &Plan) -> (Ask, Limits) {
        let pool = &plan.candidate.version.pool;
        let mut limits = tenant.limits.clone();
        limits.pool_kv_tokens =
            limits::kv_share(tenant.kv_share_percent, self.links.kv_tokens(pool));
        (plan.ask(), limits)
    }

    async fn commit(
        self: &Arc<Self>,
        (directory, tenant): (&Directory, &Tenant),
        request: &RunRequest,
        (id, plan, trace): (RunId, Plan, Option<&RunTrace>),
        slot: Slot,
    ) -> ApiResult<Admitted> {
        point("admit.placed");
        let (ask, limits) = self.ask(tenant, &plan);
        let now = now_ms();
        let run = plan.run((id, slot.estimate_ms), tenant, request, now);
        let work = plan.work(tenant, request, trace);
        let accepted = encode(
            1,
            &EventKind::Accepted {
                run_id: id,
                model_version: run.model_version,
                reserved_tokens: run.reserved_tokens,
            },
        );
        // Known before it is durable, so that a repeat which the store answers first finds its tail.
        let live = self.hub.open(id, 0);
        let guard = Unadmitted {
            core: self,
            run: id,
        };
        let admission = Admission {
            run: run.clone(),
            work: work.clone(),
            ask,
            limits,
            accepted: accepted.record(),
            attachment: request.attachment.clone(),
            now_ms: now,
        };
        match self.store.admit(admission).await? {
            Admit::Admitted => {}
            Admit::Replayed(run) => {
                return Ok(Admitted {
                    run: *run,
                    replayed: true,
                });
            }
            Admit::Conflict(other) => return Err(refusal::conflict(other)),
            Admit::Refused(refused) => return Err(refusal::limit(&refused, &plan)),
            Admit::BadReplaces(why) => return Err(refusal::bad_replaces(&why)),
        }
        std::mem::forget(guard);
        point("admit.durable");
        let trial = Trial {
            run: id,
            tenant,
            candidate: &plan.candidate,
        };
        trial.accepted(self, request);
        self.hub.publish(&live, [accepted]);
        point("admit.published");
        self.set_times(&live, request.deadline_ms, slot.max_wait_ms);
        let mut writer = Writer::new(live, &run);
        writer.trace = trace.cloned().map(Box::new);
        writer.judge_by(directory.policies.of(&run.tenant, &run.model));
        let job = Job {
            submit: submit_of(id, run.epoch.0, work),
            writer,
            pool: run.pool.clone(),
            dispatch: None,
            attempts: 0,
        };
        if let Err((job, why)) = self.queues.push(slot, Box::new(job)) {
            self.end_unsent(*job, Ending::of(&why));
        }
        point("admit.queued");
        Ok(Admitted {
            run,
            replayed: false,
        })
    }
}

/// Takes a run that was not admitted out of the hub again.
struct Unadmitted<'a> {
    core: &'a Core,
    run: RunId,
}

impl Drop for Unadmitted<'_> {
    fn drop(&mut self) {
        if let Some(live) = self.core.hub.close(self.run) {
            live.moved();
        }
    }
}
