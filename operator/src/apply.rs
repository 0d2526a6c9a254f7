//! The writes. Each is server-side apply under the name of one manager, is refused unless this operator leads, and carries a fence: the
//! version of the object that was read, or its UID.

mod error;

use std::fmt::Debug;
use std::time::Instant;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use weir_api::{ANNOTATION_RECORD, ANNOTATION_ROLE};
use weir_rollout::Stamp;

pub use self::error::ApplyError;
use crate::compare::difference;
use crate::leader::{Leadership, Role};
use crate::model::build::Children;
use crate::model::memory::Memory;
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
        memory: &mut Memory,
        wanted: &Children,
        is_new: bool,
    ) -> Result<Vec<String>, ApplyError> {
        // Taken apart, so that a child that is added cannot be forgotten. The plan comes before the workers that mount it, and who may
        // talk to them before they listen.
        let Children {
            plan,
            policy,
            service,
            disruption,
            deployment,
        } = wanted;
        let mut contested = Vec::new();
        let workers = stores.deployments.state();
        let name = deployment["metadata"]["name"].as_str();
        let workers = workers
            .iter()
            .find(|live| live.metadata.name.as_deref() == name);
        if workers.is_none() && !is_new {
            return Ok(contested);
        }
        let mut due = |place: Option<String>, wanted: &Value| {
            let place = place?;
            let child = format!("{} {}", wanted["kind"], wanted["metadata"]["name"]);
            if is_new || memory.may_apply(&child, Instant::now()) {
                return Some(());
            }
            contested.push(format!(
                "{}{place}",
                wanted["kind"].as_str().unwrap_or_default()
            ));
            None
        };
        let [
            plan_due,
            policy_due,
            service_due,
            disruption_due,
            deployment_due,
        ] = [
            due(missing(&stores.plans.state(), plan), plan),
            due(missing(&stores.policies.state(), policy), policy),
            due(missing(&stores.services.state(), service), service),
            due(missing(&stores.disruptions.state(), disruption), disruption),
            due(missing(&stores.deployments.state(), deployment), deployment),
        ]
        .map(|due| due.is_some());
        if plan_due {
            self.apply::<ConfigMap>(SHAPE, "ConfigMap", plan).await?;
        }
        if policy_due {
            self.apply::<NetworkPolicy>(SHAPE, "NetworkPolicy", policy)
                .await?;
        }
        if service_due {
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
        if disruption_due {
            self.apply::<PodDisruptionBudget>(SHAPE, "PodDisruptionBudget", disruption)
                .await?;
        }
        if deployment_due {
            // By its UID, so that one that is gone although the cache still shows it does not come back.
            let uid = workers.and_then(|live| live.metadata.uid.as_deref());
            self.shape_workers(deployment, uid).await?;
        }
        Ok(contested)
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
        not_later(&live, name, order.stamp)?;
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
        let api = self.api::<Deployment>();
        let live = api
            .get_opt(name)
            .await
            .map_err(|error| failed("Deployment", name, error))?;
        let Some(live) = live else {
            return Ok(());
        };
        not_later(&live, name, stamp)?;
        self.delete::<Service>("Service", name).await?;
        self.delete::<PodDisruptionBudget>("PodDisruptionBudget", name)
            .await?;
        self.delete::<ConfigMap>("ConfigMap", name).await?;
        let fenced = DeleteParams {
            preconditions: Some(Preconditions {
                uid: live.uid(),
                resource_version: live.resource_version(),
            }),
            ..DeleteParams::background()
        };
        gone(
            "Deployment",
            name,
            api.delete(name, &fenced).await.map(drop),
        )?;
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

fn not_later(live: &Deployment, name: &str, mine: Stamp) -> Result<(), ApplyError> {
    let theirs = names::stamp_of(live.meta());
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

/// The first place where the cached object is not as wanted; the whole of it where it is not there.
fn missing<K: Resource + Serialize>(
    cached: &[std::sync::Arc<K>],
    wanted: &Value,
) -> Option<String> {
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
    let Some(live) = cached
        .iter()
        .find(|object| object.meta().name.as_deref() == Some(name))
    else {
        return Some(String::new());
    };
    let mut wanted = wanted.clone();
    // The cache's objects do not say what they are.
    if let Some(fields) = wanted.as_object_mut() {
        fields.retain(|field, _| !matches!(field.as_str(), "apiVersion" | "kind"));
    }
    difference(&wanted, &serde_json::to_value(&**live).unwrap_or_default())
}
