//! Admissions that a client cannot break off half way.

use weir_protocol::error::ErrorCode;

use crate::core::Core;
use crate::error::{ApiError, ApiResult};

impl Core {
    /// Carries work out to its end, also when whoever asked for it is dropped meanwhile: a client that leaves between the commit of its run and the
    /// run's place in the queue would leave a run that nobody ever starts. What the work returns is dropped then.
    pub(crate) async fn to_its_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = ApiResult<T>> + Send + 'static,
    ) -> ApiResult<T> {
        match self.tasks.spawn(work).await {
            Ok(outcome) => outcome,
            // The process ends: nobody may take that for an answer.
            Err(error) if error.is_cancelled() => std::future::pending().await,
            Err(error) => {
                tracing::error!(%error, "an admission broke off");
                Err(ApiError::new(
                    ErrorCode::Internal,
                    "the admission of the run broke off; ask for the run by its request key",
                ))
            }
        }
    }
}
