//! `GET /usage` and `GET /usage/ledger`.

mod export;
mod view;

use http::{Response, StatusCode};

use crate::clock::{now_ms, parse_rfc3339};
use crate::core::Core;
use crate::error::{ApiError, ApiResult};
use crate::http::body::Body;
use crate::http::reply::json;
use crate::http::route::Call;
use crate::reconcile::{Depth, reconcile};
use crate::snapshot::Tenant;
pub(crate) use export::{Export, NDJSON, export, ledger};
use view::UsageView;
pub(crate) use view::period;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) from_ms: u64,
    pub(crate) to_ms: u64,
    pub(crate) group: Group,
    pub(crate) depth: Depth,
}

/// By what billed runs are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// By model and version, as `byModel`.
    Model,
    /// The same as `byVersion`, for who asks so.
    Version,
    /// By the UTC day of acceptance, as `byDay`.
    Day,
}

impl Asked {
    pub(crate) fn read(parameters: &[(String, String)]) -> ApiResult<Self> {
        let mut asked = Self {
            from_ms: 0,
            to_ms: u64::MAX,
            group: Group::Model,
            depth: Depth::Newest,
        };
        for (name, text) in parameters {
            let time = || {
                parse_rfc3339(text).ok_or_else(|| {
                    ApiError::invalid(
                        name,
                        format!("{name} must be a time like 2026-12-01T00:00:00.000Z"),
                    )
                })
            };
            match (name.as_str(), text.as_str()) {
                ("from", _) => asked.from_ms = time()?,
                ("to", _) => asked.to_ms = time()?,
                ("groupBy", "model") => asked.group = Group::Model,
                ("groupBy", "version") => asked.group = Group::Version,
                ("groupBy", "day") => asked.group = Group::Day,
                ("groupBy", _) => {
                    return Err(ApiError::invalid(
                        "groupBy",
                        "groupBy must be model, version or day",
                    ));
                }
                _ => {}
            }
        }
        Ok(asked)
    }
}

pub(crate) async fn usage(call: &Call) -> ApiResult<Response<Body>> {
    let asked = Asked::read(&call.query(&["from", "to", "groupBy"])?)?;
    Ok(json(
        StatusCode::OK,
        &view(&call.core, &call.tenant, asked).await?,
    ))
}

/// A tenant's usage as clients see it.
pub(crate) async fn view(core: &Core, tenant: &Tenant, asked: Asked) -> ApiResult<UsageView> {
    let now = now_ms();
    let periods = tenant.limits.windows.iter().map(|w| w.period_s).collect();
    let (store, name) = (&*core.store, tenant.name.as_str());
    let report = store
        .usage(name, periods, asked.from_ms, asked.to_ms, now)
        .await?;
    let found = reconcile(store, name, asked.depth).await?;
    Ok(UsageView::new(tenant, report, found, asked.group, now))
}
