//! `GET /v1/models`, and what is not there.

use http::{Response, StatusCode};
use serde::Serialize;
use weir_protocol::error::ErrorCode;

use crate::directory::{Directory, permission};
use crate::error::{ApiError, ApiResult};
use crate::http::body::Body;
use crate::http::reply::json;
use crate::http::route::{Call, percent_decode};
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
    /// What a further name stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    alias_of: Option<String>,
    /// The stable version.
    version: u32,
    /// What other servers call the context.
    max_model_len: Option<u32>,
}

impl Model {
    /// Under a further name, which may stand for one version.
    fn under(self, alias: &str, target: &str) -> Self {
        let pinned = target
            .rsplit_once('@')
            .and_then(|(_, version)| version.parse().ok());
        Self {
            id: alias.to_owned(),
            alias_of: Some(target.to_owned()),
            version: pinned.unwrap_or(self.version),
            ..self
        }
    }
}

fn present(model: &ModelRoute) -> Model {
    let stable = model.by_digest(&model.table.stable.digest);
    Model {
        id: model.name.clone(),
        object: "model",
        created: 0,
        owned_by: "weir",
        alias_of: None,
        version: model.table.stable.version,
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
    let further = directory.aliases.keys().filter_map(|alias| {
        let target = directory.alias(alias)?;
        let model = target.split('@').next()?;
        permission(&call.tenant, model).ok()?;
        Some(present(directory.models.get(model)?).under(alias, target))
    });
    data.extend(further);
    data.sort_by(|a, b| a.id.cmp(&b.id));
    let object = "list";
    Ok(json(StatusCode::OK, &List { object, data }))
}

/// `name` or `name@version`, as requests name models.
pub(crate) fn model(call: &Call, name: &str) -> ApiResult<Response<Body>> {
    call.query(&[])?;
    let name = percent_decode(name);
    let directory: &Directory = &call.core.directory.load();
    let version = directory.resolve(&call.tenant, &name)?.version;
    let model = directory
        .models
        .get(&version.model)
        .ok_or_else(|| ApiError::new(ErrorCode::ModelNotFound, "the model has just gone"))?;
    let mut shown = present(model);
    if name.contains('@') {
        shown.version = version.version;
        shown.max_model_len = Some(version.context_tokens);
    }
    if let Some(target) = directory.alias(&name) {
        shown = shown.under(&name, target);
    }
    shown.id = name;
    Ok(json(StatusCode::OK, &shown))
}

/// A part of `OpenAI`'s API that is not here, whatever the method.
pub(crate) fn unsupported(path: &str) -> ApiError {
    ApiError::new(
        ErrorCode::UnsupportedEndpoint,
        format!(
            "/v1/{path} is not served here: the models of this gateway generate text; there are /v1/chat/completions, /v1/completions, \
             /v1/responses, /v1/files, /v1/batches and /v1/models"
        ),
    )
}
