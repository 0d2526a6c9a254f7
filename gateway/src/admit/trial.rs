//! What admission tells the evidence: who was assigned, whom the version itself refused, who found no place.

use tokio::time::Instant;
use weir_protocol::error::ErrorCode;
use weir_run::{DecisionReason, RunId};

use super::request::RunRequest;
use crate::core::Core;
use crate::directory::Candidate;
use crate::error::ApiError;
use crate::evidence::Assigned;
use crate::snapshot::Tenant;

/// A run that the coin gave to a version, if the coin alone did.
#[derive(Clone, Copy)]
pub(super) struct Trial<'a> {
    pub(super) run: RunId,
    pub(super) tenant: &'a Tenant,
    pub(super) candidate: &'a Candidate,
}

impl Trial<'_> {
    fn count(&self, core: &Core, act: impl FnOnce(&Assigned<'_>)) {
        let Some(table) = &self.candidate.trial else {
            return;
        };
        let version = &self.candidate.version;
        let in_force = core.tables.get(&version.model);
        act(&Assigned {
            model: &version.model,
            digest: &version.digest,
            tenant: &self.tenant.name,
            table,
            since: in_force
                .filter(|now| now.table.order == table.order)
                .map(|now| now.since),
        });
    }

    /// It was accepted: it is evidence, and what stable answers to it may be compared.
    pub(super) fn accepted(&self, core: &Core, request: &RunRequest) {
        self.count(core, |assigned| {
            core.evidence.assigned(self.run, assigned, Instant::now());
            if self.candidate.reason == DecisionReason::Stable {
                let version = &self.candidate.version;
                core.shadow
                    .accepted(self.run, self.tenant, version, request);
            }
        });
    }

    /// It found no place, or not in time.
    pub(super) fn overloaded(&self, core: &Core) {
        self.count(core, |assigned| core.evidence.overloaded(assigned));
    }

    /// It was refused before it had a place. Template, tokenizer and context belong to the version; a tenant's own cap does not.
    pub(super) fn refused(&self, core: &Core, error: &ApiError) {
        let context = self.candidate.version.context_tokens;
        let is_own_cap = self
            .tenant
            .max_prompt_tokens
            .is_some_and(|cap| cap < context.saturating_sub(1));
        let is_versions_fault = match error.code() {
            ErrorCode::TemplateError | ErrorCode::SchemaError => true,
            ErrorCode::PromptTooLong => !is_own_cap,
            _ => false,
        };
        if is_versions_fault {
            self.count(core, |assigned| {
                core.evidence
                    .failed_at_once(self.run, assigned, Instant::now());
            });
        }
    }
}
