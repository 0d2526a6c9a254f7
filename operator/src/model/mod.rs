//! The controller of model versions: all versions of one model together, since traffic moves between them.
//!
//! A look is: see (caches, gateways) → verify → decide (`weir_rollout`) → write the record → carry out what the head asks for → status.
//! Nothing in memory decides: whatever ends in between is found again by looking.

pub mod build;
mod carry;
pub mod child;
pub mod claim;
pub mod forms;
pub mod memory;
pub mod project;
mod see;
pub mod status;
mod tell;
pub mod template;
pub mod view;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use weir_manifest::TrustPolicySpec;
use weir_rollout::decide::{Decision, Effect, Note, VersionSpec};
use weir_rollout::record::rebuild;
use weir_rollout::{Input, Record, decide};

use self::build::Shape;
use self::forms::Forms;
use self::memory::{Leaving, Memory};
pub(crate) use self::view::VersionSeen;
use self::view::View;
use crate::apply::{Applier, ApplyError};
use crate::board::Board;
use crate::controllers::jitter;
use crate::events::Events;
use crate::fetches::Fetches;
use crate::figures::{Figures, begins_rollback};
use crate::gateways::{Gateways, TICK};
use crate::leader::{Leadership, Role};
use crate::log::{self, AppendError};
use crate::queue::Outcome;
use crate::statuses::Statuses;
use crate::verify::{Verdict, Verifier};
use crate::world::World;

/// Decisions in one look that no healthy rollout needs.
const MAX_ROUNDS: u32 = 32;

/// How the attempt of a version ends that runs proved worse.
const BREACHED: &str = "GuardrailBreached";

/// How soon a field that somebody else keeps changing is looked at again.
const CONTESTED_AGAIN: std::time::Duration = std::time::Duration::from_secs(10);

/// Why a look failed.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// A record.
    #[error("cannot write down what was decided for model {model:?}")]
    Append {
        /// The model.
        model: String,
        /// Why.
        #[source]
        source: AppendError,
    },
    /// A child or a status.
    #[error("cannot carry out what was decided for model {model:?}")]
    Apply {
        /// The model.
        model: String,
        /// Why.
        #[source]
        source: ApplyError,
    },
}

/// The controller.
pub struct Models {
    /// What is watched.
    pub world: World,
    /// What gateways say.
    pub gateways: Gateways,
    /// Writes children.
    pub applier: Applier,
    /// Whether this operator acts.
    pub leadership: Leadership,
    /// Checks signatures.
    pub verifier: Arc<Verifier>,
    /// Tells people.
    pub events: Events,
    /// What workers say of files that they fetch.
    pub fetches: Fetches,
    /// What all children share.
    pub shape: Shape,
    /// How many workers each model needs, and what each pool serves.
    pub board: Board,
    /// From which coins are salted.
    pub entropy: [u8; 32],
    /// What is remembered of each model.
    pub memories: parking_lot::Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<Memory>>>>,
    /// What was told of each version.
    pub statuses: Statuses,
    /// What metrics say.
    pub figures: Figures,
}

/// All that one look is about.
struct Look<'a> {
    model: &'a str,
    view: View,
    verdicts: BTreeMap<String, Verdict>,
    specs: Vec<VersionSpec>,
    trust: TrustPolicySpec,
    /// The pool that serves the model.
    pool: String,
}

impl Models {
    /// Looks at a model.
    ///
    /// # Errors
    /// What could not be written; what was in force stays so.
    pub async fn look(&self, model: &str) -> Result<Outcome, LookError> {
        let role = self.leadership.role(Instant::now());
        if role == Role::Following {
            return Ok(Outcome::Quiet);
        }
        let memory = Arc::clone(self.memories.lock().entry(model.to_owned()).or_default());
        let mut memory = memory.lock().await;
        let mut look = self.see(model, &mut memory);
        if look.view.versions.is_empty()
            && look.view.children.is_empty()
            && look.view.log.is_empty()
        {
            self.gateways.watch(model, false);
            self.memories.lock().remove(model);
            self.figures.forget(model);
            let versions = self.world.versions.state();
            let exists = |name: &str| {
                versions
                    .iter()
                    .any(|version| version.metadata.name.as_deref() == Some(name))
            };
            self.verifier.retain(exists);
            return Ok(Outcome::Gone);
        }
        self.note(&look, &mut memory).await;
        self.time_rollback(&look, &mut memory);
        if role == Role::Lapsed {
            self.judge_without_a_record(&look, &mut memory);
            return Ok(Outcome::Again(TICK));
        }
        let mut decision = match self.decide(&mut look, &mut memory).await {
            Ok(decision) => decision,
            Err(error) => return self.settle(&look, &mut memory, error),
        };
        self.be_patient(model, &mut decision);
        let head = look.view.log.last();
        let (stamp, is_moving) = (
            head.map(|head| head.stamp),
            head.is_some_and(|head| head.attempt.is_some()),
        );
        self.board.serves(model, &look.pool, head);
        self.figures.show(model, &decision.status);
        self.gateways.watch(model, is_moving);
        if is_moving && !memory.may_carry_out(stamp, Instant::now()) {
            return Ok(Outcome::Again(TICK));
        }
        let due = match self.carry_out(&mut look, &mut memory, decision).await {
            Ok(due) => due,
            Err(source) => {
                let error = apply_error(model, source);
                return self.settle(&look, &mut memory, error);
            }
        };
        memory.carried_out();
        // What gateways find in workers that hold several versions comes with no event.
        let is_settled = look.view.forms.values().all(Forms::is_settled);
        let is_waiting = is_moving || !is_settled || memory.is_in_grace(Instant::now());
        Ok(match (is_waiting, due) {
            (true, _) => Outcome::Again(TICK),
            (false, Some(due)) => Outcome::Again(due),
            (false, None) => Outcome::Quiet,
        })
    }

    /// What follows a decision: what the head asks for, children as they should be, and what is told; after how long there is more to tell.
    async fn carry_out(
        &self,
        look: &mut Look<'_>,
        memory: &mut Memory,
        decision: Decision,
    ) -> Result<Option<std::time::Duration>, ApplyError> {
        self.complain(look, memory).await;
        self.pass(look, memory).await?;
        for note in std::mem::take(&mut memory.news) {
            self.events.on_note(&look.view.versions, &note).await;
        }
        self.carry_out_effects(look, memory, decision.effects)
            .await?;
        let contested = self.shape(look, memory).await?;
        let due = self.tell(look, &decision.status, &contested).await?;
        // What was left to its other writer for now is put right after a while, whether or not anything happens.
        let again = (!contested.is_empty()).then_some(CONTESTED_AGAIN);
        Ok(due.into_iter().chain(again).min())
    }

    /// What to do about a failure: another operator's record is read, a breach does not wait for an API server.
    fn settle(
        &self,
        look: &Look<'_>,
        memory: &mut Memory,
        error: LookError,
    ) -> Result<Outcome, LookError> {
        match &error {
            // Another one acts, or will: what is left undone is found by it.
            LookError::Append {
                source: AppendError::Taken,
                ..
            }
            | LookError::Apply {
                source: ApplyError::NotLeading,
                ..
            } => Ok(Outcome::Again(TICK)),
            LookError::Apply { source, .. } if source.is_race() => Ok(Outcome::Again(TICK)),
            LookError::Append { .. } => {
                self.push_emergency(look, memory);
                tracing::warn!(
                    model = look.model,
                    error = &error as &dyn std::error::Error,
                    "the record waits"
                );
                Ok(Outcome::Again(TICK))
            }
            LookError::Apply { .. } => {
                let head = look.view.log.last();
                let is_moving = head.is_some_and(|head| head.attempt.is_some());
                if !is_moving {
                    return Err(error);
                }
                // What fails is tried later and later; whoever is on trial is judged all the same.
                memory.failed(head.map(|head| head.stamp), jitter(), Instant::now());
                tracing::warn!(
                    model = look.model,
                    error = &error as &dyn std::error::Error,
                    "a look failed; what it was to do waits, and the version on trial is judged meanwhile"
                );
                Ok(Outcome::Hampered(TICK))
            }
        }
    }

    fn decision(&self, look: &Look<'_>, memory: &Memory) -> Decision {
        let observation = self.observe(look, memory);
        let now_ms = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0);
        decide(&Input {
            log: &look.view.log,
            specs: &look.specs,
            observation: &observation,
            now_ms,
        })
    }

    /// Decides until nothing is left to decide now; what the last head asks for. Its table is on its way when this returns: nothing that
    /// may take long or fail comes before it.
    async fn decide(
        &self,
        look: &mut Look<'_>,
        memory: &mut Memory,
    ) -> Result<Decision, LookError> {
        let witnesses = look.view.witnesses(look.model, &self.world);
        let head = look.view.log.last().cloned().unwrap_or_else(Record::empty);
        if witnesses.contradict(&head) {
            let now_ms = u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0);
            let record = rebuild(&witnesses, now_ms);
            self.write(look, memory, &record, None).await?;
            let message =
                "the newest record was gone; it was made anew from what gateways and children know";
            self.events
                .on_versions(&look.view.versions, "RecordRebuilt", message, false)
                .await;
        }
        for _ in 0..MAX_ROUNDS {
            let decision = self.decision(look, memory);
            let Some(record) = &decision.record else {
                self.push(look.model, &decision);
                return Ok(decision);
            };
            let note = decision.note.clone();
            self.write(look, memory, record, note.as_ref()).await?;
            if let Some(note) = &note {
                tracing::info!(
                    model = look.model,
                    version = note.version,
                    reason = note.reason,
                    message = note.message,
                    "decided"
                );
            }
            // People are told when gateways were.
            memory.news.extend(note);
        }
        tracing::error!(
            model = look.model,
            "decisions do not come to rest; this is a fault in Weir"
        );
        Ok(Decision::default())
    }

    /// A version whose files come is not stuck, however long they take.
    fn be_patient(&self, model: &str, decision: &mut Decision) {
        for version in &mut decision.status {
            let progress = self.fetches.of(model, &version.id);
            version.is_stalled &= !progress.is_some_and(|progress| progress.is_under_way());
        }
    }

    fn push(&self, model: &str, decision: &Decision) {
        for effect in &decision.effects {
            if let Effect::Push { table, gateways } = effect {
                self.gateways.push(model, table, gateways);
            }
        }
    }

    async fn write(
        &self,
        look: &mut Look<'_>,
        memory: &mut Memory,
        record: &Record,
        note: Option<&Note>,
    ) -> Result<(), LookError> {
        let failed = |source| LookError::Append {
            model: look.model.to_owned(),
            source,
        };
        if self.leadership.role(Instant::now()) != Role::Leading {
            return Err(failed(AppendError::Taken));
        }
        let api = self.applier.api::<ControllerRevision>();
        log::append(&api, look.model, record)
            .await
            .map_err(failed)?;
        let before = look.view.log.last();
        self.figures.wrote(look.model, before, record, note);
        if begins_rollback(before, record) {
            memory.leaving = look.leaving(record);
        }
        memory.wrote(record);
        memory.emergency = None;
        look.view.log.push(record.clone());
        Ok(())
    }
}

impl Look<'_> {
    /// A version that is taken back for what gateways counted. What did it may have been there since each had been asked the last time
    /// but one.
    fn leaving(&self, record: &Record) -> Option<Leaving> {
        let ending = record.attempt.as_ref()?.ending.as_ref()?;
        let order = record.routing.as_ref()?.order;
        let routed = self.view.log.last()?.routing.as_ref()?.order;
        let gateways = &self.view.gateways;
        let asked = gateways.iter().filter_map(|heard| heard.asked[0]);
        let since = asked.min()?;
        let answers = gateways
            .iter()
            .map(|heard| (heard.name.clone(), heard.answers));
        (ending.reason == BREACHED && order != routed).then(|| Leaving {
            order,
            since,
            answers: answers.collect(),
        })
    }
}

fn apply_error(model: &str, source: ApplyError) -> LookError {
    LookError::Apply {
        model: model.to_owned(),
        source,
    }
}
