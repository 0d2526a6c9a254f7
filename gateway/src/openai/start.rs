//! From a request to its run, whether or not the client waits for it.

use std::sync::Arc;

use weir_run::{Run, RunId};

use crate::admit::RunRequest;
use crate::clock::now_ms;
use crate::core::{CANCELLED, Core};
use crate::directory::{Directory, Target};
use crate::error::ApiResult;
use crate::http::route::Call;
use crate::http::sse::Attendance;

/// Routes a request for `model`.
pub(super) fn route(call: &Call, model: &str) -> ApiResult<(Arc<Directory>, Target)> {
    let directory = call.core.directory.load_full();
    let target = directory.resolve(&call.tenant, model)?;
    Ok((directory, target))
}

/// Lets a request in. With `alone` its run goes on when nobody listens; otherwise it is cancelled when what is returned is dropped.
///
/// A client may leave while its run becomes durable: then this future is dropped, the admission goes on to its end, and the run is
/// cancelled like any other that nobody waits for. It is never left half way.
pub(super) async fn admit(
    call: &Call,
    (directory, target): (Arc<Directory>, Target),
    mut request: RunRequest,
    alone: bool,
) -> ApiResult<(Run, Leave)> {
    let (core, tenant) = (Arc::clone(&call.core), Arc::clone(&call.tenant));
    request.trace = crate::trace::context(&call.headers);
    let admission = async move {
        let admitted = core.admit(&directory, &tenant, &target, request).await?;
        let leave = Leave {
            run: (!alone).then_some(admitted.run.id),
            tenant: tenant.name.clone(),
            core,
        };
        Ok((admitted.run, leave))
    };
    call.core.to_its_end(admission).await
}

/// Cancels the run when the client leaves before its end.
pub(super) struct Leave {
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
