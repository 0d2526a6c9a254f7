//! The writes. Each is server-side apply under the name of one manager, is refused unless this operator leads, and carries a fence: the
//! version of the object that was read, or its UID.

mod due;
mod error;
mod seats;

use std::fmt::Debug;
use std::time::Instant;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use weir_api::{ANNOTATION_RECORD, ANNOTATION_ROLE};
use weir_rollout::Stamp;

use self::due::{Contested, cached, missing};
pub use self::error::ApplyError;
use crate::leader::{Leadership, Role};
use crate::model::build::{Children, Workers};
use crate::model::memory::Writes;
use crate::names;
use crate::world::ChildStores;

/// What children are, but for the number of workers.
const SHAPE: &str = "weir-operator";
/// How many workers there are, and by which record.
const ROLLOUT: &str = "weir-rollout";
/// What is reported.
pub const STATUS: &str = "weir-status";

/// How many workers a version has, and on whose behalf.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// How many.
    pub replicas: u32,
    /// The record that orders it.
    pub stamp: Stamp,
    /// What that record calls the version.
    pub role: &'static str,
}

/// Writes children.
#[derive(Clone)]
pub struct Applier {
    client: Client,
    namespace: String,
    leadership: Leadership,
}

impl Applier {
    /// In one namespace, while this operator leads.
    pub fn new(client: Client, namespace: &str, leadership: Leadership) -> Self {
        Self {
            client,
            namespace: namespace.to_owned(),
            leadership,
        }
    }

    /// Objects of a kind.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Whether this operator may write.
    ///
    /// # Errors
    /// It does not lead.
    pub fn fence(&self) -> Result<(), ApplyError> {
        match self.leadership.role(Instant::now()) {
            Role::Leading => Ok(()),
            Role::Lapsed | Role::Following => Err(ApplyError::NotLeading),
        }
    }

    async fn apply<K>(
        &self,
        manager: &str,
        what: &'static str,
        body: &Value,
    ) -> Result<K, ApplyError>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
        K::DynamicType: Default,
    {
        self.fence()?;
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        let params = PatchParams::apply(manager).force();
        let written = self
            .api::<K>()
            .patch(name, &params, &Patch::Apply(body))
            .await;
        written.map_err(|error| failed(what, name, error))
    }

    /// Brings what children are to what they should be, where they differ; the places that differed. Unless `is_new`, a version without
    /// workers is left alone: only who orders a number of them makes it, or what was swept a moment ago would come back with a worker that
    /// nobody ordered.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub async fn shape(
        &self,
        stores: &ChildStores,
        writes: &mut Writes,
        wanted: &Children,
        is_new: bool,
    ) -> Result<Vec<String>, ApplyError> {
        // Taken apart, so that a child that is added cannot be forgotten.
        let Children { plan, workers } = wanted;
        let mut contested = Contested {
            places: Vec::new(),
            writes,
            is_new,
        };
        let plans = stores.plans.state();
        let is_there = match workers {
            Some(workers) => cached(&stores.deployments.state(), &workers.deployment).is_some(),
            None => cached(&plans, plan).is_some(),
        };
        if !is_there && !is_new {
            return Ok(contested.places);
        }
        // The plan comes before the workers that mount it.
        if contested.is_due(missing(&plans, plan), plan) {
            self.apply::<ConfigMap>(SHAPE, "ConfigMap", plan).await?;
        }
        if let Some(workers) = workers {
            self.shape_group(stores, &mut contested, workers).await?;
        }
        Ok(contested.places)
    }

    /// Brings workers and what goes with them to what they should be; who may talk to them comes before they listen.
    async fn shape_group(
        &self,
        stores: &ChildStores,
        contested: &mut Contested<'_>,
        workers: &Workers,
    ) -> Result<(), ApplyError> {
        let Workers {
            policy,
            service,
            disruption,
            deployment,
        } = workers;
        if contested.is_due(missing(&stores.policies.state(), policy), policy) {
            self.apply::<NetworkPolicy>(SHAPE, "NetworkPolicy", policy)
                .await?;
        }
        if contested.is_due(missing(&stores.services.state(), service), service) {
            let applied = self.apply::<Service>(SHAPE, "Service", service).await;
            if let Err(ApplyError::Write { source, name, .. }) = &applied
                && matches!(&**source, kube::Error::Api(status) if status.code == 422)
            {
                // Another manager changed what names a port: no apply can mend that. No run goes by this name.
                self.delete::<Service>("Service", name).await?;
            } else {
                applied?;
            }
        }
        let due = missing(&stores.disruptions.state(), disruption);
        if contested.is_due(due, disruption) {
            self.apply::<PodDisruptionBudget>(SHAPE, "PodDisruptionBudget", disruption)
                .await?;
        }
        let live = stores.deployments.state();
        if contested.is_due(missing(&live, deployment), deployment) {
            // By its UID, so that one that is gone although the cache still shows it does not come back.
            let live = cached(&live, deployment);
            let uid = live.and_then(|live| live.metadata.uid.as_deref());
            self.shape_workers(deployment, uid).await?;
        }
        Ok(())
    }

    /// Without a number: a new one has one worker, which is never more than was ordered, and one that exists keeps its own.
    async fn shape_workers(&self, deployment: &Value, uid: Option<&str>) -> Result<(), ApplyError> {
        let mut deployment = deployment.clone();
        if let Some(uid) = uid {
            deployment["metadata"]["uid"] = json!(uid);
        }
        self.apply::<Deployment>(SHAPE, "Deployment", &deployment)
            .await
            .map(drop)
    }

    /// Orders a number of workers: after a live read, with the version that was read, never on behalf of an older record.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub async fn scale(&self, name: &str, order: Order) -> Result<(), ApplyError> {
        let live = self.api::<Deployment>().get_opt(name).await;
        let live = live.map_err(|error| failed("Deployment", name, error))?;
        let live = live.ok_or_else(|| ApplyError::Unknown(name.to_owned()))?;
        not_later(live.meta(), name, order.stamp)?;
        let replicas = live.spec.as_ref().and_then(|spec| spec.replicas);
        let is_done =
            replicas.is_some_and(|replicas| u32::try_from(replicas) == Ok(order.replicas));
        if is_done && names::stamp_of(live.meta()) == order.stamp {
            // Ordered before; the cache does not show it yet.
            return Ok(());
        }
        let body = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {
                "name": name,
                "resourceVersion": live.resource_version(),
                "annotations": {
                    ANNOTATION_RECORD: order.stamp.to_string(),
                    ANNOTATION_ROLE: order.role,
                },
            },
            "spec": {"replicas": order.replicas},
        });
        self.apply::<Deployment>(ROLLOUT, "Deployment", &body)
            .await?;
        Ok(())
    }

    /// Removes a version's children; the workers last, so that a removal that is broken off is found again by them.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub async fn sweep(&self, name: &str, stamp: Stamp) -> Result<(), ApplyError> {
        self.fence()?;
        let plans = self.api::<ConfigMap>();
        let plan = plans.get_opt(name).await;
        let plan = plan.map_err(|error| failed("ConfigMap", name, error))?;
        if let Some(plan) = &plan {
            not_later(plan.meta(), name, stamp)?;
        }
        self.sweep_workers(name, stamp).await?;
        let Some(plan) = plan else {
            return Ok(());
        };
        let deleted = plans.delete(name, &fenced(plan.meta())).await;
        gone("ConfigMap", name, deleted.map(drop))
    }

    /// Removes the workers that a version has of its own.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub async fn sweep_workers(&self, name: &str, stamp: Stamp) -> Result<(), ApplyError> {
        self.fence()?;
        let api = self.api::<Deployment>();
        let live = api
            .get_opt(name)
            .await
            .map_err(|error| failed("Deployment", name, error))?;
        let Some(live) = live else {
            return Ok(());
        };
        not_later(live.meta(), name, stamp)?;
        self.delete::<Service>("Service", name).await?;
        self.delete::<PodDisruptionBudget>("PodDisruptionBudget", name)
            .await?;
        let deleted = api.delete(name, &fenced(live.meta())).await;
        gone("Deployment", name, deleted.map(drop))?;
        self.delete::<NetworkPolicy>("NetworkPolicy", name).await
    }

    async fn delete<K>(&self, what: &'static str, name: &str) -> Result<(), ApplyError>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
        K::DynamicType: Default,
    {
        let deleted = self
            .api::<K>()
            .delete(name, &DeleteParams::background())
            .await;
        gone(what, name, deleted.map(drop))
    }

    /// Writes a status, under its own manager, of the very object that was read: its UID goes along.
    ///
    /// # Errors
    /// See [`ApplyError`].
    pub async fn status<K>(
        &self,
        object: &K,
        what: &'static str,
        status: &impl Serialize,
    ) -> Result<(), ApplyError>
    where
        K: Resource<Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
        K::DynamicType: Default,
    {
        self.fence()?;
        let name = object.name_any();
        let body = json!({
            "apiVersion": weir_api::API_VERSION, "kind": what,
            "metadata": {"name": name, "uid": object.uid()},
            "status": status,
        });
        let params = PatchParams::apply(STATUS).force();
        let patched = self
            .api::<K>()
            .patch_status(&name, &params, &Patch::Apply(&body))
            .await;
        match patched {
            // It is gone, or another one has its name: there is nobody to tell.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            patched => patched
                .map(drop)
                .map_err(|error| failed(what, &name, error)),
        }
    }
}

/// What only the object that was read is deleted by.
fn fenced(live: &ObjectMeta) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid: live.uid.clone(),
            resource_version: live.resource_version.clone(),
        }),
        ..DeleteParams::background()
    }
}

fn not_later(live: &ObjectMeta, name: &str, mine: Stamp) -> Result<(), ApplyError> {
    let theirs = names::stamp_of(live);
    if theirs > mine {
        let child = name.to_owned();
        return Err(ApplyError::Stale {
            child,
            theirs,
            mine,
        });
    }
    Ok(())
}

fn gone(what: &'static str, name: &str, deleted: kube::Result<()>) -> Result<(), ApplyError> {
    match deleted {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map_err(|error| failed(what, name, error)),
    }
}

fn failed(what: &'static str, name: &str, error: kube::Error) -> ApplyError {
    ApplyError::Write {
        what,
        name: name.to_owned(),
        source: Box::new(error),
    }
}
