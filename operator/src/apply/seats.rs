//! Writes about versions that workers of a shared pool hold, and about those workers.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::NamespaceResourceScope;
use kube::runtime::reflector::Store;
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use weir_api::{ANNOTATION_RECORD, ANNOTATION_REPLICAS, ANNOTATION_ROLE};
use weir_rollout::Stamp;

use super::{
    Applier, ApplyError, Contested, Order, ROLLOUT, SHAPE, cached, failed, fenced, gone, not_later,
};
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
        let mut workers = workers.clone();
        let deployments = stores.deployments.state();
        let deployed = cached(&deployments, &workers.deployment);
        let mut contested = Contested {
            places: Vec::new(),
            writes,
            is_new: deployed.is_none(),
        };
        let before = stores.plans.state();
        let live = cached(&before, plans);
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
        workers.deployment["spec"]["replicas"] = json!(replicas);
        // Their number is not ordered by a record: who slept meanwhile does not bring an old one back.
        if let Some(live) = deployed {
            workers.deployment["metadata"]["resourceVersion"] = json!(live.resource_version());
        }
        self.shape_group(stores, &mut contested, &workers).await?;
        Ok(is_written)
    }

    /// Removes a shared pool's children, as they were seen; the plans last, so that a removal that is broken off is found again by them.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub async fn sweep_pool(&self, stores: &ChildStores, name: &str) -> Result<(), ApplyError> {
        self.fence()?;
        self.delete_seen(&stores.services, "Service", name).await?;
        self.delete_seen(&stores.disruptions, "PodDisruptionBudget", name)
            .await?;
        self.delete_seen(&stores.deployments, "Deployment", name)
            .await?;
        self.delete_seen(&stores.policies, "NetworkPolicy", name)
            .await?;
        self.delete_seen(&stores.plans, "ConfigMap", name).await
    }

    /// Removes an object as it was seen, if it was.
    async fn delete_seen<K>(
        &self,
        seen: &Store<K>,
        what: &'static str,
        name: &str,
    ) -> Result<(), ApplyError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let Some(live) = seen.find(|live| live.meta().name.as_deref() == Some(name)) else {
            return Ok(());
        };
        let deleted = self.api::<K>().delete(name, &fenced(live.meta())).await;
        gone(what, name, deleted.map(drop))
    }
}
