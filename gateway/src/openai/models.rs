//! `GET /v1/models`, and what is not there.

use http::{Response, StatusCode};
use serde::Serialize;
use weir_protocol::error::ErrorCode;

use crate::directory::{Directory, permission};
use crate::error::{ApiError, ApiResult};
use crate::http::body::Body;
use crate::http::reply::json;
use crate::http::route::Call;
use crate::snapshot::ModelRoute;

#[derive(Serialize)]
struct List {
    object: &'static str,
    data: Vec<Model>,
}

#[derive(Serialize)]
struct Model {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// The stable version.
    version: u32,
    /// What other servers call the context.
    max_model_len: Option<u32>,
}

fn present(model: &ModelRoute) -> Model {
    let stable = model.versions.iter().find(|v| v.version == model.stable);
    Model {
        id: model.name.clone(),
        object: "model",
        created: 0,
        owned_by: "weir",
        version: model.stable,
        max_model_len: stable.map(|version| version.context_tokens),
    }
}

pub(crate) fn models(call: &Call) -> ApiResult<Response<Body>> {
    call.query(&["limit", "after", "order"])?;
    let directory = call.core.directory.load();
    let mut data: Vec<Model> = call
        .tenant
        .models
        .iter()
        .filter_map(|permission| directory.models.get(&permission.name))
        .map(present)
        .collect();
    data.sort_by(|a, b| a.id.cmp(&b.id));
    let object = "list";
    Ok(json(StatusCode::OK, &List { object, data }))
}

pub(crate) fn model(call: &Call, name: &str) -> ApiResult<Response<Body>> {
    call.query(&[])?;
    let directory: &Directory = &call.core.directory.load();
    permission(&call.tenant, name)?;
    let model = directory.models.get(name).ok_or_else(|| {
        ApiError::new(
            ErrorCode::ModelNotFound,
            format!("model {name:?} is not served now"),
        )
        .param("model")
    })?;
    Ok(json(StatusCode::OK, &present(model)))
}

pub(crate) fn embeddings() -> ApiError {
    ApiError::new(
        ErrorCode::UnsupportedParameter,
        "embeddings are not served here; the models of this gateway generate text",
    )
}
