//! Which version takes a run: the one that was chosen, or a smaller one where that is allowed and the first has no room.

use std::sync::Arc;

use weir_protocol::error::ErrorCode;
use weir_run::RunId;
use weir_store::fault::point;

use super::plan::Plan;
use super::queue::Slot;
use super::request::RunRequest;
use super::trial::Trial;
use crate::core::Core;
use crate::directory::{Candidate, Directory};
use crate::error::{ApiError, ApiResult};
use crate::snapshot::Tenant;

impl Core {
    /// A plan and a place in the line of its version.
    pub(super) async fn place(
        self: &Arc<Self>,
        directory: &Directory,
        tenant: &Tenant,
        (id, first): (RunId, Candidate),
        request: &RunRequest,
    ) -> ApiResult<(Plan, Slot)> {
        let asked = directory.fallbacks(tenant, &first.version, request.allow_fallback);
        let chosen = self.chosen(directory, tenant, (id, first), request).await?;
        let (plan, refused) = match chosen {
            Ok(placed) => return Ok(placed),
            Err(no_room) => no_room,
        };
        let other = self.stand_in(directory, tenant, (id, asked), request).await;
        match (other, plan) {
            (Some(other), _) => Ok(other),
            (None, Some(plan)) => Err(self.first_refusal(tenant, &plan, refused).await?),
            (None, None) => Err(refused),
        }
    }

    /// The version that was chosen, or (the inner error) why another one may have room: its context or its pool takes no prompt of this
    /// size, or its line is full.
    async fn chosen(
        self: &Arc<Self>,
        directory: &Directory,
        tenant: &Tenant,
        (id, first): (RunId, Candidate),
        request: &RunRequest,
    ) -> ApiResult<Result<(Plan, Slot), (Option<Plan>, ApiError)>> {
        let trial = Trial {
            run: id,
            tenant,
            candidate: &first.clone(),
        };
        let plan = match self.plan((directory, tenant), first, request).await {
            Ok(plan) => plan,
            Err(refused) => {
                trial.refused(self, &refused);
                if refused.code() != ErrorCode::PromptTooLong {
                    return Err(refused);
                }
                return Ok(Err((None, refused)));
            }
        };
        point("admit.planned");
        Ok(
            match self.take_place(directory, tenant, (id, &plan), request) {
                Ok(slot) => Ok((plan, slot)),
                Err(refused) => {
                    trial.overloaded(self);
                    Err((Some(plan), refused))
                }
            },
        )
    }

    /// The first smaller model that takes the run: tokenized again with its own tokenizer, and billed at its own price. One that the
    /// prompt does not fit, or that has no place either, is passed over.
    async fn stand_in(
        self: &Arc<Self>,
        directory: &Directory,
        tenant: &Tenant,
        (id, candidates): (RunId, Vec<Candidate>),
        request: &RunRequest,
    ) -> Option<(Plan, Slot)> {
        for candidate in candidates {
            if !directory.judges_alike(tenant, &request.requested, &candidate.version.model) {
                // What was looked at before would have been looked at otherwise.
                continue;
            }
            let planned = self.plan((directory, tenant), candidate, request).await;
            let Ok(plan) = planned else {
                continue;
            };
            if let Ok(slot) = self.take_place(directory, tenant, (id, &plan), request) {
                return Some((plan, slot));
            }
        }
        None
    }
}
