//! Which versions have workers, and which one serves each model: a pure decision over what is known.

use std::collections::{BTreeMap, BTreeSet};

use weir_api::model_version::Stage;

/// A version that may serve: verified, and its pool exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The object's name.
    pub name: String,
    /// The model.
    pub model: String,
    /// The version's number.
    pub version: u32,
    /// How far it may go.
    pub stage: Stage,
}

/// What is known when a placement is decided.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Versions that may serve.
    pub candidates: Vec<Candidate>,
    /// Versions of candidates that have a worker with an open session.
    pub ready: BTreeSet<String>,
    /// Candidates whose workers refuse them: they stay out until their object changes.
    pub refused: BTreeSet<String>,
    /// The version that serves each model now.
    pub serving: BTreeMap<String, Candidate>,
    /// Names of all objects that still exist, candidates or not.
    pub existing: BTreeMap<String, Stage>,
}

/// What is to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Versions that need workers.
    pub with_workers: BTreeSet<String>,
    /// The version that serves each model from now on.
    pub serving: BTreeMap<String, Candidate>,
    /// Versions that serve although their object is gone, because nothing else can.
    pub orphans: BTreeSet<String>,
}

/// Decides. The serving version changes only to one that is ready, so a bad object never takes a model off the air.
pub fn place(known: &Known) -> Placement {
    let mut placement = Placement::default();
    let models: BTreeSet<&String> = known
        .candidates
        .iter()
        .map(|c| &c.model)
        .chain(known.serving.keys())
        .collect();
    for model in models {
        place_model(known, model, &mut placement);
    }
    placement
}

fn place_model(known: &Known, model: &str, placement: &mut Placement) {
    let target = known
        .candidates
        .iter()
        .filter(|c| {
            c.model == *model && c.stage == Stage::Production && !known.refused.contains(&c.name)
        })
        .max_by_key(|c| c.version);
    let serving = known
        .serving
        .get(model)
        .filter(|now| !is_retired(known, &now.name));
    // A serving version that lost its verification (a revoked key, files changed on disk) serves on from memory: a person decides.
    let target = target.filter(|target| {
        serving.is_none_or(|now| target.version >= now.version || !keeps(known, now))
    });
    let next = match (serving, target) {
        (Some(now), Some(target)) if target.name != now.name => {
            placement.with_workers.insert(target.name.clone());
            if known.ready.contains(&target.name) {
                target
            } else {
                now
            }
        }
        (_, Some(target)) => target,
        (Some(now), None) => now,
        (None, None) => return,
    };
    if !known.existing.contains_key(&next.name) {
        placement.orphans.insert(next.name.clone());
    }
    placement.with_workers.insert(next.name.clone());
    placement.serving.insert(model.to_owned(), next.clone());
}

/// Whether the serving version may stay although a lower one could take over.
fn keeps(known: &Known, now: &Candidate) -> bool {
    known.existing.get(&now.name) == Some(&Stage::Production) && !known.refused.contains(&now.name)
}

fn is_retired(known: &Known, name: &str) -> bool {
    known.existing.get(name) == Some(&Stage::Retired)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(version: u32, stage: Stage) -> Candidate {
        Candidate {
            name: format!("m-v{version}"),
            model: "m".to_owned(),
            version,
            stage,
        }
    }

    fn names(items: &[&str]) -> BTreeSet<String> {
        items.iter().map(|&item| item.to_owned()).collect()
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table, one row a situation")]
    fn the_serving_version_changes_only_to_one_that_is_ready() {
        struct Case {
            name: &'static str,
            candidates: Vec<Candidate>,
            ready: &'static [&'static str],
            refused: &'static [&'static str],
            serving: Option<u32>,
            gone: &'static [&'static str],
            want_serving: Option<&'static str>,
            want_workers: &'static [&'static str],
        }
        use Stage::{Canary, Production, Registered, Retired};
        let case = |name| Case {
            name,
            candidates: vec![version(1, Production), version(2, Production)],
            ready: &[],
            refused: &[],
            serving: None,
            gone: &[],
            want_serving: Some("m-v2"),
            want_workers: &["m-v2"],
        };
        let cases = [
            case("a cold start takes the highest"),
            Case {
                serving: Some(1),
                want_serving: Some("m-v1"),
                want_workers: &["m-v1", "m-v2"],
                ..case("a newer one starts beside")
            },
            Case {
                serving: Some(1),
                ready: &["m-v1", "m-v2"],
                ..case("and takes over when ready")
            },
            Case {
                serving: Some(1),
                refused: &["m-v2"],
                want_serving: Some("m-v1"),
                want_workers: &["m-v1"],
                ..case("unless its workers refuse it")
            },
            Case {
                refused: &["m-v2"],
                want_serving: Some("m-v1"),
                want_workers: &["m-v1"],
                ..case("a refused one is passed over at a cold start too")
            },
            Case {
                candidates: vec![version(1, Production), version(2, Canary)],
                want_serving: Some("m-v1"),
                want_workers: &["m-v1"],
                ..case("only Production serves")
            },
            Case {
                candidates: vec![version(1, Production), version(2, Registered)],
                serving: Some(2),
                want_serving: Some("m-v2"),
                want_workers: &["m-v1", "m-v2"],
                ..case("a withdrawn one serves until the older is ready")
            },
            Case {
                candidates: vec![version(1, Production), version(2, Registered)],
                serving: Some(2),
                ready: &["m-v1"],
                want_serving: Some("m-v1"),
                want_workers: &["m-v1"],
                ..case("and then goes")
            },
            Case {
                candidates: vec![version(1, Production)],
                serving: Some(2),
                ready: &["m-v1"],
                ..case("one that lost its verification serves on")
            },
            Case {
                candidates: vec![],
                serving: Some(2),
                gone: &["m-v2"],
                ..case("the only one serves on when its object is deleted")
            },
            Case {
                candidates: vec![version(2, Retired)],
                serving: Some(2),
                want_serving: None,
                want_workers: &[],
                ..case("retiring is what takes the last one away")
            },
            Case {
                candidates: vec![version(2, Registered)],
                want_serving: None,
                want_workers: &[],
                ..case("nothing to serve")
            },
        ];
        for case in cases {
            let existing = [1, 2]
                .map(|n| {
                    (
                        format!("m-v{n}"),
                        case.candidates
                            .iter()
                            .find(|c| c.version == n)
                            .map_or(Production, |c| c.stage),
                    )
                })
                .into_iter()
                .filter(|(name, _)| !case.gone.contains(&name.as_str()))
                .collect();
            let serving = case
                .serving
                .map(|n| ("m".to_owned(), version(n, Production)))
                .into_iter()
                .collect();
            let known = Known {
                candidates: case.candidates,
                ready: names(case.ready),
                refused: names(case.refused),
                serving,
                existing,
            };
            let placement = place(&known);
            assert_eq!(
                placement.serving.get("m").map(|c| c.name.as_str()),
                case.want_serving,
                "{}",
                case.name
            );
            assert_eq!(
                placement.with_workers,
                names(case.want_workers),
                "{}",
                case.name
            );
            assert_eq!(placement.orphans, names(case.gone), "{}", case.name);
        }
    }
}
