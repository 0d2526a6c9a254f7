//! What holds for a whole gateway and is no tenant's: aliases, origins, issuers, policies. Written by people, swapped with the snapshot.

use serde::Deserialize;

use crate::auth::IdentitySpec;
use crate::policy::{Policies, PolicyError, PolicySpec};

/// What people write into the `ConfigMap` `weir-gateway`, entry `settings.yaml`, or into a snapshot file under `settings`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SettingsSpec {
    /// Further names of models.
    pub aliases: Vec<AliasSpec>,
    /// Which pages in browsers may call.
    pub cors: CorsSpec,
    /// Who vouches for callers without an API key.
    pub identity: IdentitySpec,
    /// What may stand in prompts and outputs.
    pub policies: Vec<PolicySpec>,
}

/// A further name of a model.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AliasSpec {
    /// The name that clients may use.
    pub name: String,
    /// The model, or one version of it as `model@2`. Never another alias.
    pub model: String,
}

/// Which pages in browsers may call. None where empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CorsSpec {
    /// Origins as browsers send them, `https://chat.example.com`; `*` for every page. Keys come in a header, never in cookies, so that a
    /// page can only use a key that it has.
    pub origins: Vec<String>,
    /// How long a browser may keep the answer to its preflight; 10 minutes where 0.
    pub max_age_seconds: u32,
}

/// Settings that can be used.
#[derive(Clone, Default)]
pub struct Settings {
    pub(crate) aliases: Vec<AliasSpec>,
    pub(crate) cors: CorsSpec,
    pub(crate) identity: IdentitySpec,
    pub(crate) policies: Policies,
}

/// Why settings were not taken.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// It is not the YAML of settings.
    #[error("the settings cannot be read")]
    Parse(#[source] serde_yaml::Error),
    /// An alias that cannot be used.
    #[error("alias {name:?} {why}")]
    Alias {
        /// Which.
        name: String,
        /// Why not.
        why: &'static str,
    },
    /// An origin that no browser sends.
    #[error("origin {0:?} must be like https://chat.example.com, without a path, or *")]
    Origin(String),
    /// An issuer or a mapping that cannot be used.
    #[error("identity: {0}")]
    Identity(String),
    /// A policy that cannot be used.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings")
            .field("aliases", &self.aliases)
            .finish_non_exhaustive()
    }
}

impl Settings {
    /// Settings from YAML text.
    ///
    /// # Errors
    /// What cannot be read or used first.
    pub fn from_yaml(text: &str) -> Result<Self, SettingsError> {
        let spec: SettingsSpec = serde_yaml::from_str(text).map_err(SettingsError::Parse)?;
        Self::new(spec)
    }

    /// Settings that were checked.
    ///
    /// # Errors
    /// What cannot be used first.
    pub fn new(spec: SettingsSpec) -> Result<Self, SettingsError> {
        check_aliases(&spec.aliases)?;
        if let Some(origin) = spec.cors.origins.iter().find(|origin| !is_origin(origin)) {
            return Err(SettingsError::Origin(origin.clone()));
        }
        spec.identity.check().map_err(SettingsError::Identity)?;
        let policies = Policies::new(&spec.policies)?;
        Ok(Self {
            aliases: spec.aliases,
            cors: spec.cors,
            identity: spec.identity,
            policies,
        })
    }
}

fn check_aliases(aliases: &[AliasSpec]) -> Result<(), SettingsError> {
    for (place, alias) in aliases.iter().enumerate() {
        let refuse = |why| {
            Err(SettingsError::Alias {
                name: alias.name.clone(),
                why,
            })
        };
        if alias.name.is_empty() || alias.name.len() > 96 || alias.name.contains('@') {
            return refuse("must be 1 to 96 characters without @");
        }
        if aliases[..place]
            .iter()
            .any(|other| other.name == alias.name)
        {
            return refuse("stands twice; remove one");
        }
        let target = alias.model.split('@').next().unwrap_or_default();
        if aliases.iter().any(|other| other.name == target) {
            return refuse("names another alias; name the model itself");
        }
    }
    Ok(())
}

fn is_origin(text: &str) -> bool {
    if text == "*" {
        return true;
    }
    let host = ["https://", "http://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme));
    host.is_some_and(|host| {
        let fits =
            |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':' | b'[' | b']');
        !host.is_empty() && host.bytes().all(fits)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_used_is_named() {
        for (yaml, word) in [
            (
                "aliases: [{name: a, model: b}, {name: b, model: c}]",
                "another alias",
            ),
            ("aliases: [{name: a, model: a}]", "another alias"),
            (
                "aliases: [{name: a, model: c}, {name: a, model: d}]",
                "twice",
            ),
            ("cors: {origins: ['https://a.example/']}", "without a path"),
            ("cors: {origin: [x]}", "unknown field"),
            (
                "policies: [{name: p, rules: [{name: r, action: Block}]}]",
                "looks for nothing",
            ),
            (
                "identity: {issuers: [{name: corp, issuer: 'http://idp.example', audiences: [weir], tenants: []}]}",
                "https",
            ),
        ] {
            let error = Settings::from_yaml(yaml).err().unwrap();
            let mut text = error.to_string();
            if let Some(cause) = std::error::Error::source(&error) {
                text = format!("{text}: {cause}");
            }
            assert!(text.contains(word), "{yaml}: {text}");
        }
        Settings::from_yaml("{}").unwrap();
    }
}
