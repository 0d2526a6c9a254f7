//! `POST /v1/responses`.

use http::{Response, StatusCode};
use weir_run::Run;

use super::super::headers::hash;
use super::super::start::{admit, route};
use super::events::Events;
use super::input::tell;
use super::read::read;
use super::record::Record;
use super::story::Story;
use crate::error::{ApiError, ApiResult};
use crate::http::body::Body;
use crate::http::json::{Fields, parse_object};
use crate::http::reply::{event_stream, json, name_run};
use crate::http::route::Call;
use crate::http::sse::{Attendance, EventStream};
use crate::hub::{EventSource, check_kept};

pub(crate) async fn create(mut call: Call) -> ApiResult<Response<Body>> {
    let bytes = call.read_body().await?;
    create_from(&call, &bytes).await
}

/// As [`create`], with a body that was read already.
pub(crate) async fn create_from(call: &Call, bytes: &[u8]) -> ApiResult<Response<Body>> {
    let body = parse_object(bytes, call.core.config.json_depth)?;
    let hash = hash(call, "response", &body)?;
    let mut fields = Fields::new(body);
    let model = fields
        .string("model", 256)?
        .ok_or_else(|| ApiError::invalid("model", "`model` is missing; name a model"))?;
    let routed = route(call, &model)?;
    let asked = read(call, model, fields, hash).await?;
    let alone = asked.record.background || asked.request.request_key.is_some();
    let (record, stream) = (asked.record, asked.stream);
    let (run, mut leave) = admit(call, routed, asked.request, alone).await?;
    let core = &call.core;
    let events = EventSource::new(core, &run, 0);
    let mut response = if stream {
        check_kept(core, &run, 0).await?;
        let shape = Events::new(Story::of(&run, record), None);
        let silence = core.config.keep_alive;
        let stream = EventStream::new(events, shape, leave, silence, &core.metrics);
        event_stream(Body::stream(stream))
    } else if run.status.is_terminal() || !record.background {
        let answer = whole(call, &run, record, events).await;
        leave.served();
        answer?
    } else {
        let story = tell(&*core.store, &run, record).await?;
        json(StatusCode::OK, &story.view(story.word(), None))
    };
    name_run(&mut response, run.id, run.model_version);
    Ok(response)
}

/// The response once it has ended.
async fn whole(
    call: &Call,
    run: &Run,
    record: Record,
    mut events: EventSource,
) -> ApiResult<Response<Body>> {
    let mut story = Story::of(run, record);
    while let Some(frame) = events.next().await {
        story.follow_frame(&frame?)?;
    }
    if story.end.is_none() {
        return Err(super::record::expired(run));
    }
    let ended = call.core.store.run(&call.tenant.name, run.id).await?;
    let completed_at = ended.and_then(|run| super::follow::completed_at(&run));
    Ok(json(
        StatusCode::OK,
        &story.view(story.word(), completed_at),
    ))
}
