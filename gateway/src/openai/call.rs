//! `POST /v1/chat/completions` and `POST /v1/completions`.

use std::sync::Arc;

use http::Response;
use weir_run::RunId;

use super::answer::answer;
use super::chunk::Chunks;
use super::read::{hash, read};
use super::{Kind, Presentation};
use crate::clock::{now_ms, random_u128};
use crate::core::{CANCELLED, Core};
use crate::error::{ApiError, ApiResult};
use crate::http::body::Body;
use crate::http::json::{Fields, parse_object};
use crate::http::reply::{event_stream, name_run};
use crate::http::route::Call;
use crate::http::sse::{Attendance, EventStream};
use crate::hub::EventSource;

pub(crate) async fn chat(call: Call) -> ApiResult<Response<Body>> {
    serve(call, Kind::Chat).await
}

pub(crate) async fn completions(call: Call) -> ApiResult<Response<Body>> {
    serve(call, Kind::Completion).await
}

async fn serve(mut call: Call, kind: Kind) -> ApiResult<Response<Body>> {
    let core = Arc::clone(&call.core);
    let bytes = call.read_body().await?;
    let body = parse_object(&bytes, core.config.json_depth)?;
    let hash = hash(&call, kind, &body)?;
    let mut fields = Fields::new(body);
    let model = fields
        .string("model", 256)?
        .ok_or_else(|| ApiError::invalid("model", "`model` is missing; name a model"))?;
    let directory = core.directory.load_full();
    let candidate = directory.resolve(&call.tenant, &model, random_u128())?;
    let (request, presentation) = read(&call, kind, model, fields, hash)?;
    let keyed = request.request_key.is_some();
    let admitted = core
        .admit(&directory, &call.tenant, candidate, request)
        .await?;
    let run = admitted.run;
    let leave = Leave {
        core: Arc::clone(&core),
        tenant: call.tenant.name.clone(),
        // A call with a key can be joined again; one without would run for nobody.
        run: (!keyed).then_some(run.id),
    };
    let events = EventSource::new(core.store.clone(), core.hub.clone(), run.id, 0);
    let mut response = respond(&core, &run, presentation, events, leave).await?;
    name_run(&mut response, run.id, run.model_version);
    Ok(response)
}

async fn respond(
    core: &Core,
    run: &weir_run::Run,
    presentation: Presentation,
    events: EventSource,
    mut leave: Leave,
) -> ApiResult<Response<Body>> {
    if presentation.stream {
        let chunks = Chunks::new(run, presentation);
        let silence = core.config.keep_alive;
        let stream = EventStream::new(events, chunks, leave, silence, &core.metrics);
        return Ok(event_stream(Body::stream(stream)));
    }
    let response = answer(run, &presentation, events).await;
    leave.served();
    response
}

/// Cancels the run when the client leaves before its end.
struct Leave {
    core: Arc<Core>,
    tenant: String,
    run: Option<RunId>,
}

impl Attendance for Leave {
    fn served(&mut self) {
        self.run = None;
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        let Some(run) = self.run.take() else { return };
        let (core, tenant) = (Arc::clone(&self.core), std::mem::take(&mut self.tenant));
        self.core.tasks.spawn(async move {
            match core.store.cancel(&tenant, run, now_ms()).await {
                Ok(Some(run)) if !run.status.is_terminal() => core.end_soon(run.id, CANCELLED),
                Ok(_) => {}
                Err(error) => tracing::warn!(%run, %error, "cannot cancel a run whose client left"),
            }
        });
    }
}
