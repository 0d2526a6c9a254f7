//! Writes about versions that workers of a shared pool hold, and about those workers.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::{Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use weir_api::{ANNOTATION_RECORD, ANNOTATION_REPLICAS, ANNOTATION_ROLE};
use weir_rollout::Stamp;

use super::{Applier, ApplyError, Contested, Order, ROLLOUT, SHAPE, failed, is_cached, not_later};
use crate::model::build::Several;
use crate::model::memory::Writes;
use crate::names;
use crate::world::ChildStores;

impl Applier {
    /// Orders that so many of its pool's workers are counted on for a version: after a live read, with the version that was read, never on
    /// behalf of an older record.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub async fn seat(&self, name: &str, order: Order) -> Result<(), ApplyError> {
        let live = self.plan(name).await?;
        let live = live.ok_or_else(|| ApplyError::Unknown(name.to_owned()))?;
        not_later(live.meta(), name, order.stamp)?;
        let is_done = names::replicas_of(live.meta()) == Some(order.replicas);
        if is_done && names::stamp_of(live.meta()) == order.stamp {
            return Ok(());
        }
        let annotations = json!({
            ANNOTATION_RECORD: order.stamp.to_string(),
            ANNOTATION_ROLE: order.role,
            ANNOTATION_REPLICAS: order.replicas.to_string(),
        });
        self.annotate(&live, annotations).await
    }

    /// Says no more that its pool's workers hold a version.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub async fn unseat(&self, name: &str, stamp: Stamp) -> Result<(), ApplyError> {
        let Some(live) = self.plan(name).await? else {
            return Ok(());
        };
        not_later(live.meta(), name, stamp)?;
        if names::replicas_of(live.meta()).is_none() {
            return Ok(());
        }
        self.annotate(&live, json!({})).await
    }

    async fn plan(&self, name: &str) -> Result<Option<ConfigMap>, ApplyError> {
        let live = self.api::<ConfigMap>().get_opt(name).await;
        live.map_err(|error| failed("ConfigMap", name, error))
    }

    async fn annotate(&self, live: &ConfigMap, annotations: Value) -> Result<(), ApplyError> {
        let body = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": live.name_any(), "resourceVersion": live.resource_version(),
                "annotations": annotations,
            },
        });
        let written = self.apply::<ConfigMap>(ROLLOUT, "ConfigMap", &body).await;
        written.map(drop)
    }

    /// Brings a shared pool's children to what they should be, with so many workers; whether anything was written. Plans are replaced as the
    /// version that was read: an operator that slept does not bring back what another one took away.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub async fn shape_pool(
        &self,
        stores: &ChildStores,
        writes: &mut Writes,
        (wanted, replicas): (&Several, u32),
    ) -> Result<bool, ApplyError> {
        let Several { plans, workers } = wanted;
        let is_new = !is_cached(&stores.deployments.state(), &workers.deployment);
        let mut contested = Contested {
            places: Vec::new(),
            writes,
            is_new,
        };
        let before = stores.plans.state();
        let name = plans["metadata"]["name"].as_str();
        let live = before
            .iter()
            .find(|live| live.metadata.name.as_deref() == name);
        let data = live.map(|live| json!(live.data.clone().unwrap_or_default()));
        let is_other = data.as_ref() != Some(&plans["data"]);
        let mut is_written = false;
        // Never put off: what workers hold may hang on it, and as the version that was read it outruns nobody.
        if is_other {
            let mut plans = plans.clone();
            if let Some(live) = live {
                plans["metadata"]["resourceVersion"] = json!(live.resource_version());
            }
            self.apply::<ConfigMap>(SHAPE, "ConfigMap", &plans).await?;
            is_written = true;
        }
        let mut workers = workers.clone();
        workers.deployment["spec"]["replicas"] = json!(replicas);
        self.shape_group(stores, &mut contested, &workers).await?;
        Ok(is_written)
    }

    /// Removes a shared pool's children.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub async fn sweep_pool(&self, stores: &ChildStores, name: &str) -> Result<(), ApplyError> {
        self.fence()?;
        let is_it = |meta: &kube::api::ObjectMeta| meta.name.as_deref() == Some(name);
        if stores.services.find(|live| is_it(live.meta())).is_some() {
            self.delete::<Service>("Service", name).await?;
        }
        if stores.disruptions.find(|live| is_it(live.meta())).is_some() {
            self.delete::<PodDisruptionBudget>("PodDisruptionBudget", name)
                .await?;
        }
        if stores.deployments.find(|live| is_it(live.meta())).is_some() {
            self.delete::<Deployment>("Deployment", name).await?;
        }
        if stores.plans.find(|live| is_it(live.meta())).is_some() {
            self.delete::<ConfigMap>("ConfigMap", name).await?;
        }
        if stores.policies.find(|live| is_it(live.meta())).is_some() {
            self.delete::<NetworkPolicy>("NetworkPolicy", name).await?;
        }
        Ok(())
    }
}
