//! `cargo xtask deps`: which crate of the workspace may know which, and what pure crates must not know.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::repo;

/// The allowed edges. A new one is a design decision: it changes this table in a commit of its own that says why.
const EDGES: &[(&str, &[&str])] = &[
    // Vocabulary: knows nobody.
    ("weir-api", &[]),
    ("weir-protocol", &[]),
    // Pure cores: know vocabulary at most.
    ("weir-manifest", &["weir-api"]),
    ("weir-rollout", &["weir-api"]),
    ("weir-run", &[]),
    ("weir-budget", &[]),
    // A usage record is a run's last word.
    ("weir-ledger", &["weir-run"]),
    ("weir-admission", &[]),
    ("weir-scheduler", &[]),
    // Mechanisms: know cores and vocabulary.
    ("weir-store", &["weir-run", "weir-budget", "weir-ledger"]),
    (
        "weir-postgres",
        &["weir-run", "weir-budget", "weir-ledger", "weir-store"],
    ),
    ("weir-grammar", &[]),
    ("weir-model", &["weir-scheduler"]),
    ("weir-cuda", &["weir-model", "weir-scheduler"]),
    ("weir-telemetry", &[]),
    // Is given files and sockets; who issued them is the operator's business.
    ("weir-identity", &[]),
    // Is told which bytes are wanted; who signed them is asked by its callers.
    ("weir-fetch", &["weir-manifest"]),
    // The end-to-end tests' checker, load and sites: know what clients know.
    (
        "weir-e2e",
        &["weir-api", "weir-manifest", "weir-run", "weir-protocol"],
    ),
    // Binaries: know everything below, never each other.
    (
        "weir-operator",
        &[
            "weir-api",
            "weir-manifest",
            "weir-rollout",
            "weir-protocol",
            "weir-telemetry",
            "weir-identity",
            // Only its tests: the cluster.
            "weir-e2e",
        ],
    ),
    (
        "weir-gateway",
        &[
            "weir-api",
            "weir-manifest",
            "weir-run",
            "weir-budget",
            "weir-ledger",
            "weir-admission",
            "weir-protocol",
            "weir-store",
            "weir-postgres",
            "weir-grammar",
            "weir-rollout",
            "weir-model",
            // Tokenizers and templates of versions that are elsewhere.
            "weir-fetch",
            "weir-telemetry",
            "weir-identity",
            // Only its tests: the checker and the load of the end-to-end tests, on a gateway in their own process.
            "weir-e2e",
        ],
    ),
    (
        "weir-worker",
        &[
            "weir-grammar",
            "weir-manifest",
            "weir-protocol",
            "weir-scheduler",
            "weir-model",
            "weir-cuda",
            // On a cluster a version's files come to the node of the worker that loads them.
            "weir-fetch",
            "weir-telemetry",
            "weir-identity",
        ],
    ),
    // The one machine: knows the other binaries' libraries too.
    (
        "weir",
        &[
            "weir-api",
            "weir-manifest",
            "weir-rollout",
            "weir-run",
            "weir-budget",
            "weir-ledger",
            "weir-admission",
            "weir-scheduler",
            "weir-protocol",
            "weir-store",
            "weir-postgres",
            "weir-grammar",
            "weir-model",
            "weir-fetch",
            "weir-telemetry",
            "weir-identity",
            "weir-operator",
            "weir-gateway",
            "weir-worker",
        ],
    ),
    // Puts load on a gateway from outside; stands behind one as a worker.
    ("weir-load", &["weir-manifest", "weir-protocol"]),
    // Automation. Measures what people run, so it starts it as the end-to-end tests do.
    ("xtask", &["weir-api", "weir-e2e"]),
];

/// Cores that see no runtime, client, clock, file, socket or randomness of their own.
const PURE: &[&str] = &[
    "weir-rollout",
    "weir-run",
    "weir-budget",
    "weir-ledger",
    "weir-admission",
    "weir-scheduler",
    "weir-manifest",
];

/// Crates that bring what a pure core must not see.
const IMPURE: &[&str] = &[
    "tokio",
    "kube",
    "k8s-openapi",
    "tonic",
    "axum",
    "hyper",
    "tracing",
    "sled",
    "redb",
    "rand",
    "reqwest",
    "parking_lot",
    "rustix",
    "tempfile",
];

/// Crates of which the lock file may have one version: two would not understand each other's types.
const SINGLE: &[&str] = &[
    "kube",
    "kube-core",
    "k8s-openapi",
    "schemars",
    "tokio",
    "tonic",
    "prost",
    "hyper",
];

/// An exception: who, what, why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[(
    "weir-manifest",
    "rustix",
    "what is mapped for serving must be the open file that was hashed, opened without following links",
)];

/// A crate of the workspace.
#[derive(Debug, Default)]
struct Member {
    /// What it is built with, dependencies of its tests left out.
    normal: BTreeSet<String>,
    /// What its tests are built with besides.
    tests: BTreeSet<String>,
}

/// Checks the workspace.
pub(crate) fn check() -> Result<String> {
    let members = members(&repo::metadata(&["--no-deps", "--locked", "--offline"])?)?;
    let mut findings = edges(&members);
    findings.extend(purity(&members));
    findings.extend(versions(&repo::read("Cargo.lock".as_ref())?));
    let summary = format!("deps: {} crates keep to the table", members.len());
    repo::verdict(&findings, summary)
}

fn members(metadata: &Value) -> Result<BTreeMap<String, Member>> {
    let mut members = BTreeMap::new();
    for package in metadata["packages"].as_array().context("no packages")? {
        let name = package["name"].as_str().context("a package has no name")?;
        let mut member = Member::default();
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let of = dependency["name"]
                .as_str()
                .context("a dependency has no name")?;
            let set = match dependency["kind"].as_str() {
                Some("dev") => &mut member.tests,
                _ => &mut member.normal,
            };
            set.insert(of.to_owned());
        }
        members.insert(name.to_owned(), member);
    }
    Ok(members)
}

/// Edges that the table does not allow, and crates that it does not name. Tests may use any crate below, so they keep to the same table.
fn edges(members: &BTreeMap<String, Member>) -> Vec<String> {
    let mut findings = Vec::new();
    for (name, member) in members {
        let Some((_, allowed)) = EDGES.iter().find(|(crate_name, _)| crate_name == name) else {
            findings.push(format!(
                "{name}: not in the table of xtask/src/deps.rs, add it with its edges"
            ));
            continue;
        };
        for to in member.normal.union(&member.tests) {
            if members.contains_key(to) && !allowed.contains(&to.as_str()) {
                findings.push(format!(
                    "{name} -> {to}: not allowed; move what both need one layer down, or change the table in a commit that says why"
                ));
            }
        }
    }
    findings
}

/// What pure cores must not know; their tests may.
fn purity(members: &BTreeMap<String, Member>) -> Vec<String> {
    let mut findings = Vec::new();
    for name in PURE {
        let Some(member) = members.get(*name) else {
            continue;
        };
        for to in &member.normal {
            let excused = EXCEPTIONS
                .iter()
                .any(|(who, what, _)| who == name && what == to);
            if IMPURE.contains(&to.as_str()) && !excused {
                findings.push(format!(
                    "{name} -> {to}: a pure core has no runtime, client, clock, file or randomness"
                ));
            }
        }
    }
    findings
}

/// Crates that the lock file has in more than one version although they must be single.
fn versions(lock: &str) -> Vec<String> {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            let mut lines = package.lines();
            lines.find_map(|line| {
                line.strip_prefix(name)?
                    .strip_prefix(" = \"")?
                    .strip_suffix('"')
            })
        };
        if let (Some(name), Some(version)) = (field("name"), field("version")) {
            found.entry(name).or_default().push(version);
        }
    }
    let twice = |name: &&&str| found.get(**name).is_some_and(|versions| versions.len() > 1);
    let line = |name: &&str| {
        format!(
            "{name}: {} in Cargo.lock, one version only",
            found[*name].join(" and ")
        )
    };
    SINGLE.iter().filter(twice).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_keeps_to_the_table() {
        check().unwrap();
    }

    fn member(normal: &[&str]) -> Member {
        Member {
            normal: normal.iter().map(|name| (*name).to_owned()).collect(),
            tests: BTreeSet::new(),
        }
    }

    #[test]
    fn a_forbidden_edge_and_an_unknown_crate_are_found() {
        let members = BTreeMap::from([
            ("weir-gateway".to_owned(), member(&["weir-worker", "serde"])),
            ("weir-worker".to_owned(), member(&["weir-model"])),
            ("weir-model".to_owned(), member(&[])),
            ("weir-misc".to_owned(), member(&[])),
        ]);
        let findings = edges(&members);
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(
            findings[0].starts_with("weir-gateway -> weir-worker"),
            "{findings:?}"
        );
        assert!(
            findings[1].starts_with("weir-misc: not in the table"),
            "{findings:?}"
        );
    }

    #[test]
    fn a_pure_core_with_a_runtime_is_found() {
        let members = BTreeMap::from([("weir-budget".to_owned(), member(&["tokio", "serde"]))]);
        assert_eq!(purity(&members).len(), 1);
    }

    #[test]
    fn two_versions_of_a_single_crate_are_found() {
        let lock = "[[package]]\nname = \"kube\"\nversion = \"5.0.0\"\n\n[[package]]\nname = \"kube\"\nversion = \"4.2.0\"\n";
        assert_eq!(
            versions(lock),
            ["kube: 5.0.0 and 4.2.0 in Cargo.lock, one version only"]
        );
    }

    #[test]
    fn the_table_points_down_only() {
        let place = |name: &str| EDGES.iter().position(|(crate_name, _)| *crate_name == name);
        for (name, allowed) in EDGES {
            for to in *allowed {
                assert!(place(to) < place(name), "{name} -> {to} points up");
            }
        }
    }
}
