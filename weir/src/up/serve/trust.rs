//! Which versions may serve: the trust policy in force, and the verdicts under it.

use weir_api::ModelVersion;
use weir_manifest::TrustPolicySpec;

use super::Serving;
use crate::up::catalog::Entry;
use crate::up::problem::Problem;
use crate::up::verify::Verified;

impl Serving {
    /// A policy that is wrong changes nothing, like every other object that is wrong; one that is deleted trusts nobody.
    pub(super) fn read_trust(&mut self, problems: &mut Vec<Problem>) {
        let Some((file, entries)) = &self.catalog.trust else {
            problems.push(Problem::in_file(
                &self.dir,
                "holds no ConfigMap \"weir-trust\", so no signature is trusted: add one with the public keys that may sign",
            ));
            if self.trust != TrustPolicySpec::default() {
                self.gateway.note_setting(
                    "TrustPolicy weir-trust",
                    policy_shown(&TrustPolicySpec::default()),
                );
            }
            self.trust = TrustPolicySpec::default();
            return;
        };
        let spec = TrustPolicySpec::from_config_map(entries)
            .and_then(|spec| weir_manifest::TrustPolicy::new(spec.clone()).map(|_| spec));
        match spec {
            Ok(spec) if spec == self.trust => {}
            Ok(spec) => {
                self.gateway
                    .note_setting("TrustPolicy weir-trust", policy_shown(&spec));
                self.trust = spec;
            }
            Err(error) => {
                let error = anyhow::Error::from(error);
                problems.push(Problem::in_file(
                    file,
                    format!("ConfigMap \"weir-trust\": {error:#}; the last policy that was right stays in force"),
                ));
            }
        }
    }

    pub(super) async fn verify(&mut self) {
        self.verdicts
            .retain(|name, _| self.catalog.versions.contains_key(name));
        self.verifier
            .retain(|name| self.catalog.versions.contains_key(name));
        self.fetches
            .retain(|name| self.catalog.versions.contains_key(name));
        let versions = &self.catalog.versions;
        let is_adapter = |entry: &&Entry<ModelVersion>| entry.valid.manifest.adapter_of.is_some();
        // An adapter's verdict rests on its base's.
        let models = versions.values().filter(|entry| !is_adapter(entry));
        for entry in models.chain(versions.values().filter(is_adapter)) {
            let verdicts = self.verdicts.values();
            let mut known: Vec<&Verified> = verdicts.filter_map(|v| v.as_ref().ok()).collect();
            // What serves although its object is gone has been verified too.
            known.extend(self.placed.values().map(|placed| &placed.verified));
            let verdict = self
                .verifier
                .verdict(entry, &self.trust, &mut self.fetches, &known)
                .await;
            self.verdicts.insert(entry.valid.name.clone(), verdict);
        }
    }

    /// Versions that may not serve, each with the file or key at fault.
    pub(super) fn unverified(&self) -> Vec<Problem> {
        let verdicts = self.verdicts.iter();
        let at_fault = verdicts.filter_map(|(name, verdict)| {
            let entry = self.catalog.versions.get(name)?;
            let unverified = verdict.as_ref().err()?;
            if unverified.is_on_its_way() {
                return None;
            }
            let text = format!("{}: {}", unverified.reason, unverified.message);
            Some(entry.source.problem("spec.signature", text))
        });
        at_fault.collect()
    }
}

/// By the names of keys and roots, for the audit log. Public keys and certificates are no secrets.
fn policy_shown(spec: &TrustPolicySpec) -> serde_json::Value {
    let named = |list: &serde_json::Value| {
        let entries = list.as_array().into_iter().flatten();
        let entries = entries.map(|entry| {
            (
                entry["id"].as_str().unwrap_or_default().to_owned(),
                entry.clone(),
            )
        });
        serde_json::Value::Object(entries.collect())
    };
    let spec = serde_json::to_value(spec).unwrap_or_default();
    serde_json::json!({"keys": named(&spec["keys"]), "roots": named(&spec["roots"])})
}
