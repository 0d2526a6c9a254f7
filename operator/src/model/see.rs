//! One look: what is seen of a model, put into the terms that decisions are made in.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::ResourceExt as _;
use weir_api::model_version::reasons;
use weir_api::{ModelVersion, ValidModelVersion};
use weir_manifest::TrustPolicySpec;
use weir_rollout::decide::{Lease, Observation, Verification, VersionSpec};
use weir_rollout::statistics::ShadowCounts;
use weir_rollout::{VersionId, version_spec};

use super::build::unshared;
use super::memory::{Memory, unhandled};
use super::view::{VersionSeen, View};
use super::{Look, Models, carry, claim, template};
use crate::gateways::Heard;
use crate::names;
use crate::pool::seats;
use crate::verify::Verdict;
use crate::world::TRUST;

impl Models {
    pub(super) fn see<'a>(&self, model: &'a str, memory: &mut Memory) -> Look<'a> {
        let mut view = View::of(&self.world, self.gateways.all(), model);
        view.log = memory.log(std::mem::take(&mut view.log));
        let trust = self.trust();
        let mut verdicts = BTreeMap::new();
        for seen in &view.versions {
            if let Ok(valid) = &seen.valid
                && let Some(verdict) = self.verifier.verdict(valid, &trust)
            {
                verdicts.insert(valid.name.clone(), verdict);
            }
        }
        let mut specs: Vec<VersionSpec> = Vec::new();
        for seen in &view.versions {
            let spec = seen
                .valid
                .as_ref()
                .ok()
                .map(|valid| spec(&view, seen, valid, verdicts.get(&valid.name)));
            let is_second = |spec: &VersionSpec| specs.iter().any(|other| other.id == spec.id);
            specs.extend(spec.filter(|spec| !is_second(spec)));
        }
        let newest = view
            .versions
            .iter()
            .find(|seen| view.pools.contains_key(&seen.object.spec.pool));
        let pool = newest.map(|seen| seen.object.spec.pool.clone());
        let pool = pool
            .or_else(|| view.child_pools.values().next().cloned())
            .unwrap_or_default();
        Look {
            model,
            view,
            verdicts,
            specs,
            trust,
            pool,
        }
    }

    /// The trust policy. One that is wrong trusts nobody new; what serves goes on.
    fn trust(&self) -> TrustPolicySpec {
        let found = self.world.trust.state();
        let data = found
            .iter()
            .find(|map| map.name_any() == TRUST)
            .and_then(|map| map.data.clone());
        TrustPolicySpec::from_config_map(&data.unwrap_or_default()).unwrap_or_default()
    }

    pub(super) async fn note(&self, look: &Look<'_>, memory: &mut Memory) {
        let now = Instant::now();
        memory.note(&look.view.children, now);
        let head = look.view.log.last();
        if let Some(head) = head {
            memory.begin(head);
        }
        let mut matters: Vec<VersionId> = Vec::new();
        if let Some(head) = head {
            matters.extend(head.stable.clone());
            matters.extend(head.rollback_to.clone());
            matters.extend(head.attempt.as_ref().map(|attempt| attempt.target.clone()));
        }
        let exists = |id: &VersionId| look.view.versions.iter().any(|seen| is_of(seen, id));
        let is_known = |id: &VersionId| exists(id) || memory.is_absent(id);
        if matters.iter().all(is_known) {
            memory.note_absence(matters, exists, now);
        } else if let Ok(live) = self
            .applier
            .api::<ModelVersion>()
            .list(&kube::api::ListParams::default())
            .await
        {
            // A cache that lacks an object proves nothing: only a live read does.
            let exists = |id: &VersionId| {
                live.items.iter().any(|object| {
                    let seen = VersionSeen {
                        valid: weir_api::Validate::validate(object),
                        object: Arc::new(object.clone()),
                    };
                    object.spec.model == look.model && is_of(&seen, id)
                })
            };
            memory.note_absence(matters, exists, now);
        }
        for gateway in &look.view.gateways {
            let report = gateway
                .report
                .as_ref()
                .and_then(|(report, _)| report.models.get(look.model));
            if let Some(snapshot) = report.and_then(|report| report.evidence.as_ref())
                && let Err(error) = memory.ledger.merge(snapshot)
            {
                tracing::warn!(model = look.model, %error, "counts of a gateway are left out");
            }
            if let Some((of, shadow)) =
                report.and_then(|report| report.evidence.as_ref().zip(report.shadow.as_ref()))
            {
                memory.shadow.merge(of, shadow);
            }
        }
    }

    /// Once every gateway routes by the table that takes a version back: how long that took, by the clock of the last one.
    pub(super) fn time_rollback(&self, look: &Look<'_>, memory: &mut Memory) {
        let Some(leaving) = &memory.leaving else {
            return;
        };
        let applied = |heard: &Heard| {
            let (report, at) = heard.report.as_ref()?;
            let of_model = report.models.get(look.model)?;
            let is_applied = of_model.table.as_ref()?.order >= leaving.order;
            let age = Duration::from_millis(of_model.age_ms);
            let before = leaving.answers.get(&heard.name).copied().unwrap_or(0);
            let turned = heard.turned.get(look.model).copied().unwrap_or(0);
            let answers = turned.saturating_sub(before);
            is_applied.then(|| (at.checked_sub(age).unwrap_or(*at), answers))
        };
        let all: Option<Vec<(Instant, u64)>> = look.view.gateways.iter().map(applied).collect();
        let Some(all) = all.filter(|all| !all.is_empty()) else {
            return;
        };
        let last = all.iter().map(|(at, _)| *at).max();
        let took = last.map_or(Duration::ZERO, |last| {
            last.saturating_duration_since(leaving.since)
        });
        let answers = all.iter().map(|(_, answers)| *answers).max();
        self.figures
            .rolled_back(look.model, took, answers.unwrap_or(0));
        memory.leaving = None;
    }

    pub(super) fn observe(&self, look: &Look<'_>, memory: &Memory) -> Observation {
        let now = Instant::now();
        let view = &look.view;
        let wanted = self.board.wanted(look.model, view.pools.get(&look.pool));
        let (requests, _) = view.requests();
        Observation {
            wanted,
            capacity: self.capacity(look, wanted),
            occupancy_percent: self.board.occupancy(&look.pool),
            lease: self.lease(look),
            replicas: memory.views(&view.children, Duration::from_secs(self.shape.drain_s), now),
            gateways: view.gateway_views(look.model, now),
            evidence: memory.ledger.clone(),
            shadow: match view.log.last().and_then(|head| head.attempt.as_ref()) {
                Some(attempt) => memory.shadow.total(&attempt.id),
                None => ShadowCounts::default(),
            },
            requests: unhandled(requests, view.log.last()),
            withdrawn: memory.withdrawn(now),
            entropy: self.entropy,
        }
    }

    /// Workers of all versions together that the model may have.
    fn capacity(&self, look: &Look<'_>, wanted: u32) -> u32 {
        let view = &look.view;
        let pool = view.pools.get(&look.pool);
        let is_of_pool = |seen: &&VersionSeen| seen.object.spec.pool == look.pool;
        let newest = view.versions.iter().find(is_of_pool);
        let newest = newest.and_then(|seen| seen.valid.as_ref().ok());
        if let Some((pool, _)) = pool
            .zip(newest)
            .filter(|(pool, newest)| unshared(pool, newest).is_none())
        {
            let plans = self.world.children.plans.state();
            let anchors = seats::anchors(plans.iter().map(|plan| &**plan), &look.pool);
            let head = view.log.last().filter(|head| head.attempt.is_none());
            let kept = head.and_then(|head| head.rollback_to.as_ref());
            let kept = kept.map(|id| names::child(look.model, id));
            let places = if let Some(kept) = kept {
                seats::places(&anchors, &kept, pool.max_versions)
            } else {
                let others = seats::others(&anchors, look.model);
                pool.max_versions.saturating_sub(others)
            };
            return seats::capacity(places, wanted);
        }
        let unschedulable = view.children.values().map(|child| child.unschedulable);
        let existing: u32 = view.children.values().map(|child| child.existing).sum();
        match (unschedulable.sum(), pool.and_then(|pool| pool.max_surge)) {
            (0, Some(surge)) => wanted + surge.min(wanted),
            // The scheduler says what there is no room for.
            (0, None) => wanted.saturating_mul(2),
            (missing, _) => existing.saturating_sub(missing),
        }
    }

    fn lease(&self, look: &Look<'_>) -> Lease {
        let name = carry::lease_name(&look.pool);
        let found = self.world.leases.state();
        let holder = found.iter().find(|lease| lease.name_any() == name);
        let holder = holder.and_then(|lease| lease.spec.as_ref()?.holder_identity.clone());
        match holder {
            None => Lease::Free,
            Some(holder)
                if holder
                    .split_once(' ')
                    .is_some_and(|(_, of)| of == look.model) =>
            {
                Lease::Mine
            }
            Some(holder) => Lease::Other(holder),
        }
    }
}

/// Whether an object is about a version.
pub(super) fn is_of(seen: &VersionSeen, id: &VersionId) -> bool {
    let digest = |valid: &ValidModelVersion| claim::claimed_digest(valid);
    let of = |valid: &ValidModelVersion| valid.version == id.version && digest(valid) == id.digest;
    seen.valid.as_ref().is_ok_and(of)
}

/// Why a version cannot be served on a cluster at all: pods are of one version each, and an adapter has no pod of its own.
pub(super) fn adapter_refusal(object: &ModelVersion) -> Option<(&'static str, String)> {
    let base = object.spec.manifest.adapter_of.as_ref()?;
    Some((
        reasons::ADAPTERS_UNSUPPORTED,
        format!(
            "it is an adapter of {base}, and workers on a cluster serve no adapters: merge it into its base (merge_and_unload of peft), sign the result as a version of its own, and remove spec.manifest.adapterOf with this object; `weir up` serves adapters as they are"
        ),
    ))
}

/// Why a version's pool cannot serve it.
pub(super) fn refusal(view: &View, seen: &VersionSeen) -> Option<(&'static str, String)> {
    if let Some(refused) = adapter_refusal(&seen.object) {
        return Some(refused);
    }
    let pool = &seen.object.spec.pool;
    let Some(valid) = view.pools.get(pool) else {
        return Some((
            reasons::POOL_NOT_FOUND,
            format!("there is no GpuPool {pool:?} that makes sense"),
        ));
    };
    let theirs = valid.pod_template.as_ref()?;
    let refused = template::merge(serde_json::json!({}), theirs).err()?;
    Some((
        reasons::INVALID_SPEC,
        format!("GpuPool {pool:?}: {refused}"),
    ))
}

fn spec(
    view: &View,
    seen: &VersionSeen,
    valid: &ValidModelVersion,
    verdict: Option<&Verdict>,
) -> VersionSpec {
    let verification = match verdict {
        Some(Ok(_)) if refusal(view, seen).is_none() => Verification::Verified,
        Some(Err(unverified)) if !unverified.may_pass() => {
            Verification::Refused(unverified.reason.clone())
        }
        _ => Verification::Pending,
    };
    let digest = claim::claimed_digest(valid);
    version_spec(&seen.object, valid, &digest, verification)
}
