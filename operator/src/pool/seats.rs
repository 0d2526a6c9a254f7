//! Which versions the workers of a shared pool hold, and how many of them there are: a function of what was ordered.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use weir_api::LABEL_POOL;
use weir_rollout::Record;

use crate::names;

/// A version that workers of the pool are, or were, counted on for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// The name of its plan.
    pub child: String,
    /// For people.
    pub shown: String,
    /// On how many of the workers it is counted on.
    pub desired: u32,
    /// What its record calls it.
    pub role: &'static str,
    /// What to load.
    pub plan: String,
    /// The claim that its artifact lies in.
    pub claim: Option<String>,
    /// Its model.
    pub model: String,
}

/// What a pool's workers are to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seats {
    /// Plans by file name.
    pub plans: BTreeMap<String, String>,
    /// Claims that their artifacts lie in.
    pub claims: BTreeSet<String>,
    /// How many workers there are.
    pub replicas: u32,
    /// Versions that there is no place for.
    pub waiting: Vec<String>,
    /// Whether a plan stays that nobody has ordered any more: a record names its version, whose own plan is gone.
    pub is_incomplete: bool,
}

/// The versions that workers of a pool are counted on for.
pub fn anchors<'a>(plans: impl Iterator<Item = &'a ConfigMap>, pool: &str) -> Vec<Anchor> {
    plans.filter_map(|plan| anchor(plan, pool)).collect()
}

fn anchor(plan: &ConfigMap, pool: &str) -> Option<Anchor> {
    if plan.labels().get(LABEL_POOL).map(String::as_str) != Some(pool) {
        return None;
    }
    let desired = names::replicas_of(&plan.metadata)?;
    let (model, id) = names::version_of(&plan.metadata)?;
    let data = plan.data.as_ref()?;
    let served: serde_json::Value = serde_json::from_str(data.get("version.json")?).ok()?;
    Some(Anchor {
        child: plan.name_any(),
        shown: format!("{model} v{}", id.version),
        desired,
        role: names::role_of(&plan.metadata),
        plan: data.get("plan.json")?.clone(),
        claim: served["claim"].as_str().map(str::to_owned),
        model,
    })
}

/// Places that versions of other models have in a pool's workers.
pub fn others(anchors: &[Anchor], model: &str) -> u32 {
    let others = anchors
        .iter()
        .filter(|anchor| anchor.model != model && anchor.desired > 0);
    u32::try_from(others.count()).unwrap_or(u32::MAX)
}

/// Places that a model without a rollout has in a pool's workers, of which each has so many: a second one, for the version that it keeps for a
/// rollback, where one is left by all that serves, is on trial or waits. Those kept for rollbacks have them in the order of their names, so
/// that every model comes to the same end and none gives up what it would take back.
pub fn places(anchors: &[Anchor], kept: &str, most: u32) -> u32 {
    let is_kept = |anchor: &Anchor| anchor.child == kept || anchor.role == names::ROLLBACK;
    let firm = anchors
        .iter()
        .filter(|one| one.desired > 0 && !is_kept(one));
    // A model that sleeps keeps nothing, nor does one with a version on trial.
    let keeps = |model: &str| {
        let its = || firm.clone().filter(|one| one.model == model);
        its().count() == 1 && its().all(|one| one.role == names::STABLE)
    };
    let before = anchors
        .iter()
        .filter(|one| is_kept(one) && *one.child < *kept);
    let before = before.filter(|one| one.desired > 0 || keeps(&one.model));
    let is_left = firm.clone().count() + before.count() < most as usize;
    1 + u32::from(is_left)
}

/// Workers of all versions of a model together, where each of a pool's workers has so many places for them. A worker more costs nothing but a
/// place: with two, a version may come beside the one that serves; with one it may not, and nothing is kept for a rollback.
pub fn capacity(places: u32, wanted: u32) -> u32 {
    if places >= 2 {
        wanted.saturating_mul(2)
    } else {
        wanted.saturating_sub(1)
    }
}

/// What workers are to hold, which hold so many versions at most. A plan that is lost, by its file's name and text, stays. What they hold stays
/// until nobody orders it any more, so that nothing takes the place of what serves; then come versions that serve, those kept for a rollback,
/// and others.
pub fn seats(
    anchors: &[Anchor],
    before: &BTreeMap<String, String>,
    is_lost: impl Fn(&str, &str) -> bool,
    most: u32,
) -> Seats {
    let file = |child: &str| format!("{child}.json");
    let mut seats = Seats::default();
    for (name, plan) in before {
        let is_ordered = anchors.iter().any(|anchor| file(&anchor.child) == *name);
        if !is_ordered && is_lost(name, plan) {
            seats.plans.insert(name.clone(), plan.clone());
            seats.is_incomplete = true;
        }
    }
    let mut wanted: Vec<&Anchor> = anchors.iter().filter(|one| one.desired > 0).collect();
    wanted.sort_by_key(|anchor| {
        let rank = [names::STABLE, names::ROLLBACK];
        let rank = rank.iter().position(|role| *role == anchor.role);
        (
            !before.contains_key(&file(&anchor.child)),
            rank.unwrap_or(2),
            anchor.child.clone(),
        )
    });
    for anchor in wanted {
        // What is held was let in when there was a place. Where there are fewer since, it goes when nobody orders it any more.
        let is_held = before.contains_key(&file(&anchor.child));
        if !is_held && seats.plans.len() >= most as usize {
            seats.waiting.push(anchor.shown.clone());
            continue;
        }
        seats.replicas = seats.replicas.max(anchor.desired);
        seats.claims.extend(anchor.claim.clone());
        seats.plans.insert(file(&anchor.child), anchor.plan.clone());
    }
    seats.waiting.sort();
    seats
}

/// Whether one of these records counts on the version of a plan.
pub fn is_named(plan: &str, newest: &BTreeMap<String, Record>) -> bool {
    let plan: serde_json::Value = serde_json::from_str(plan).unwrap_or_default();
    let (Some(model), Some(digest)) = (plan["claim"]["model"].as_str(), plan["digest"].as_str())
    else {
        return false;
    };
    newest.get(model).is_some_and(|head| {
        let target = head.attempt.as_ref().map(|attempt| &attempt.target);
        let named = head.stable.iter().chain(&head.rollback_to).chain(target);
        named.into_iter().any(|id| id.digest == digest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchor(child: &str, desired: u32, role: &'static str) -> Anchor {
        Anchor {
            child: child.to_owned(),
            shown: child.to_owned(),
            desired,
            role,
            plan: format!("plan of {child}"),
            claim: Some(format!("claim of {child}")),
            model: child[..1].to_owned(),
        }
    }

    fn held(names: &[&str]) -> BTreeMap<String, String> {
        let plan = |name: &&str| (format!("{name}.json"), format!("plan of {name}"));
        names.iter().map(plan).collect()
    }

    fn names_of(seats: &Seats) -> Vec<&str> {
        seats.plans.keys().map(String::as_str).collect()
    }

    #[test]
    fn what_is_held_keeps_its_place_and_of_the_rest_what_serves_comes_first() {
        let all = [
            anchor("a1", 2, names::STABLE),
            anchor("a2", 1, names::CANDIDATE),
            anchor("b1", 3, names::CANDIDATE),
            anchor("c1", 1, names::STABLE),
        ];
        let seats = |before: &[&str], most| seats(&all, &held(before), |_, _| false, most);
        assert_eq!(names_of(&seats(&[], 2)), ["a1.json", "c1.json"]);
        let kept = seats(&["a1", "b1"], 2);
        assert_eq!(names_of(&kept), ["a1.json", "b1.json"]);
        assert_eq!(kept.waiting, ["a2", "c1"]);
        assert_eq!(kept.replicas, 3, "the most that any of them wants");
        assert_eq!(kept.claims.len(), 2);
        assert_eq!(names_of(&seats(&["a1", "b1"], 9)).len(), 4);
        let fewer = seats(&["a1", "b1", "c1"], 2);
        assert_eq!(names_of(&fewer), ["a1.json", "b1.json", "c1.json"]);
        assert_eq!(fewer.waiting, ["a2"]);
    }

    #[test]
    fn what_nobody_orders_leaves_and_what_a_record_counts_on_stays_though_its_plan_was_deleted() {
        let all = [
            anchor("a1", 1, names::STABLE),
            anchor("a2", 0, names::ROLLBACK),
        ];
        let before = held(&["a1", "a2", "a3", "a4"]);
        let made = seats(&all, &before, |_, plan| plan == "plan of a4", 4);
        assert_eq!(names_of(&made), ["a1.json", "a4.json"]);
        assert!(made.is_incomplete);
        let made = seats(&[], &held(&["a1"]), |_, _| false, 4);
        assert_eq!(made, Seats::default());
    }

    #[test]
    fn of_what_is_kept_for_rollbacks_only_as_much_goes_as_must() {
        let mut all = vec![
            anchor("a1", 1, names::ROLLBACK),
            anchor("a2", 1, names::STABLE),
            anchor("b1", 1, names::ROLLBACK),
            anchor("b2", 1, names::STABLE),
        ];
        let of_both = |all: &[Anchor]| [places(all, "a1", 4), places(all, "b1", 4)];
        assert_eq!(of_both(&all), [2, 2]);
        all.push(anchor("c1", 1, names::CANDIDATE));
        assert_eq!(of_both(&all), [2, 1], "a third model comes");
        all[2].desired = 0;
        assert_eq!(of_both(&all), [2, 1], "it went, and nobody wants it back");
        all[0].desired = 0;
        assert_eq!(of_both(&all), [2, 1], "whose turn it is");
        all[1].desired = 0;
        assert_eq!(places(&all, "b1", 4), 2, "the first model sleeps");
        all[1].desired = 1;
        all.push(anchor("a3", 1, names::CANDIDATE));
        assert_eq!(
            places(&all, "b1", 5),
            2,
            "the first model tries another one"
        );
        // Just promoted, it is not called so yet.
        let promoted = [
            anchor("a1", 1, names::STABLE),
            anchor("a2", 1, names::STABLE),
        ];
        assert_eq!([1, 2].map(|most| places(&promoted, "a1", most)), [1, 2]);
    }

    #[test]
    fn a_second_place_is_room_for_another_version_and_one_alone_is_none() {
        assert_eq!([0, 1, 2, 5].map(|places| capacity(places, 3)), [2, 2, 6, 6]);
        assert_eq!(capacity(1, 1), 0);
    }
}
