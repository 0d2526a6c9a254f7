//! `POST /inference`.

use std::sync::Arc;

use http::header::ACCEPT;
use http::{Response, StatusCode};
use serde::Serialize;
use serde_json::Value;
use weir_protocol::error::ErrorCode;
use weir_run::{Run, RunId, payload_hash};

use super::read::read_request;
use crate::admit::Admitted;
use crate::clock::rfc3339;
use crate::error::{ApiError, ApiResult};
use crate::http::body::Body;
use crate::http::json::{Fields, parse_object};
use crate::http::reply::{event_stream, json, name_run};
use crate::http::route::Call;
use crate::http::sse::{EventStream, Native};
use crate::hub::{EventSource, check_kept};
use crate::openai::idempotency_key;
use crate::trace;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "names of the contract")]
struct Accepted<'a> {
    run_id: RunId,
    status: &'static str,
    model: &'a str,
    model_version: u32,
    prompt_tokens: u64,
    reserved_tokens: u64,
    accepted_at: String,
    events: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    replayed: bool,
}

pub(crate) async fn inference(mut call: Call) -> ApiResult<Response<Body>> {
    let bytes = call.read_body().await?;
    let key = idempotency_key(&call)?;
    let Call {
        core,
        tenant,
        headers,
        ..
    } = call;
    let body = Value::Object(parse_object(&bytes, core.config.json_depth)?);
    let hash = payload_hash(&body);
    let Value::Object(map) = body else {
        return Err(ApiError::new(ErrorCode::Internal, "an object was expected"));
    };
    let mut fields = Fields::new(map);
    let model = fields
        .string("model", 256)?
        .ok_or_else(|| ApiError::invalid("model", "`model` is missing; name a model"))?;
    let directory = core.directory.load_full();
    let target = directory.resolve(&tenant, &model)?;
    let mut request = read_request(fields, model, hash)?;
    // The header is another word for `requestKey`, as on all calls that make something.
    if let Some(key) = key
        && request.request_key.get_or_insert_with(|| key.clone()) != &key
    {
        return Err(ApiError::invalid(
            "requestKey",
            "`requestKey` and the header Idempotency-Key differ; send one",
        ));
    }
    request.trace = trace::context(&headers);
    let admitting = Arc::clone(&core);
    let admission = async move { admitting.admit(&directory, &tenant, &target, request).await };
    let Admitted { run, replayed } = core.to_its_end(admission).await?;
    let wants_events = headers.get_all(ACCEPT).iter().any(|accept| {
        accept
            .as_bytes()
            .windows(17)
            .any(|w| w == b"text/event-stream")
    });
    let mut response = if wants_events {
        check_kept(&core, &run, 0).await?;
        let source = EventSource::new(&core, &run, 0);
        let silence = core.config.keep_alive;
        event_stream(Body::stream(EventStream::new(
            source,
            Native,
            (),
            silence,
            &core.metrics,
        )))
    } else {
        let status = if replayed {
            StatusCode::OK
        } else {
            StatusCode::ACCEPTED
        };
        json(status, &accepted(&run, replayed))
    };
    name_run(&mut response, run.id, run.model_version);
    Ok(response)
}

fn accepted(run: &Run, replayed: bool) -> Accepted<'_> {
    Accepted {
        run_id: run.id,
        status: run.status.as_str(),
        model: &run.model,
        model_version: run.model_version,
        prompt_tokens: run.prompt_tokens,
        reserved_tokens: run.reserved_tokens,
        accepted_at: rfc3339(run.created_at_ms),
        events: format!("/runs/{}/events", run.id),
        replayed,
    }
}
