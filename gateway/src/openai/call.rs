//! `POST /v1/chat/completions` and `POST /v1/completions`.

use std::sync::Arc;

use http::Response;

use super::answer::answer;
use super::chunk::Chunks;
use super::headers::hash;
use super::read::read;
use super::start::{Leave, admit, route};
use super::{Kind, Presentation};
use crate::core::Core;
use crate::error::{ApiError, ApiResult};
use crate::http::body::Body;
use crate::http::json::{Fields, parse_object};
use crate::http::reply::{event_stream, name_run};
use crate::http::route::Call;
use crate::http::sse::{Attendance, EventStream};
use crate::hub::{EventSource, check_kept};

pub(crate) async fn chat(call: Call) -> ApiResult<Response<Body>> {
    serve(call, Kind::Chat).await
}

pub(crate) async fn completions(call: Call) -> ApiResult<Response<Body>> {
    serve(call, Kind::Completion).await
}

async fn serve(mut call: Call, kind: Kind) -> ApiResult<Response<Body>> {
    let bytes = call.read_body().await?;
    serve_from(&call, kind, &bytes).await
}

/// As [`serve`], with a body that was read already.
pub(crate) async fn serve_from(call: &Call, kind: Kind, bytes: &[u8]) -> ApiResult<Response<Body>> {
    let core = Arc::clone(&call.core);
    let body = parse_object(bytes, core.config.json_depth)?;
    let hash = hash(call, kind.name(), &body)?;
    let mut fields = Fields::new(body);
    let model = fields
        .string("model", 256)?
        .ok_or_else(|| ApiError::invalid("model", "`model` is missing; name a model"))?;
    let routed = route(call, &model)?;
    let (request, presentation) = read(call, kind, model, fields, hash)?;
    // A call with a key can be joined again; one without would run for nobody.
    let alone = request.request_key.is_some();
    let (run, leave) = admit(call, routed, request, alone).await?;
    let events = EventSource::new(&core, &run, 0);
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
        check_kept(core, run, 0).await?;
        let chunks = Chunks::new(run, presentation);
        let silence = core.config.keep_alive;
        let stream = EventStream::new(events, chunks, leave, silence, &core.metrics);
        return Ok(event_stream(Body::stream(stream)));
    }
    let response = answer(run, &presentation, events).await;
    leave.served();
    response
}
