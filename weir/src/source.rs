//! Where rollouts are seen and steered: the admin port of a `weir up`, or a cluster with the rights of the user's kubeconfig.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args as ClapArgs;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt as _};
use serde_json::{Map, Value, json};
use weir_api::{ANNOTATION_MODEL, ANNOTATION_REQUEST, GpuPool, ModelVersion, TenantQuota};

use crate::client;

/// As what this program is a plugin of kubectl.
const PLUGIN: &str = "kubectl-weir";
/// How long a request may take to be carried out or refused.
const ANSWERED_WITHIN: Duration = Duration::from_secs(15);

/// Where to look.
#[derive(Debug, Default, ClapArgs)]
pub struct Where {
    /// Where the admin port of `weir up` is [default: <http://127.0.0.1:9090>; as kubectl plugin: the cluster].
    #[arg(long, env = "WEIR_ADMIN", global = true)]
    pub admin: Option<String>,
    /// Look at a cluster.
    #[arg(long, global = true, conflicts_with = "admin")]
    pub cluster: bool,
    /// The namespace; the one of the context when absent.
    #[arg(short, long, global = true)]
    pub namespace: Option<String>,
    /// The context of the kubeconfig.
    #[arg(long, global = true)]
    pub context: Option<String>,
    /// The kubeconfig's file; `KUBECONFIG` or the usual place when absent.
    #[arg(long, global = true)]
    pub kubeconfig: Option<std::path::PathBuf>,
}

/// Whether this program was called as kubectl's plugin.
pub fn is_plugin() -> bool {
    let program = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&program).file_stem();
    name.is_some_and(|name| name == PLUGIN || name == "kubectl_weir")
}

/// What was found there.
pub enum Source {
    /// A `weir up`.
    Admin(String),
    /// A namespace of a cluster.
    Cluster {
        /// Its client.
        client: Client,
        /// The namespace.
        namespace: String,
    },
}

impl Where {
    /// Opens it.
    ///
    /// # Errors
    /// The kubeconfig cannot be used.
    pub async fn open(&self) -> Result<Source> {
        if !self.cluster && (self.admin.is_some() || !is_plugin()) {
            let admin = self.admin.as_deref().unwrap_or(client::ADMIN);
            return Ok(Source::Admin(admin.trim_end_matches('/').to_owned()));
        }
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        let config = match &self.kubeconfig {
            Some(path) => {
                let kubeconfig = Kubeconfig::read_from(path);
                let kubeconfig =
                    kubeconfig.with_context(|| format!("reading {}", path.display()))?;
                Config::from_custom_kubeconfig(kubeconfig, &options).await?
            }
            None if self.context.is_some() => Config::from_kubeconfig(&options).await?,
            None => Config::infer().await?,
        };
        let namespace = self.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config)?;
        Ok(Source::Cluster { client, namespace })
    }
}

impl Source {
    /// Versions, pools and quotas with their status.
    ///
    /// # Errors
    /// Nobody answers, or one may not ask.
    pub async fn objects(&self) -> Result<Value> {
        match self {
            Self::Admin(admin) => client::admin(admin).get("/objects").await,
            Self::Cluster { client, namespace } => {
                let mut all = list::<GpuPool>(client, namespace, "GpuPool").await?;
                all.extend(list::<ModelVersion>(client, namespace, "ModelVersion").await?);
                all.extend(list::<TenantQuota>(client, namespace, "TenantQuota").await?);
                Ok(Value::Array(all))
            }
        }
    }

    /// The newest record of every model's rollout.
    ///
    /// # Errors
    /// Nobody answers, or one may not ask.
    pub async fn records(&self) -> Result<Value> {
        let (client, namespace) = match self {
            Self::Admin(admin) => return client::admin(admin).get("/rollouts").await,
            Self::Cluster { client, namespace } => (client, namespace),
        };
        let api: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace);
        let of_rollouts = ListParams::default().labels("weir.dev/log=rollout");
        let found = api.list(&of_rollouts).await;
        let found = found.context("cannot list the records of rollouts (controllerrevisions)")?;
        let mut newest: BTreeMap<String, Value> = BTreeMap::new();
        let place = |record: &Value| {
            let stamp = &record["stamp"];
            (stamp["epoch"].as_u64(), stamp["revision"].as_u64())
        };
        for revision in found.items {
            let model = revision.annotations().get(ANNOTATION_MODEL).cloned();
            let Some((model, data)) = model.zip(revision.data) else {
                continue;
            };
            let known = newest.get(&model).map(place);
            if known.is_none_or(|known| known < place(&data.0)) {
                newest.insert(model, data.0);
            }
        }
        Ok(Value::Object(newest.into_iter().collect::<Map<_, _>>()))
    }

    /// Asks for something; what became of it, a line each.
    ///
    /// # Errors
    /// It was refused, or nobody took it up.
    pub async fn ask(&self, request: &Value) -> Result<Vec<String>> {
        match self {
            Self::Admin(admin) => {
                let server = client::admin(admin);
                let answer = server.send("POST", "/rollouts", Some(request)).await?;
                let answer: Value =
                    serde_json::from_str(&client::text(answer).await?).unwrap_or(Value::Null);
                let lines = answer.as_array().into_iter().flatten();
                Ok(lines
                    .map(|line| line.as_str().unwrap_or_default().to_owned())
                    .collect())
            }
            Self::Cluster { client, namespace } => annotate(client, namespace, request).await,
        }
    }
}

async fn list<K>(client: &Client, namespace: &str, kind: &str) -> Result<Vec<Value>>
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + serde::de::DeserializeOwned
        + serde::Serialize
        + std::fmt::Debug,
{
    let found = Api::<K>::namespaced(client.clone(), namespace)
        .list(&ListParams::default())
        .await;
    let found =
        found.with_context(|| format!("cannot list {kind} objects in namespace {namespace:?}"))?;
    let whole = |object: K| {
        let mut whole = serde_json::to_value(object)?;
        whole["apiVersion"] = json!(weir_api::API_VERSION);
        whole["kind"] = json!(kind);
        Ok(whole)
    };
    found.items.into_iter().map(whole).collect()
}

/// Puts the request where the operator finds it, and waits for what becomes of it.
async fn annotate(client: &Client, namespace: &str, request: &Value) -> Result<Vec<String>> {
    let (model, version) = (&request["model"], &request["version"]);
    let api: Api<ModelVersion> = Api::namespaced(client.clone(), namespace);
    let all = api.list(&ListParams::default()).await?.items;
    let of_model = || all.iter().filter(|object| *model == object.spec.model);
    let about = of_model().find(|object| *version == object.spec.version);
    let object = about.or_else(|| of_model().next());
    let object = object.with_context(|| format!("there is no ModelVersion of model {model}"))?;
    let mut written = request.clone();
    if let Some(fields) = written.as_object_mut() {
        fields.remove("model");
    }
    let patch = json!({"metadata": {"annotations": {ANNOTATION_REQUEST: written.to_string()}}});
    let params = PatchParams {
        field_manager: Some(PLUGIN.to_owned()),
        ..PatchParams::default()
    };
    api.patch(&object.name_any(), &params, &Patch::Merge(&patch))
        .await?;
    let id = request["id"].as_str().unwrap_or_default();
    let name = model.as_str().unwrap_or_default();
    let until = Instant::now() + ANSWERED_WITHIN;
    let source = Source::Cluster {
        client: client.clone(),
        namespace: namespace.to_owned(),
    };
    loop {
        let records = source.records().await?;
        let handled = records[name]["handledRequests"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        if handled.iter().any(|known| known == id) {
            break;
        }
        if Instant::now() > until {
            bail!(
                "the operator has not taken it up; is one running? `kubectl get lease weir-operator` says who leads"
            );
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    // A refusal is told in an event, which comes right after the record.
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    for _ in 0..4 {
        let told = events.list(&ListParams::default()).await?;
        let note = |event: &Event| event.note.clone().filter(|note| note.contains(id));
        if let Some(refusal) = told.items.iter().find_map(note) {
            bail!("{refusal}");
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    let action = request["action"].as_str().unwrap_or_default();
    Ok(vec![format!(
        "{name} version {version}: {action}: carried out"
    )])
}
