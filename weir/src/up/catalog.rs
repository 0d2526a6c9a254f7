//! The objects in force: the last good form of each. A new form that is wrong changes nothing but the list of problems.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use base64::Engine as _;
use jiff::Timestamp;
use serde_json::Value;
use weir_api::{
    FieldProblem, GpuPool, Known, ModelVersion, TenantQuota, ValidGpuPool, ValidModelVersion,
    ValidTenantQuota, Validate, check_update, dangling_references, did_you_mean, parse,
};

use super::files::RawObject;
use super::problem::Problem;

/// What `weir up` reads.
const KINDS: [&str; 5] = [
    "ModelVersion",
    "GpuPool",
    "TenantQuota",
    "Secret",
    "ConfigMap",
];

/// An object in force.
#[derive(Clone, Debug)]
pub struct Entry<K: Validate> {
    /// As it was written.
    pub object: K,
    /// Proven.
    pub valid: K::Valid,
    /// Where it stands.
    pub source: RawObject,
    /// Grows with each change of the spec, from 1.
    pub generation: i64,
    /// When it was first seen.
    pub created: Timestamp,
}

/// Entries of a Secret or a ConfigMap.
pub type Entries = BTreeMap<String, String>;

/// All objects in force, by name.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    /// Pools.
    pub pools: BTreeMap<String, Entry<GpuPool>>,
    /// Versions.
    pub versions: BTreeMap<String, Entry<ModelVersion>>,
    /// Quotas.
    pub quotas: BTreeMap<String, Entry<TenantQuota>>,
    /// Secrets: hashes of keys.
    pub secrets: BTreeMap<String, Entries>,
    /// The trust policy's ConfigMap, and where it stands.
    pub trust: Option<(PathBuf, Entries)>,
    /// Settings of the whole gateway: the last ones that could be used. None where none ever could: then nobody is let in, since
    /// policies may be among them.
    pub settings: Option<weir_gateway::Settings>,
    /// The text that was looked at last.
    settings_text: String,
    settings_problem: Option<String>,
}

impl Catalog {
    /// Takes over what is written now; what is wrong with it comes back.
    pub fn update<'a>(
        &mut self,
        written: impl Iterator<Item = &'a RawObject>,
        now: Timestamp,
    ) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut by_kind: BTreeMap<&str, BTreeMap<&str, &RawObject>> = BTreeMap::new();
        for raw in written {
            if let Some(problem) = misfit(raw) {
                problems.push(problem);
                continue;
            }
            if let Some(first) = by_kind
                .entry(raw.kind())
                .or_default()
                .insert(raw.name(), raw)
            {
                problems.push(raw.problem(
                    "metadata.name",
                    format!(
                        "stands a second time; the first one is in {}: remove one",
                        first.file.display()
                    ),
                ));
                by_kind
                    .entry(raw.kind())
                    .or_default()
                    .insert(raw.name(), first);
            }
        }
        let of = |kind: &str| by_kind.get(kind).cloned().unwrap_or_default();
        take_over(&mut self.pools, &of("GpuPool"), now, &mut problems);
        take_over(&mut self.versions, &of("ModelVersion"), now, &mut problems);
        take_over(&mut self.quotas, &of("TenantQuota"), now, &mut problems);
        self.secrets = entries_of(&of("Secret"), &self.secrets, &mut problems);
        let mut maps = entries_of(&of("ConfigMap"), &BTreeMap::new(), &mut problems);
        self.trust = maps
            .remove("weir-trust")
            .map(|entries| (of("ConfigMap")["weir-trust"].file.clone(), entries));
        if let Some(found) = maps.remove("weir-gateway") {
            let raw = of("ConfigMap")["weir-gateway"];
            problems.extend(self.read_settings(&found, raw));
        } else {
            self.settings = Some(weir_gateway::Settings::default());
            (self.settings_text, self.settings_problem) = Default::default();
        }
        problems.extend(self.dangling());
        problems
    }

    /// An entry of a Secret, where it is there.
    pub fn entry(&self, secret: &str, entry: &str) -> Option<&str> {
        self.key_hash(secret, entry)
    }

    /// Takes settings over; what cannot be used changes nothing.
    fn read_settings(&mut self, entries: &Entries, raw: &RawObject) -> Option<Problem> {
        let text = entries.get("settings.yaml").cloned().unwrap_or_default();
        if text != self.settings_text || self.settings.is_none() {
            self.settings_text.clone_from(&text);
            self.settings_problem = match weir_gateway::Settings::from_yaml(&text) {
                Ok(settings) => {
                    self.settings = Some(settings);
                    None
                }
                Err(error) => Some(chain(&error)),
            };
        }
        let message = self.settings_problem.clone()?;
        Some(raw.problem("data.settings.yaml", message))
    }

    /// Hash of the key that a quota names, where its Secret has it.
    pub fn key_hash(&self, secret: &str, entry: &str) -> Option<&str> {
        Some(self.secrets.get(secret)?.get(entry)?.trim())
    }

    fn dangling(&self) -> Vec<Problem> {
        let secret_entries: BTreeSet<(String, String)> = self
            .secrets
            .iter()
            .flat_map(|(secret, entries)| {
                entries.keys().map(|entry| (secret.clone(), entry.clone()))
            })
            .collect();
        let versions: Vec<ValidModelVersion> =
            self.versions.values().map(|e| e.valid.clone()).collect();
        let pools: Vec<ValidGpuPool> = self.pools.values().map(|e| e.valid.clone()).collect();
        let quotas: Vec<ValidTenantQuota> = self.quotas.values().map(|e| e.valid.clone()).collect();
        let known = Known {
            versions: &versions,
            pools: &pools,
            quotas: &quotas,
            secret_entries: &secret_entries,
        };
        let source = |kind: &str, name: &str| match kind {
            "ModelVersion" => self.versions.get(name).map(|e| &e.source),
            _ => self.quotas.get(name).map(|e| &e.source),
        };
        dangling_references(known)
            .into_iter()
            .filter_map(|dangling| Some((source(dangling.kind, &dangling.name)?, dangling.problem)))
            .map(|(source, problem)| field_problem(source, &problem))
            .collect()
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

fn field_problem(raw: &RawObject, problem: &FieldProblem) -> Problem {
    raw.problem(
        problem.path.trim_start_matches('.'),
        problem.message.clone(),
    )
}

/// Why an object is not for `weir up`, if it is not.
fn misfit(raw: &RawObject) -> Option<Problem> {
    let kind = raw.kind();
    if kind.is_empty() {
        return Some(raw.problem(
            "kind",
            format!("is missing; weir up reads {}", KINDS.join(", ")),
        ));
    }
    if !KINDS.contains(&kind) {
        let hint = did_you_mean(kind, KINDS.iter().copied())
            .map(|near| format!(", did you mean {near:?}?"));
        let hint = hint.unwrap_or_else(|| format!("; it reads {}", KINDS.join(", ")));
        return Some(raw.problem("kind", format!("{kind:?} is not read by weir up{hint}")));
    }
    let wanted = if matches!(kind, "Secret" | "ConfigMap") {
        "v1"
    } else {
        weir_api::API_VERSION
    };
    if raw.value["apiVersion"] != wanted {
        return Some(raw.problem(
            "apiVersion",
            format!("is {}, must be {wanted:?}", raw.value["apiVersion"]),
        ));
    }
    raw.name()
        .is_empty()
        .then(|| raw.problem("metadata.name", "is missing: give the object a name"))
}

fn take_over<K: Validate + PartialEq>(
    entries: &mut BTreeMap<String, Entry<K>>,
    written: &BTreeMap<&str, &RawObject>,
    now: Timestamp,
    problems: &mut Vec<Problem>,
) {
    entries.retain(|name, _| written.contains_key(name.as_str()));
    for (&name, &raw) in written {
        let old = entries.get_mut(name);
        match read::<K>(raw, old.as_deref()) {
            Err(found) => problems.extend(found.iter().map(|problem| field_problem(raw, problem))),
            Ok((object, valid)) => {
                let Some(old) = old else {
                    let entry = Entry {
                        object,
                        valid,
                        source: raw.clone(),
                        generation: 1,
                        created: now,
                    };
                    entries.insert(name.to_owned(), entry);
                    continue;
                };
                if old.object != object {
                    old.generation += 1;
                    old.object = object;
                    old.valid = valid;
                }
                old.source = raw.clone();
            }
        }
    }
}

fn read<K: Validate>(
    raw: &RawObject,
    old: Option<&Entry<K>>,
) -> Result<(K, K::Valid), Vec<FieldProblem>> {
    let object: K = parse(&raw.value)?;
    if let Some(old) = old {
        check_update(&object, &old.object)?;
    }
    let valid = object.validate()?;
    Ok((object, valid))
}

/// `data` of ConfigMaps, `stringData` over base64 `data` of Secrets. An entry that is wrong keeps what it had in `old`.
fn entries_of(
    written: &BTreeMap<&str, &RawObject>,
    old: &BTreeMap<String, Entries>,
    problems: &mut Vec<Problem>,
) -> BTreeMap<String, Entries> {
    let mut found = BTreeMap::new();
    for (&name, &raw) in written {
        let mut entries = Entries::new();
        let is_secret = raw.kind() == "Secret";
        let mut take = |field: &str, decode: bool| {
            for (key, value) in raw.value[field].as_object().into_iter().flatten() {
                match text_of(value, decode) {
                    Ok(text) => drop(entries.insert(key.clone(), text)),
                    Err(message) => {
                        problems.push(raw.problem(&format!("{field}.{key}"), message));
                        if let Some(kept) = old.get(name).and_then(|old| old.get(key)) {
                            entries.insert(key.clone(), kept.clone());
                        }
                    }
                }
            }
        };
        take("data", is_secret);
        if is_secret {
            take("stringData", false);
        }
        found.insert(name.to_owned(), entries);
    }
    found
}

fn text_of(value: &Value, decode: bool) -> Result<String, String> {
    let text = value.as_str().ok_or("must be text; quote it")?;
    if !decode {
        return Ok(text.to_owned());
    }
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(text.trim())
        .map_err(|error| format!("is not base64 ({error}); use stringData for plain text"))?;
    String::from_utf8(bytes).map_err(|_| "does not hold text".to_owned())
}

#[cfg(test)]
mod tests;
