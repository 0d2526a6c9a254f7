//! The controller of quotas: gateways enforce them, here is what is told about them.

pub mod status;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use weir_api::{TenantQuota, ValidTenantQuota};

use self::status::{Facts, Keys};
use crate::apply::{Applier, ApplyError};
use crate::gateways::Gateways;
use crate::leader::{Leadership, Role};
use crate::queue::Outcome;
use crate::status::MOVING_EVERY;
use crate::statuses::{Statuses, told};
use crate::verdicts::Verdicts;
use crate::world::World;

/// How often budgets and Secrets are looked at.
const LOOK_EVERY: Duration = MOVING_EVERY;

/// The controller.
pub struct Quotas {
    /// What is watched.
    pub world: World,
    /// What gateways say.
    pub gateways: Gateways,
    /// Writes the status.
    pub applier: Applier,
    /// Whether this operator acts.
    pub leadership: Leadership,
    /// What was told of each.
    pub statuses: Statuses,
    /// What is wrong with each.
    pub verdicts: Verdicts<TenantQuota>,
}

impl Quotas {
    /// Looks at a quota.
    ///
    /// # Errors
    /// Its status cannot be written.
    pub async fn look(&self, name: &str) -> Result<Outcome, ApplyError> {
        if self.leadership.role(Instant::now()) != Role::Leading {
            return Ok(Outcome::Quiet);
        }
        let found = self.world.quotas.state();
        let Some(object) = found.iter().find(|quota| quota.name_any() == name) else {
            self.verdicts.forget(name);
            return Ok(Outcome::Gone);
        };
        let valid = self.verdicts.of(object);
        let (keys, budget) = match &*valid {
            Ok(valid) => (self.keys(valid).await, self.budget(valid).await),
            Err(_) => (Keys::default(), None),
        };
        let models = self.world.versions.state();
        let facts = Facts {
            object,
            valid: (*valid).as_ref().map_err(Vec::as_slice),
            keys,
            budget: budget.as_ref(),
            models: models
                .iter()
                .map(|version| version.spec.model.as_str())
                .collect(),
        };
        let new = status::status(&facts, Timestamp::now());
        let written = self
            .statuses
            .tell(&self.applier, &**object, &object.status, &new)
            .await;
        told(written, LOOK_EVERY)
    }

    /// Which of the keys' hashes are there. Only their presence is looked at: the Secrets are the gateways'.
    async fn keys(&self, valid: &ValidTenantQuota) -> Keys {
        let now = Timestamp::now();
        let mut keys = Keys::default();
        let mut secrets: BTreeMap<&str, Option<Secret>> = BTreeMap::new();
        for key in &valid.keys {
            if !secrets.contains_key(key.secret.as_str()) {
                let found = self.applier.api::<Secret>().get_opt(&key.secret).await;
                let found = found.unwrap_or_else(|error| {
                    tracing::warn!(
                        secret = key.secret,
                        error = &error as &dyn std::error::Error,
                        "a Secret cannot be read"
                    );
                    None
                });
                secrets.insert(&key.secret, found);
            }
            let secret = secrets.get(key.secret.as_str()).and_then(Option::as_ref);
            let has_entry = secret
                .and_then(|secret| secret.data.as_ref())
                .is_some_and(|data| data.contains_key(&key.entry));
            let is_in_force = key.not_after.is_none_or(|end| end > now);
            if !has_entry {
                keys.missing.push(key.name.clone());
            } else if is_in_force {
                keys.active += 1;
            }
        }
        keys
    }

    async fn budget(&self, valid: &ValidTenantQuota) -> Option<serde_json::Value> {
        let periods: Vec<String> = valid
            .windows
            .iter()
            .map(|window| window.period.as_secs().to_string())
            .collect();
        let path = format!(
            "/budget?tenant={}&periods={}",
            valid.tenant,
            periods.join(",")
        );
        match self.gateways.question(&path).await {
            Ok(budget) => Some(budget),
            Err(error) => {
                tracing::debug!(tenant = valid.tenant, error, "no gateway tells the budget");
                None
            }
        }
    }
}
