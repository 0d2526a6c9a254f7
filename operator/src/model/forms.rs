//! What kinds of workers a version has: a Deployment of its own, or places in the workers of its pool. While it passes from one to the other it
//! has both.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use weir_api::{LABEL_COMPONENT, LABEL_POOL, LABEL_SHARING};
use weir_rollout::{Stamp, VersionId};

use super::child::ChildSeen;
use crate::gateways::Heard;
use crate::names;
use crate::world::World;

/// One kind of workers of a version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// As decisions see it.
    pub seen: ChildSeen,
    /// How many of them every gateway may send runs of the version to.
    pub known: u32,
    /// What the record that ordered them calls the version.
    pub role: &'static str,
}

impl Form {
    /// Whether it carries all that was ordered of it.
    fn carries(&self) -> bool {
        self.seen.desired > 0 && self.seen.ready.min(self.known) >= self.seen.desired
    }

    fn is_empty(&self) -> bool {
        self.seen.desired == 0 && self.seen.existing == 0
    }

    /// Whether it was emptied because the other kind carries everything: that nothing is asked of it says nothing of the version.
    fn is_left(&self) -> bool {
        self.role == names::LEFT
    }
}

/// All kinds of workers of a version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// A Deployment of its own.
    pub own: Option<Form>,
    /// Places in the workers of its pool.
    pub seats: Option<Form>,
    /// Whether it is to have the latter.
    pub is_shared: bool,
    /// The pool.
    pub pool: String,
}

/// What is to be done next for a version to have the one kind of workers that it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// Nothing.
    None,
    /// The kind that it should have is made, as large as the other one.
    Make,
    /// The other kind takes no new runs, and drains: the right one carries everything.
    Leave,
    /// The other kind, which is empty, is removed.
    Remove,
}

impl Forms {
    /// What decisions see: the kind that it should have, and what the other one still carries.
    pub fn merged(&self) -> ChildSeen {
        let (main, other) = self.main_and_other();
        match (main, other) {
            (None, None) => ChildSeen::default(),
            (Some(one), None) | (None, Some(one)) => one.seen.clone(),
            (Some(main), Some(other)) => ChildSeen {
                existing: main.seen.existing.max(other.seen.existing),
                ready: main.seen.ready + other.seen.ready,
                exits: main.seen.exits + other.seen.exits,
                unschedulable: main.seen.unschedulable + other.seen.unschedulable,
                shares: main.seen.shares || other.seen.shares,
                is_blamed: main.seen.is_blamed || other.seen.is_blamed,
                ..main.seen.clone()
            },
        }
    }

    /// The kind that it should have, and the other one.
    fn main_and_other(&self) -> (Option<&Form>, Option<&Form>) {
        let (main, other) = if self.is_shared {
            (self.seats.as_ref(), self.own.as_ref())
        } else {
            (self.own.as_ref(), self.seats.as_ref())
        };
        // Who changed his mind again begins anew.
        (
            main.filter(|main| other.is_none() || !main.is_left()),
            other,
        )
    }

    /// The newest record that ordered any of it.
    pub fn stamp(&self) -> Stamp {
        let stamps = self.own.iter().chain(&self.seats);
        stamps.map(|form| form.seen.stamp).max().unwrap_or_default()
    }

    /// Whether workers of the pool are counted on for it.
    pub fn is_seated(&self) -> bool {
        let seats = self.seats.as_ref();
        seats.is_some_and(|seats| seats.seen.desired > 0)
    }

    /// The kind that it should not have any more.
    pub fn other(&self) -> Option<&Form> {
        self.main_and_other().1
    }

    /// The next step. The new kind comes first, and the old one goes when every gateway can send all runs to the new one, or when none of either
    /// is asked for.
    pub fn passage(&self) -> Passage {
        match self.main_and_other() {
            (_, None) => Passage::None,
            (None, Some(other)) if other.is_empty() => Passage::None,
            (None, Some(_)) => Passage::Make,
            (Some(main), Some(other)) => {
                let may_leave = main.carries() || main.seen.desired == 0;
                match (other.seen.desired, other.is_empty()) {
                    (0, true) => Passage::Remove,
                    (0, false) => Passage::None,
                    _ if may_leave => Passage::Leave,
                    _ => Passage::None,
                }
            }
        }
    }

    /// Whether it is as it was ordered.
    pub fn is_settled(&self) -> bool {
        let (main, other) = self.main_and_other();
        let is_there = main.is_none_or(|main| main.seen.desired == 0 || main.carries());
        is_there && other.is_none_or(Form::is_empty)
    }
}

/// What is seen of all versions of a model.
pub(super) fn forms(world: &World, gateways: &[Heard], model: &str) -> BTreeMap<VersionId, Forms> {
    let mut all: BTreeMap<VersionId, Forms> = BTreeMap::new();
    for deployment in world.children.deployments.state() {
        let Some((_, id)) = names::version_of(&deployment.metadata).filter(|(of, _)| of == model)
        else {
            continue;
        };
        let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
        let seen = ChildSeen {
            desired: replicas.map_or(1, |replicas| u32::try_from(replicas).unwrap_or(0)),
            stamp: names::stamp_of(&deployment.metadata),
            ..ChildSeen::default()
        };
        let forms = all.entry(id).or_default();
        forms.pool = label(deployment.labels(), LABEL_POOL);
        forms.own = Some(Form {
            seen,
            known: 0,
            role: names::role_of(&deployment.metadata),
        });
    }
    let pods = world.pods.state();
    let is_worker = |pod: &&Arc<Pod>| label(pod.labels(), LABEL_COMPONENT) == names::WORKER;
    let workers: Vec<&Arc<Pod>> = pods.iter().filter(is_worker).collect();
    see_own(&mut all, &workers, gateways, model);
    for plan in world.children.plans.state() {
        let of = names::version_of(&plan.metadata).filter(|(of, _)| of == model);
        let Some(((_, id), desired)) = of.zip(names::replicas_of(&plan.metadata)) else {
            continue;
        };
        let pool = label(plan.labels(), LABEL_POOL);
        let role = names::role_of(&plan.metadata);
        let mut form = seats(&workers, gateways, (&pool, &plan.name_any(), &id), desired);
        form.seen.stamp = names::stamp_of(&plan.metadata);
        form.role = role;
        form.seen.is_blamed = role == names::CANDIDATE;
        let forms = all.entry(id).or_default();
        forms.pool = pool;
        forms.seats = Some(form);
    }
    all
}

fn see_own(
    all: &mut BTreeMap<VersionId, Forms>,
    workers: &[&Arc<Pod>],
    gateways: &[Heard],
    model: &str,
) {
    let mut failures: BTreeMap<VersionId, u32> = BTreeMap::new();
    let mut pods: BTreeMap<VersionId, BTreeSet<String>> = BTreeMap::new();
    for pod in workers {
        let Some((_, id)) = names::version_of(&pod.metadata).filter(|(of, _)| of == model) else {
            continue;
        };
        let Some(own) = all.get_mut(&id).and_then(|forms| forms.own.as_mut()) else {
            continue;
        };
        let seen = PodSeen::of(pod);
        seen.count(&mut own.seen);
        if !seen.is_over && !seen.is_ready {
            let fewest = failures.entry(id.clone()).or_insert(seen.exits);
            *fewest = seen.exits.min(*fewest);
        }
        pods.entry(id).or_default().insert(pod.name_any());
    }
    for (id, forms) in all {
        if let Some(own) = &mut forms.own {
            let its = pods.remove(id).unwrap_or_default();
            own.known = known(gateways, &id.digest, |name| its.contains(name));
            own.seen.start_failures = failures.get(id).copied().unwrap_or(0);
        }
    }
}

/// Places of a version in the workers of a pool: those where a gateway has found it.
fn seats(
    workers: &[&Arc<Pod>],
    gateways: &[Heard],
    (pool, child, id): (&str, &str, &VersionId),
    desired: u32,
) -> Form {
    let mut form = Form::default();
    let is_of_pool = |pod: &&&Arc<Pod>| {
        label(pod.labels(), LABEL_POOL) == pool && pod.labels().contains_key(LABEL_SHARING)
    };
    let mut names = BTreeSet::new();
    for pod in workers.iter().filter(is_of_pool) {
        let mut seen = PodSeen::of(pod);
        let name = names::seat(&pod.name_any(), child);
        // While no gateway has answered yet, as after a start, the worker's word is all there is.
        seen.is_ready &= gateways.iter().all(|heard| heard.report.is_none())
            || gateways
                .iter()
                .any(|heard| serving(heard, &id.digest).any(|worker| *worker == name));
        seen.count(&mut form.seen);
        names.insert(name);
    }
    form.known = known(gateways, &id.digest, |name| names.contains(name));
    // All of the pool's workers hold it: what is beyond the order is not on its way out.
    form.seen.existing = form.seen.existing.min(desired);
    form.seen.desired = desired;
    form.seen.shares = true;
    form
}

/// Runs that gateways have on the workers of a version.
pub(super) fn live_runs(gateways: &[Heard], digest: &str) -> u64 {
    let reports = gateways.iter().filter_map(|heard| heard.report.as_ref());
    let workers = reports.flat_map(|(report, _)| report.workers.values());
    let its = workers.filter(|worker| worker.digests.iter().any(|held| held == digest));
    its.map(|worker| u64::from(worker.in_flight)).sum()
}

/// Workers that a gateway may send new runs of a version to.
fn serving<'a>(heard: &'a Heard, digest: &str) -> impl Iterator<Item = &'a String> {
    let workers = heard.report.iter().flat_map(|(report, _)| &report.workers);
    let its = workers.filter(move |(_, worker)| worker.serves(digest));
    its.map(|(name, _)| name)
}

/// How many of some workers every gateway may send runs of a version to.
fn known(gateways: &[Heard], digest: &str, is_its: impl Fn(&str) -> bool) -> u32 {
    let count = |heard: &Heard| serving(heard, digest).filter(|name| is_its(name)).count();
    let least = gateways.iter().map(count).min();
    least.map_or(u32::MAX, |least| u32::try_from(least).unwrap_or(u32::MAX))
}

fn label(labels: &BTreeMap<String, String>, name: &str) -> String {
    labels.get(name).cloned().unwrap_or_default()
}

/// What a pod says of itself.
struct PodSeen {
    exits: u32,
    is_over: bool,
    is_ready: bool,
    is_unschedulable: bool,
}

impl PodSeen {
    fn of(pod: &Pod) -> Self {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let containers = status.and_then(|status| status.container_statuses.as_ref());
        let restarts = containers.into_iter().flatten();
        let restarts: i32 = restarts.map(|container| container.restart_count).sum();
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let conditions = || conditions.into_iter().flatten();
        let is_ready = conditions().any(|c| c.type_ == "Ready" && c.status == "True");
        Self {
            exits: u32::try_from(restarts).unwrap_or(0) + u32::from(phase == Some("Failed")),
            is_over: matches!(phase, Some("Succeeded" | "Failed")),
            is_ready: is_ready && pod.metadata.deletion_timestamp.is_none(),
            is_unschedulable: conditions()
                .any(|c| c.type_ == "PodScheduled" && c.reason.as_deref() == Some("Unschedulable")),
        }
    }

    fn count(&self, child: &mut ChildSeen) {
        child.exits += self.exits;
        if self.is_over {
            return;
        }
        child.existing += 1;
        child.ready += u32::from(self.is_ready);
        child.unschedulable += u32::from(self.is_unschedulable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(
        clippy::unnecessary_wraps,
        reason = "a version has a kind of workers, or has not"
    )]
    fn form(desired: u32, ready: u32, known: u32) -> Option<Form> {
        let seen = ChildSeen {
            desired,
            existing: ready,
            ready,
            ..ChildSeen::default()
        };
        Some(Form {
            seen,
            known,
            role: names::STABLE,
        })
    }

    fn passage(own: Option<Form>, seats: Option<Form>, is_shared: bool) -> Passage {
        let forms = Forms {
            own,
            seats,
            is_shared,
            pool: "p".to_owned(),
        };
        forms.passage()
    }

    #[test]
    fn the_new_kind_comes_first_and_the_old_one_goes_when_every_gateway_knows_the_new_one() {
        let shared = |own, seats| passage(own, seats, true);
        assert_eq!(shared(form(2, 2, 2), None), Passage::Make);
        assert_eq!(shared(form(2, 2, 2), form(2, 1, 1)), Passage::None);
        assert_eq!(shared(form(2, 2, 2), form(2, 2, 1)), Passage::None);
        assert_eq!(shared(form(2, 2, 2), form(2, 2, 2)), Passage::Leave);
        assert_eq!(shared(form(0, 2, 2), form(2, 2, 2)), Passage::None);
        assert_eq!(shared(form(0, 0, 0), form(2, 2, 2)), Passage::Remove);
        assert_eq!(shared(None, form(2, 0, 0)), Passage::None);
        let own = |own, seats| passage(own, seats, false);
        assert_eq!(own(None, form(1, 1, 1)), Passage::Make);
        assert_eq!(own(form(1, 0, 0), form(1, 1, 1)), Passage::None);
        assert_eq!(own(form(1, 1, 1), form(1, 1, 1)), Passage::Leave);
        assert_eq!(own(form(1, 1, 1), form(0, 0, 0)), Passage::Remove);
        assert_eq!(own(form(1, 1, 1), None), Passage::None);
        let left = || {
            let mut left = form(0, 2, 2);
            left.as_mut().unwrap().role = names::LEFT;
            left
        };
        assert_eq!(own(left(), form(2, 2, 2)), Passage::Make, "back again");
        assert_eq!(own(form(0, 0, 0), form(2, 2, 2)), Passage::Leave, "asleep");
    }

    #[test]
    fn what_the_old_kind_carries_still_counts() {
        let mut forms = Forms {
            own: form(2, 2, 2),
            seats: form(2, 0, 0),
            is_shared: true,
            pool: "p".to_owned(),
        };
        let merged = forms.merged();
        assert_eq!((merged.desired, merged.existing, merged.ready), (2, 2, 2));
        assert!(!merged.shares);
        forms.own.as_mut().unwrap().seen.shares = true;
        assert!(forms.merged().shares, "exits are of both");
        assert!(!forms.is_settled());
        forms.own = None;
        assert_eq!(forms.merged().ready, 0);
        assert!(!forms.is_settled());
        forms.seats = form(2, 2, 2);
        assert!(forms.is_settled());
    }
}
