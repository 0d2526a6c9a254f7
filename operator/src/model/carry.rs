//! What a head asks for, carried out. Every effect is a difference between what should be and what was seen, so that doing it again does no
//! harm and not doing it is noticed at the next look.

use std::collections::BTreeMap;
use std::time::Instant;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{DeleteParams, ObjectMeta, PostParams, Preconditions};
use kube::{Api, ResourceExt as _};
use weir_api::{LABEL_MANAGED_BY, LABEL_POOL, MANAGER};
use weir_rollout::decide::Effect;
use weir_rollout::routing::Table;
use weir_rollout::{Phase, Record, VersionId};

use super::build::{Children, Signed, children};
use super::forms::{Forms, Passage};
use super::memory::Memory;
use super::see::is_of;
use super::view::role;
use super::{Look, Models};
use crate::apply::{ApplyError, Order};
use crate::log;
use crate::names;

/// The lease of who exchanges replicas in a pool.
pub(super) fn lease_name(pool: &str) -> String {
    format!("weir-exchange-{pool}")
}

impl Models {
    pub(super) async fn carry_out_effects(
        &self,
        look: &mut Look<'_>,
        memory: &mut Memory,
        effects: Vec<Effect>,
    ) -> Result<(), ApplyError> {
        let Some(head) = look.view.log.last().cloned() else {
            return Ok(());
        };
        for effect in effects {
            match effect {
                // The verifier is asked at each look, and a table goes out as soon as it is decided.
                Effect::Verify(_) | Effect::Push { .. } => {}
                Effect::Scale {
                    id,
                    replicas,
                    stamp,
                } => {
                    let order = Order {
                        replicas,
                        stamp,
                        role: role(&head, &id),
                    };
                    self.scale(look, memory, &id, order).await?;
                }
                Effect::Sweep(id) if keeps_plan(&head, &id, look.view.forms.get(&id)) => {}
                Effect::Sweep(id) => {
                    self.applier
                        .sweep(&names::child(look.model, &id), head.stamp)
                        .await?;
                    // What caches still show of it is not to be put right.
                    look.view.children.remove(&id);
                }
                Effect::AcquireLease(attempt) => self.acquire(look, &attempt).await?,
                Effect::ReleaseLease => self.release(look).await?,
            }
        }
        self.prune(look).await;
        Ok(())
    }

    async fn scale(
        &self,
        look: &Look<'_>,
        memory: &mut Memory,
        id: &VersionId,
        order: Order,
    ) -> Result<(), ApplyError> {
        let name = names::child(look.model, id);
        let forms = look.view.forms.get(id);
        let is_there = |forms: &Forms| {
            let form = if forms.is_shared {
                &forms.seats
            } else {
                &forms.own
            };
            form.is_some()
        };
        let mut is_shared = forms.is_some_and(|forms| forms.is_shared);
        if !forms.is_some_and(is_there) {
            // Only what is verified is made; what exists may be made smaller whatever became of its object.
            let wanted = self.wanted_children(look, id);
            let wanted = wanted.ok_or_else(|| ApplyError::Unknown(name.clone()))?;
            is_shared = wanted.workers.is_none();
            self.applier
                .shape(&self.world.children, &mut memory.writes, &wanted, true)
                .await?;
        }
        let what = format!("scale {name} {} {}", order.replicas, order.stamp);
        if !memory.writes.may(&what, Instant::now()) {
            return Ok(());
        }
        self.order(&name, is_shared, order).await
    }

    async fn order(&self, name: &str, is_shared: bool, order: Order) -> Result<(), ApplyError> {
        if is_shared {
            self.applier.seat(name, order).await
        } else {
            self.applier.scale(name, order).await
        }
    }

    /// Brings versions to the kind of workers that they should have: the new kind first, then the old one goes.
    pub(super) async fn pass(
        &self,
        look: &Look<'_>,
        memory: &mut Memory,
    ) -> Result<(), ApplyError> {
        for (id, forms) in &look.view.forms {
            let (passage, name) = (forms.passage(), names::child(look.model, id));
            let Some(other) = forms.other().filter(|_| passage != Passage::None) else {
                continue;
            };
            let what = format!("{passage:?} {name}");
            if !memory.writes.may(&what, Instant::now()) {
                continue;
            }
            let stamp = forms.stamp();
            match passage {
                Passage::None => {}
                Passage::Make => {
                    let Some(wanted) = self.wanted_children(look, id) else {
                        continue;
                    };
                    let order = Order {
                        replicas: other.seen.desired,
                        stamp,
                        role: other.role,
                    };
                    self.applier
                        .shape(&self.world.children, &mut memory.writes, &wanted, true)
                        .await?;
                    self.order(&name, forms.is_shared, order).await?;
                }
                Passage::Leave => {
                    let order = Order {
                        replicas: 0,
                        stamp,
                        role: names::LEFT,
                    };
                    self.order(&name, !forms.is_shared, order).await?;
                }
                Passage::Remove if forms.is_shared => {
                    self.applier.sweep_workers(&name, stamp).await?;
                }
                Passage::Remove => self.applier.unseat(&name, stamp).await?,
            }
            tracing::info!(
                model = look.model,
                version = id.version,
                ?passage,
                "workers of another kind"
            );
        }
        Ok(())
    }

    /// What a version's children should be, where its object is there, signed, and its pool can serve it.
    fn wanted_children(&self, look: &Look<'_>, id: &VersionId) -> Option<Children> {
        let seen = look.view.versions.iter().find(|seen| is_of(seen, id))?;
        let valid = seen.valid.as_ref().ok()?;
        let verified = look.verdicts.get(&valid.name)?.as_ref().ok()?;
        let pool = look.view.pool_of(valid, look.view.forms.get(id))?;
        let signed = Signed {
            version: valid,
            id,
            claim: &verified.claim,
            trust: &look.trust,
        };
        children(&self.shape, &signed, pool).ok()
    }

    /// Puts right what others changed in children that exist; by object, what somebody keeps changing.
    pub(super) async fn shape(
        &self,
        look: &Look<'_>,
        memory: &mut Memory,
    ) -> Result<BTreeMap<String, Vec<String>>, ApplyError> {
        let mut contested = BTreeMap::new();
        for id in look.view.children.keys() {
            let Some(wanted) = self.wanted_children(look, id) else {
                continue;
            };
            let places = self
                .applier
                .shape(&self.world.children, &mut memory.writes, &wanted, false)
                .await?;
            let seen = look.view.versions.iter().find(|seen| is_of(seen, id));
            if let Some(seen) = seen.filter(|_| !places.is_empty()) {
                contested.insert(seen.object.name_any(), places);
            }
        }
        Ok(contested)
    }

    async fn acquire(&self, look: &Look<'_>, attempt: &str) -> Result<(), ApplyError> {
        self.applier.fence()?;
        let name = lease_name(&look.pool);
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some(BTreeMap::from([
                    (LABEL_MANAGED_BY.to_owned(), MANAGER.to_owned()),
                    (LABEL_POOL.to_owned(), look.pool.clone()),
                ])),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(format!("{attempt} {}", look.model)),
                acquire_time: Some(MicroTime(jiff::Timestamp::now())),
                ..LeaseSpec::default()
            }),
        };
        match self
            .applier
            .api::<Lease>()
            .create(&PostParams::default(), &lease)
            .await
        {
            Ok(_) => Ok(()),
            // Another model was first; the watch brings it in.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(source) => Err(ApplyError::Write {
                what: "Lease",
                name,
                source: Box::new(source),
            }),
        }
    }

    async fn release(&self, look: &Look<'_>) -> Result<(), ApplyError> {
        self.applier.fence()?;
        let name = lease_name(&look.pool);
        let found = self.world.leases.state();
        let Some(lease) = found.iter().find(|lease| lease.name_any() == name) else {
            return Ok(());
        };
        let fenced = DeleteParams {
            preconditions: Some(Preconditions {
                uid: lease.uid(),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        match self.applier.api::<Lease>().delete(&name, &fenced).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(source) => Err(ApplyError::Write {
                what: "Lease",
                name,
                source: Box::new(source),
            }),
        }
    }

    /// Old records go. One that cannot be deleted goes another time.
    async fn prune(&self, look: &Look<'_>) {
        let api: Api<_> = self.applier.api();
        for record in log::surplus(&look.view.log) {
            let name = weir_rollout::record::name(look.model, record.stamp);
            let found = self.world.revisions.state();
            let Some(revision) = found.iter().find(|revision| revision.name_any() == name) else {
                continue;
            };
            if let Err(error) = log::delete(&api, revision).await {
                tracing::debug!(
                    name,
                    error = &error as &dyn std::error::Error,
                    "an old record stays for now"
                );
            }
        }
    }

    /// While it is unknown who leads, the API server being away, only one thing is done: new runs leave a version that breached.
    pub(super) fn judge_without_a_record(&self, look: &Look<'_>, memory: &mut Memory) {
        if look
            .view
            .log
            .last()
            .is_none_or(|head| head.attempt.is_none())
        {
            return;
        }
        self.push_emergency(look, memory);
    }

    /// Sends everything to the recorded rollback version if that is what is decided and cannot be written down.
    pub(super) fn push_emergency(&self, look: &Look<'_>, memory: &mut Memory) {
        if memory.emergency.is_none() {
            let decision = self.decision(look, memory);
            let head = look.view.log.last();
            memory.emergency = head
                .zip(decision.record)
                .and_then(|(head, next)| emergency(head, &next));
        }
        let Some(table) = &memory.emergency else {
            return;
        };
        let behind = look.view.gateways.iter().filter(|gateway| {
            let report = gateway
                .report
                .as_ref()
                .and_then(|(report, _)| report.models.get(look.model));
            let order = report
                .and_then(|report| report.table.as_ref())
                .map(|table| table.order);
            order < Some(table.order)
        });
        let behind: Vec<String> = behind.map(|gateway| gateway.name.clone()).collect();
        if !behind.is_empty() {
            self.gateways.push(look.model, table, &behind);
            tracing::warn!(
                model = look.model,
                gateways = behind.len(),
                "new runs return to the rollback version; the record follows when it can be written"
            );
        }
    }
}

/// Whether a version without workers keeps its plan. What serves and sleeps: gateways make prompts from it for the run that wakes it. What is kept
/// for a rollback in a shared pool: its workers hold what a record names and has no plan, since somebody may have deleted that.
fn keeps_plan(head: &Record, id: &VersionId, forms: Option<&Forms>) -> bool {
    let is_kept = head.rollback_to.as_ref() == Some(id);
    head.stable.as_ref() == Some(id) || (is_kept && forms.is_some_and(|forms| forms.is_shared))
}

/// The table that may be published without a record: only when the record that cannot be written begins a rollback.
fn emergency(head: &Record, next: &Record) -> Option<Table> {
    let begins = next.phase() == Phase::RollingBack && head.phase() != Phase::RollingBack;
    head.routing.as_ref().filter(|_| begins)?.emergency()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_serves_and_what_a_shared_pool_keeps_for_a_rollback_keep_their_plans_without_workers() {
        let id = |version| VersionId::new(version, format!("sha256:{version}"));
        let head = Record {
            stable: Some(id(2)),
            rollback_to: Some(id(1)),
            ..Record::empty()
        };
        let forms = |is_shared| Forms {
            is_shared,
            ..Forms::default()
        };
        assert!(keeps_plan(&head, &id(2), None));
        assert!(keeps_plan(&head, &id(1), Some(&forms(true))));
        assert!(!keeps_plan(&head, &id(1), Some(&forms(false))));
        assert!(!keeps_plan(&head, &id(3), Some(&forms(true))));
    }
}
