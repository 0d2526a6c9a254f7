//! References between objects: what names something that is not there.

use std::collections::BTreeSet;

use crate::{FieldProblem, ValidGpuPool, ValidModelVersion, ValidTenantQuota, did_you_mean};

/// The objects of one namespace.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// All versions.
    pub versions: &'a [ValidModelVersion],
    /// All pools.
    pub pools: &'a [ValidGpuPool],
    /// All quotas.
    pub quotas: &'a [ValidTenantQuota],
    /// Entries of Secrets, as (Secret, entry).
    pub secret_entries: &'a BTreeSet<(String, String)>,
}

/// A reference that leads nowhere, or two objects that claim the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReferenceProblem {
    /// The kind of the object at fault.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Where and what.
    pub problem: FieldProblem,
}

/// Every reference that leads nowhere and every claim that two objects make.
pub fn dangling_references(known: Known<'_>) -> Vec<ReferenceProblem> {
    let mut problems = Vec::new();
    versions(known, &mut problems);
    quotas(known, &mut problems);
    problems
}

fn versions(known: Known<'_>, problems: &mut Vec<ReferenceProblem>) {
    let pools = || known.pools.iter().map(|pool| pool.name.as_str());
    let models: BTreeSet<&str> = known.versions.iter().map(|v| v.model.as_str()).collect();
    let mut claimed = BTreeSet::new();
    for version in known.versions {
        let mut at = |path: String, message: String| {
            problems.push(ReferenceProblem {
                kind: "ModelVersion",
                name: version.name.clone(),
                problem: FieldProblem::new(path, message),
            });
        };
        if !pools().any(|pool| pool == version.pool) {
            let message = missing("GpuPool", &version.pool, pools());
            at("spec.pool".to_owned(), message);
        }
        for (index, model) in version.fallback.iter().enumerate() {
            if !models.contains(model.as_str()) {
                let message = missing("model", model, models.iter().copied());
                at(format!("spec.fallback[{index}]"), message);
            }
        }
        if !claimed.insert((&version.model, version.version)) {
            at(
                "spec.version".to_owned(),
                format!(
                    "another ModelVersion already is version {} of \"{}\": use a higher number",
                    version.version, version.model
                ),
            );
        }
    }
}

fn quotas(known: Known<'_>, problems: &mut Vec<ReferenceProblem>) {
    let models: BTreeSet<&str> = known.versions.iter().map(|v| v.model.as_str()).collect();
    let mut tenants = BTreeSet::new();
    for quota in known.quotas {
        let mut at = |path: &str, message: String| {
            problems.push(ReferenceProblem {
                kind: "TenantQuota",
                name: quota.name.clone(),
                problem: FieldProblem::new(path, message),
            });
        };
        for model in quota.models.keys() {
            if !models.contains(model.as_str()) {
                let message = missing("model", model, models.iter().copied());
                at("spec.models", message);
            }
        }
        for key in &quota.keys {
            let place = (key.secret.clone(), key.entry.clone());
            if !known.secret_entries.contains(&place) {
                let message = format!(
                    "key \"{}\" needs Secret \"{}\" with an entry \"{}\": put the hash that `weir key` prints there",
                    key.name, key.secret, key.entry
                );
                at("spec.keys", message);
            }
        }
        if !tenants.insert(&quota.tenant) {
            at(
                "spec.tenant",
                format!(
                    "another TenantQuota already is for tenant \"{}\"",
                    quota.tenant
                ),
            );
        }
    }
}

fn missing<'a>(what: &str, name: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    if let Some(near) = did_you_mean(name, known.clone()) {
        return format!("there is no {what} \"{name}\", did you mean \"{near}\"?");
    }
    let names: Vec<&str> = known.collect();
    if names.is_empty() {
        return format!("there is no {what} \"{name}\", and no other either: add one");
    }
    format!(
        "there is no {what} \"{name}\": there are {}",
        names.join(", ")
    )
}
