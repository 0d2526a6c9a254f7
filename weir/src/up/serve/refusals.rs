//! Versions that their workers refused.

use super::Serving;
use crate::up::problem::Problem;
use crate::up::supervisor::WorkerState;
use crate::up::workers::{Worker, plan_digest};

impl Serving {
    /// Which versions their workers refused: for as long as the plan, the object and the files are as they were then.
    pub(super) fn note_refusals(&mut self, problems: &mut Vec<Problem>) {
        let mut again = Ok(());
        let now = |version: &str| {
            let verified = self.verdicts.get(version)?.as_ref().ok()?;
            let basis = self.verifier.basis(version)?.to_owned();
            Some((plan_digest(verified)?, basis))
        };
        let versions = &self.catalog.versions;
        self.refused.retain(|version, then| {
            // What is not verified now cannot be tried again: the refusal stands.
            let stands = now(version).is_none_or(|now| now == *then);
            if !stands && let Err(error) = self.workers.forget_refused(version) {
                again = Err(error);
            }
            stands && versions.contains_key(version)
        });
        let refusal = |worker: &Worker| match worker.state() {
            WorkerState::Refused { plan, .. } => Some((worker.version.clone(), plan)),
            _ => None,
        };
        let mut refusals: Vec<_> = self
            .workers
            .iter()
            .filter_map(|(_, worker)| refusal(worker))
            .collect();
        refusals.extend(self.workers.refused_adapters());
        for (version, plan) in refusals {
            match now(&version) {
                // It refused what it was told before.
                Some((planned, _)) if planned != plan => {
                    if let Err(error) = self.workers.forget_refused(&version) {
                        again = Err(error);
                    }
                }
                known => {
                    let known = known.unwrap_or((plan, String::new()));
                    self.refused.entry(version).or_insert(known);
                }
            }
        }
        if let Err(error) = again {
            problems.push(self.cannot_write(&error));
        }
    }

    pub(super) fn cannot_write(&self, error: &std::io::Error) -> Problem {
        Problem::in_file(
            &self.dir,
            format!(
                "cannot tell the workers which versions they have: {error}; make room in --data, or make it writable"
            ),
        )
    }
}
