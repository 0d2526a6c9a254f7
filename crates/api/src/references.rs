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
        if let Some(webhook) = &quota.webhook {
            let secret = &webhook.secret_ref;
            if !known
                .secret_entries
                .contains(&(secret.name.clone(), secret.key.clone()))
            {
                let message = format!(
                    "the webhook needs Secret \"{}\" with an entry \"{}\": put the secret there that signs its alerts",
                    secret.name, secret.key
                );
                at("spec.alerts.webhook.secretRef", message);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::{pool, quota, version};
    use crate::{GpuPool, ModelVersion, TenantQuota, Validate, parse};

    fn texts(
        versions: &[ValidModelVersion],
        pools: &[ValidGpuPool],
        quotas: &[ValidTenantQuota],
        entries: &[(&str, &str)],
    ) -> Vec<String> {
        let owned = |(secret, entry): &(&str, &str)| ((*secret).to_owned(), (*entry).to_owned());
        let secret_entries = entries.iter().map(owned).collect();
        let known = Known {
            versions,
            pools,
            quotas,
            secret_entries: &secret_entries,
        };
        let problems = dangling_references(known);
        let text = |p: &ReferenceProblem| format!("{} {} {}", p.kind, p.name, p.problem);
        problems.iter().map(text).collect()
    }

    #[test]
    fn references_that_lead_nowhere_are_named_with_a_remedy() {
        let valid_version = parse::<ModelVersion>(&version())
            .unwrap()
            .validate()
            .unwrap();
        let valid_pool = parse::<GpuPool>(&pool()).unwrap().validate().unwrap();
        let valid_quota = parse::<TenantQuota>(&quota()).unwrap().validate().unwrap();
        let entry = [("acme-keys", "ci")];
        let versions = [valid_version.clone()];
        let pools = [valid_pool];
        let quotas = [valid_quota.clone()];
        assert_eq!(texts(&versions, &pools, &quotas, &entry), [""; 0]);

        let mut stray = valid_version.clone();
        stray.pool = "smal".to_owned();
        stray.fallback = vec!["nobody".to_owned()];
        let found = texts(&[stray], &pools, &[], &[]);
        assert_eq!(
            found[0],
            "ModelVersion tiny-chat-v2 spec.pool: there is no GpuPool \"smal\", did you mean \"small\"?"
        );
        assert_eq!(
            found[1],
            "ModelVersion tiny-chat-v2 spec.fallback[0]: there is no model \"nobody\": there are tiny-chat"
        );

        let found = texts(&[], &pools, &quotas, &[]);
        assert!(
            found[0].contains("spec.models: there is no model \"tiny-chat\", and no other either"),
            "{found:?}"
        );
        assert!(
            found[1].contains("key \"ci\" needs Secret \"acme-keys\" with an entry \"ci\""),
            "{found:?}"
        );

        let twice = [valid_version.clone(), valid_version];
        let found = texts(&twice, &pools, &[valid_quota.clone(), valid_quota], &entry);
        assert!(
            found[0].contains("another ModelVersion already is version 2"),
            "{found:?}"
        );
        assert!(
            found[1].contains("another TenantQuota already is for tenant"),
            "{found:?}"
        );
        assert_eq!(found.len(), 2);
    }
}
