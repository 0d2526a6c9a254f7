//! Which version should serve.

use crate::VersionId;
use crate::decide::observation::{Stage, Verification, VersionSpec};
use crate::decide::state::State;

/// An object that is re-created within this time (`replace --force`, a forced sync) is the same version.
pub(super) const WITHDRAW_GRACE_MS: u64 = 10_000;

impl<'a> State<'a> {
    /// The version to work towards: the highest Production one above stable, else the highest Canary or Shadow one.
    pub(super) fn target(&self) -> Option<&'a VersionSpec> {
        let highest = |wanted: &dyn Fn(&VersionSpec) -> bool| {
            let specs = self.specs.iter().filter(|spec| self.may_be_target(spec));
            specs
                .filter(|spec| wanted(spec))
                .max_by_key(|spec| spec.id.version)
        };
        highest(&|spec| spec.stage == Stage::Production)
            .or_else(|| highest(&|spec| matches!(spec.stage, Stage::Canary | Stage::Shadow)))
    }

    fn may_be_target(&self, spec: &VersionSpec) -> bool {
        let refused = matches!(spec.verification, Verification::Refused(_));
        let rejected = self
            .head
            .rejection(&spec.id.digest, &spec.spec_hash)
            .is_some();
        !refused && !rejected && self.is_ahead(&spec.id)
    }

    /// Whether a version would replace stable: a higher one, or the same number with other content. When stable is leaving and
    /// there is nothing to return to, any other one.
    fn is_ahead(&self, id: &VersionId) -> bool {
        let Some(stable) = &self.head.stable else {
            return true;
        };
        let nowhere_back = self.head.rollback_to.is_none() && self.is_leaving(stable);
        id != stable && (id.version >= stable.version || nowhere_back)
    }

    /// Whether a person took a version back: its stage was lowered, or its object is gone for longer than a re-creation takes.
    pub(super) fn is_leaving(&self, id: &VersionId) -> bool {
        self.is_below(id, Stage::Production)
    }

    /// Whether a version's stage is below `least`, or its object is gone.
    pub(super) fn is_below(&self, id: &VersionId, least: Stage) -> bool {
        match self.spec(id) {
            Some(spec) => spec.stage < least,
            None => self.is_gone(id),
        }
    }

    fn is_gone(&self, id: &VersionId) -> bool {
        let gone = self.seen.withdrawn.iter().find(|gone| gone.id == *id);
        gone.is_some_and(|gone| gone.absent_ms >= WITHDRAW_GRACE_MS)
    }
}
