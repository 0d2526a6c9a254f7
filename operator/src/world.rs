//! What the API server has, kept up to date by watches, and what each change makes worth a look.
//!
//! Nothing here is proof: a cache may be behind. What destroys or decides is therefore checked again by the write itself.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Instant;

use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::reflector::{Store, store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt as _};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;
use weir_api::{
    ANNOTATION_MODEL, GpuPool, LABEL_COMPONENT, LABEL_MANAGED_BY, LABEL_POOL, LABEL_SHARING,
    MANAGER, ModelVersion, TenantQuota,
};

use crate::log;
use crate::names;
use crate::queue::Queue;

/// The ConfigMap with the trust policy.
pub const TRUST: &str = "weir-trust";

/// What can be looked at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A pool, by its name.
    Pool(String),
    /// A model, by the name that clients use: all its versions together.
    Model(String),
    /// A quota, by its object's name.
    Quota(String),
}

/// What is to be looked at. Cloning shares it. Its bound is the number of objects: a key is in it once.
#[derive(Clone, Debug, Default)]
pub struct Agenda(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    queue: Mutex<Queue<Key>>,
    changed: Notify,
}

impl Agenda {
    /// Something happened to it.
    pub fn touch(&self, key: Key) {
        self.0.queue.lock().touch(key, Instant::now());
        self.0.changed.notify_one();
    }

    /// The queue, for whoever works it off.
    pub fn with<T>(&self, work: impl FnOnce(&mut Queue<Key>) -> T) -> T {
        work(&mut self.0.queue.lock())
    }

    /// Waits for the next touch.
    pub async fn changed(&self) {
        self.0.changed.notified().await;
    }
}

/// Children by kind, those of this operator only.
#[derive(Clone)]
pub struct ChildStores {
    /// Plans.
    pub plans: Store<ConfigMap>,
    /// Who may talk to workers.
    pub policies: Store<NetworkPolicy>,
    /// Names of workers.
    pub services: Store<Service>,
    /// What maintenance may take away.
    pub disruptions: Store<PodDisruptionBudget>,
    /// Workers.
    pub deployments: Store<Deployment>,
}

/// Everything that is watched, in one namespace.
#[derive(Clone)]
pub struct World {
    /// Versions.
    pub versions: Store<ModelVersion>,
    /// Pools.
    pub pools: Store<GpuPool>,
    /// Quotas.
    pub quotas: Store<TenantQuota>,
    /// Records of rollouts.
    pub revisions: Store<ControllerRevision>,
    /// Workers and gateways.
    pub pods: Store<Pod>,
    /// The trust policy, if there is one.
    pub trust: Store<ConfigMap>,
    /// Who exchanges replicas in which pool.
    pub leases: Store<Lease>,
    /// What this operator made.
    pub children: ChildStores,
    /// What changes put down.
    pub agenda: Agenda,
}

/// Starts the watches.
#[derive(Clone)]
struct Watch<'a> {
    client: &'a Client,
    namespace: &'a str,
    tasks: &'a TaskTracker,
}

impl World {
    /// Starts watching; what is known at first comes in by and by.
    pub fn watch(client: &Client, namespace: &str, tasks: &TaskTracker) -> Self {
        let agenda = Agenda::default();
        let watch = Watch {
            client,
            namespace,
            tasks,
        };
        let of_managed =
            || watcher::Config::default().labels(&format!("{LABEL_MANAGED_BY}={MANAGER}"));
        let parts = format!(
            "{LABEL_COMPONENT} in ({},{})",
            names::WORKER,
            names::GATEWAY
        );
        let (versions, versions_writer) = store();
        let (pools, pools_writer) = store();
        let world = Self {
            quotas: watch.start(watcher::Config::default(), touch_quota(&agenda)),
            revisions: watch.start(
                watcher::Config::default().labels(&format!("{}={}", log::LABEL_LOG, log::ROLLOUT)),
                touch_model(&agenda),
            ),
            pods: watch.start(
                watcher::Config::default().labels(&parts),
                touch_pod(&agenda, &versions),
            ),
            trust: watch.start(
                watcher::Config::default().fields(&format!("metadata.name={TRUST}")),
                touch_all(&agenda, &versions),
            ),
            leases: watch.start(of_managed(), touch_pool_models(&agenda, &versions)),
            children: ChildStores {
                plans: watch.start(of_managed(), touch_model(&agenda)),
                policies: watch.start(of_managed(), touch_model(&agenda)),
                services: watch.start(of_managed(), touch_model(&agenda)),
                disruptions: watch.start(of_managed(), touch_model(&agenda)),
                deployments: watch.start(of_managed(), touch_model(&agenda)),
            },
            versions: versions.clone(),
            pools,
            agenda: agenda.clone(),
        };
        let touched = agenda.clone();
        watch.fill(
            watcher::Config::default(),
            versions_writer,
            move |version: &ModelVersion| {
                touched.touch(Key::Model(version.spec.model.clone()));
                touched.touch(Key::Pool(version.spec.pool.clone()));
            },
        );
        watch.fill(
            watcher::Config::default(),
            pools_writer,
            move |pool: &GpuPool| {
                agenda.touch(Key::Pool(pool.name_any()));
                for model in models_of(&versions, &pool.name_any()) {
                    agenda.touch(Key::Model(model));
                }
            },
        );
        world
    }

    /// Waits until everything was listed once.
    ///
    /// # Errors
    /// A watch ended, which it never does by itself.
    pub async fn ready(&self) -> Result<(), kube::runtime::reflector::store::WriterDropped> {
        self.versions.wait_until_ready().await?;
        self.pools.wait_until_ready().await?;
        self.quotas.wait_until_ready().await?;
        self.revisions.wait_until_ready().await?;
        self.pods.wait_until_ready().await?;
        self.trust.wait_until_ready().await?;
        self.leases.wait_until_ready().await?;
        let ChildStores {
            plans,
            policies,
            services,
            disruptions,
            deployments,
        } = &self.children;
        plans.wait_until_ready().await?;
        policies.wait_until_ready().await?;
        services.wait_until_ready().await?;
        disruptions.wait_until_ready().await?;
        deployments.wait_until_ready().await
    }

    /// Everything there is to look at.
    pub fn touch_everything(&self) {
        for version in self.versions.state() {
            self.agenda.touch(Key::Model(version.spec.model.clone()));
        }
        for child in self.children.deployments.state() {
            touch_child(&self.agenda, child.meta());
        }
        for plan in self.children.plans.state() {
            touch_child(&self.agenda, plan.meta());
        }
        for revision in self.revisions.state() {
            if let Some(model) = revision.annotations().get(ANNOTATION_MODEL) {
                self.agenda.touch(Key::Model(model.clone()));
            }
        }
        for pool in self.pools.state() {
            self.agenda.touch(Key::Pool(pool.name_any()));
        }
        for quota in self.quotas.state() {
            self.agenda.touch(Key::Quota(quota.name_any()));
        }
    }
}

/// Whose child it is, whether or not those have objects of their own any more.
fn touch_child(agenda: &Agenda, meta: &ObjectMeta) {
    if let Some((model, _)) = names::version_of(meta) {
        agenda.touch(Key::Model(model));
    }
    let labels = meta.labels.as_ref();
    if let Some(pool) = labels.and_then(|labels| labels.get(LABEL_POOL)) {
        agenda.touch(Key::Pool(pool.clone()));
    }
}

fn models_of(versions: &Store<ModelVersion>, pool: &str) -> BTreeSet<String> {
    let all = versions.state();
    let of_pool = all.iter().filter(|version| version.spec.pool == pool);
    of_pool.map(|version| version.spec.model.clone()).collect()
}

fn touch_model<K: Resource>(agenda: &Agenda) -> impl Fn(&K) + Send + 'static {
    let agenda = agenda.clone();
    move |object: &K| {
        let meta = object.meta();
        let model = meta
            .annotations
            .as_ref()
            .and_then(|a| a.get(ANNOTATION_MODEL));
        if let Some(model) = model {
            agenda.touch(Key::Model(model.clone()));
        }
        if let Some(pool) = meta
            .labels
            .as_ref()
            .and_then(|labels| labels.get(LABEL_POOL))
        {
            agenda.touch(Key::Pool(pool.clone()));
        }
    }
}

/// A worker that holds several versions is no model's own.
fn touch_pod(agenda: &Agenda, versions: &Store<ModelVersion>) -> impl Fn(&Pod) + Send + 'static {
    let (of_model, agenda, versions) = (touch_model(agenda), agenda.clone(), versions.clone());
    move |pod: &Pod| {
        of_model(pod);
        let pool = pod.labels().get(LABEL_POOL);
        if let Some(pool) = pool.filter(|_| pod.labels().contains_key(LABEL_SHARING)) {
            for model in models_of(&versions, pool) {
                agenda.touch(Key::Model(model));
            }
        }
    }
}

fn touch_quota(agenda: &Agenda) -> impl Fn(&TenantQuota) + Send + 'static {
    let agenda = agenda.clone();
    move |quota: &TenantQuota| agenda.touch(Key::Quota(quota.name_any()))
}

fn touch_all(
    agenda: &Agenda,
    versions: &Store<ModelVersion>,
) -> impl Fn(&ConfigMap) + Send + 'static {
    let (agenda, versions) = (agenda.clone(), versions.clone());
    move |_| {
        for version in versions.state() {
            agenda.touch(Key::Model(version.spec.model.clone()));
        }
    }
}

fn touch_pool_models(
    agenda: &Agenda,
    versions: &Store<ModelVersion>,
) -> impl Fn(&Lease) + Send + 'static {
    let (agenda, versions) = (agenda.clone(), versions.clone());
    move |lease| {
        let pool = lease.labels().get(LABEL_POOL).cloned().unwrap_or_default();
        for model in models_of(&versions, &pool) {
            agenda.touch(Key::Model(model));
        }
    }
}

impl Watch<'_> {
    fn start<K>(&self, config: watcher::Config, touch: impl Fn(&K) + Send + 'static) -> Store<K>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + Sync
            + 'static,
    {
        let (reader, writer) = store();
        self.fill(config, writer, touch);
        reader
    }

    fn fill<K>(
        &self,
        config: watcher::Config,
        writer: kube::runtime::reflector::store::Writer<K>,
        touch: impl Fn(&K) + Send + 'static,
    ) where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + Sync
            + 'static,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), self.namespace);
        let stream = watcher(api, config)
            .modify(|object| object.managed_fields_mut().clear())
            .default_backoff()
            .reflect(writer);
        self.tasks.spawn(async move {
            let mut stream = std::pin::pin!(stream);
            while let Some(event) = stream.next().await {
                match event {
                    Ok(
                        watcher::Event::Apply(object)
                        | watcher::Event::InitApply(object)
                        | watcher::Event::Delete(object),
                    ) => touch(&object),
                    Ok(watcher::Event::Init | watcher::Event::InitDone) => {}
                    Err(error) => tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "a watch was cut; it begins again"
                    ),
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn workers_of_a_pool_whose_object_is_gone_are_looked_at_by_their_pool() {
        let agenda = Agenda::default();
        let meta = ObjectMeta {
            labels: Some([(LABEL_POOL.to_owned(), "small".to_owned())].into()),
            ..ObjectMeta::default()
        };
        touch_child(&agenda, &meta);
        let due = agenda.with(|queue| queue.take(Instant::now() + Duration::from_mins(1), 9));
        assert_eq!(due, [Key::Pool("small".to_owned())]);
    }
}
