//! A gateway in a cluster: what it serves comes from the API server, watched; which version takes which share comes from the newest record
//! of each rollout, or from the operator directly, and is kept on disk before it is applied.
//!
//! It writes nothing to the API server, and goes on with what it has while that is away.

mod assemble;
mod book;
mod elsewhere;
mod objects;
mod texts;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::runtime::reflector::Store;
use kube::runtime::watcher;
use kube::{Api, Client, Config, ResourceExt as _};
use parking_lot::Mutex;
use serde::Deserialize;
use tokio::sync::Notify;
use weir_api::{
    GpuPool, LABEL_COMPONENT, LABEL_MANAGED_BY, MANAGER, TenantQuota, ValidTenantQuota,
    Validate as _,
};
use weir_rollout::routing::{Table, TableOrder};
use weir_telemetry::Readiness;
use weir_telemetry::admin::Action;

use self::book::Book;
use self::elsewhere::Place;
use self::texts::Texts;
use self::watch::Watch;
use crate::gateway::Gateway;
use crate::observed::Reads;
use crate::settings::Settings;

/// Changes that come together are one snapshot.
const GATHER: Duration = Duration::from_millis(20);
/// How often Secrets are read: they are not watched, so that one that nobody names is never seen.
const SECRETS_EVERY: Duration = Duration::from_secs(10);
/// How long reading them may take: an API server that hangs must hold up nothing else.
const SECRETS_WITHIN: Duration = Duration::from_secs(5);
/// How long whoever hands a table over waits until it is in force; he asks later where it takes longer.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(1);
/// How long a gateway that starts waits for the texts of versions that are elsewhere, before it takes part without them.
const FIRST_TEXTS: Duration = Duration::from_mins(2);
/// The ConfigMap with settings of the whole gateway.
const SETTINGS: &str = "weir-gateway";

/// Why a gateway cannot follow its cluster.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// No kubeconfig and no pod.
    #[error(
        "there is no cluster to follow: set KUBECONFIG, or run in a pod with a service account"
    )]
    Config(#[source] Box<kube::config::InferConfigError>),
    /// The client cannot be made.
    #[error("cannot make a client of the API server")]
    Client(#[source] Box<kube::Error>),
    /// The folder for tables.
    #[error("cannot keep routing tables")]
    Book(#[source] io::Error),
}

/// A cluster that is followed. Cloning shares it.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Inner>);

struct Inner {
    client: Client,
    namespace: String,
    changed: Arc<Notify>,
    /// Something was applied.
    applied: Notify,
    pools: Store<GpuPool>,
    quotas: Store<TenantQuota>,
    plans: Store<ConfigMap>,
    settings: Store<ConfigMap>,
    revisions: Store<ControllerRevision>,
    pods: Store<Pod>,
    book: Book,
    texts: Texts,
    secrets: Mutex<BTreeMap<String, BTreeMap<String, String>>>,
    ready: Mutex<BTreeSet<String>>,
    in_force: Mutex<Settings>,
}

/// A table that the operator hands over.
#[derive(Deserialize)]
struct Pushed {
    model: String,
    table: Table,
}

impl Cluster {
    /// Begins to watch a namespace; that of the kubeconfig or of the pod where none is given.
    pub(crate) async fn open(namespace: Option<String>, data: &Path) -> Result<Self, ClusterError> {
        let config = Config::infer()
            .await
            .map_err(|error| ClusterError::Config(Box::new(error)))?;
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let client =
            Client::try_from(config).map_err(|error| ClusterError::Client(Box::new(error)))?;
        let changed = Arc::new(Notify::new());
        let all = watcher::Config::default;
        let place = Place {
            folder: data.join("models"),
            client: client.clone(),
            namespace: namespace.clone(),
        };
        let watch = Watch {
            client: &client,
            namespace: &namespace,
            changed: &changed,
        };
        Ok(Self(Arc::new(Inner {
            pools: watch.start(all()),
            quotas: watch.start(all()),
            plans: watch.start(all().labels(&format!("{LABEL_MANAGED_BY}={MANAGER}"))),
            settings: watch.start(all().fields(&format!("metadata.name={SETTINGS}"))),
            revisions: watch.start(all().labels("weir.dev/log=rollout")),
            pods: watch.start(all().labels(&format!("{LABEL_COMPONENT}=worker"))),
            book: Book::open(&data.join("routing")).map_err(ClusterError::Book)?,
            texts: Texts::new(place, Arc::clone(&changed)),
            secrets: Mutex::default(),
            ready: Mutex::default(),
            in_force: Mutex::default(),
            changed: Arc::clone(&changed),
            applied: Notify::new(),
            namespace: namespace.clone(),
            client: client.clone(),
        })))
    }

    /// Whether this gateway can make prompts for a version.
    pub(crate) fn reads(&self) -> Reads {
        let this = self.clone();
        Arc::new(move |digest| this.0.texts.has(digest))
    }

    /// What the operator may hand over: tables, by `POST /tables`. The answer comes when the table is in force.
    pub(crate) fn actions(&self, gateway: &Gateway) -> BTreeMap<&'static str, Action> {
        let (this, gateway) = (self.clone(), gateway.clone());
        let push = Action(Arc::new(move |body: Bytes| {
            let (this, gateway) = (this.clone(), gateway.clone());
            Box::pin(async move { this.take(body, &gateway).await })
        }));
        BTreeMap::from([("/tables", push)])
    }

    async fn take(&self, body: Bytes, gateway: &Gateway) -> Result<String, String> {
        let Pushed { model, table } =
            serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        let (this, order, name) = (self.clone(), table.order, model.clone());
        // It is synced to the disk.
        let taken = tokio::task::spawn_blocking(move || this.0.book.offer([(name, table)])).await;
        let is_new = taken
            .map_err(|error| error.to_string())?
            .map_err(|error| error.to_string())?;
        if is_new {
            self.0.changed.notify_one();
        }
        let in_force = self.in_force(gateway, &model, order);
        let is_in_force = tokio::time::timeout(IN_FORCE_WITHIN, in_force)
            .await
            .is_ok();
        Ok(serde_json::json!({"taken": is_new, "inForce": is_in_force}).to_string())
    }

    /// Waits until a table of this order, or a later one, is in force.
    async fn in_force(&self, gateway: &Gateway, model: &str, order: TableOrder) {
        loop {
            let applied = self.0.applied.notified();
            let now = gateway.acknowledged(model);
            if now.is_some_and(|(now, _)| now >= order) {
                return;
            }
            applied.await;
        }
    }

    /// Applies a snapshot whenever something changes, for ever.
    pub(crate) async fn follow(self, gateway: Gateway, readiness: Readiness) {
        self.listed().await;
        self.read_secrets().await;
        tokio::join!(self.keep_secrets(), self.keep_applied(gateway, readiness));
    }

    async fn keep_secrets(&self) {
        loop {
            tokio::time::sleep(SECRETS_EVERY).await;
            self.read_secrets().await;
            self.0.changed.notify_one();
        }
    }

    async fn keep_applied(&self, gateway: Gateway, readiness: Readiness) {
        let (mut basis, begun) = (String::new(), Instant::now());
        let mut first = Some(readiness);
        loop {
            let this = self.clone();
            // Reads tokenizers, hashes them, and syncs tables to the disk.
            let made = tokio::task::spawn_blocking(move || this.snapshot()).await;
            match made {
                Ok(Ok((now, snapshot))) if now != basis => {
                    gateway.apply(snapshot);
                    self.0.applied.notify_waiters();
                    basis = now;
                }
                Ok(Ok(_)) => {}
                Ok(Err(error)) => {
                    tracing::error!(%error, "routing tables cannot be kept, so that none is taken");
                }
                Err(error) => tracing::error!(%error, "a snapshot could not be made"),
            }
            // A gateway that does not know a model yet that others serve would take their place and say that there is none. Others must not
            // wait for ever for one whose files nobody can fetch.
            let has_texts = !self.0.texts.are_coming() || begun.elapsed() > FIRST_TEXTS;
            if !basis.is_empty()
                && has_texts
                && let Some(readiness) = first.take()
            {
                gateway.take_part(readiness);
            }
            let again = if self.0.texts.has_failed() {
                Duration::from_secs(5)
            } else {
                SECRETS_EVERY
            };
            tokio::select! {
                () = self.0.changed.notified() => tokio::time::sleep(GATHER).await,
                () = tokio::time::sleep(again) => {}
            }
        }
    }

    async fn listed(&self) {
        let inner = &self.0;
        // A writer that is gone would mean that its task is: then there is nothing to wait for.
        let _ = inner.pools.wait_until_ready().await;
        let _ = inner.quotas.wait_until_ready().await;
        let _ = inner.plans.wait_until_ready().await;
        let _ = inner.settings.wait_until_ready().await;
        let _ = inner.revisions.wait_until_ready().await;
        let _ = inner.pods.wait_until_ready().await;
    }

    fn quotas(&self) -> Vec<ValidTenantQuota> {
        let quotas = self.0.quotas.state();
        let valid = quotas.iter().filter_map(|quota| match quota.validate() {
            Ok(valid) => Some(valid),
            Err(problems) => {
                tracing::warn!(
                    quota = quota.name_any(),
                    ?problems,
                    "a quota makes no sense and lets nobody in"
                );
                None
            }
        });
        let mut valid: Vec<ValidTenantQuota> = valid.collect();
        valid.sort_by(|one, other| one.name.cmp(&other.name));
        valid.dedup_by(|one, other| one.tenant == other.tenant);
        valid
    }

    /// Reads the Secrets that quotas name; what cannot be read stays as it was.
    async fn read_secrets(&self) {
        let read = tokio::time::timeout(SECRETS_WITHIN, self.read_named_secrets()).await;
        if read.is_err() {
            tracing::warn!("the API server does not answer; keys stay as they were");
        }
    }

    async fn read_named_secrets(&self) {
        let quotas = self.quotas();
        let keys = quotas
            .iter()
            .flat_map(|quota| quota.keys.iter().map(|key| key.secret.clone()));
        let hooks = quotas
            .iter()
            .filter_map(|quota| Some(quota.webhook.as_ref()?.secret_ref.name.clone()));
        let named: BTreeSet<String> = keys.chain(hooks).collect();
        let api: Api<Secret> = Api::namespaced(self.0.client.clone(), &self.0.namespace);
        for name in &named {
            match api.get_opt(name).await {
                Ok(Some(secret)) => {
                    let text = |(key, value): (String, k8s_openapi::ByteString)| {
                        Some((key, String::from_utf8(value.0).ok()?.trim().to_owned()))
                    };
                    let entries = secret
                        .data
                        .unwrap_or_default()
                        .into_iter()
                        .filter_map(text)
                        .collect();
                    self.0.secrets.lock().insert(name.clone(), entries);
                }
                Ok(None) => drop(self.0.secrets.lock().remove(name)),
                Err(error) => tracing::warn!(
                    secret = name,
                    error = &error as &dyn std::error::Error,
                    "a Secret cannot be read; its keys stay as they were"
                ),
            }
        }
        self.0.secrets.lock().retain(|name, _| named.contains(name));
    }
}
