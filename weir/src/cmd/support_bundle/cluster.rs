//! What is taken of a cluster: with the rights of who asks, and only what the bundle says of itself. Environments, volumes and commands of
//! pods may hold what somebody put there by hand, so that of a pod only named fields are taken.

use anyhow::{Context as _, Result};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{ListParams, LogParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use super::gather::{Gathered, objects};
use crate::source::Source;

/// Newest events of the namespace.
const EVENTS: usize = 1000;

/// Takes objects, rollouts, deployments, pods, events and ends of logs.
pub(super) async fn gather(source: &Source, lines: usize, gathered: &mut Gathered) {
    let found = source.objects().await;
    gathered.take("objects.json", found.map(|all| objects(&all.to_string())));
    let records = source.records().await;
    gathered.take("rollouts.json", records.map(pretty));
    let Source::Cluster { client, namespace } = source else {
        return;
    };
    let version = client.apiserver_version().await;
    let version = version.map(|version| json!(version));
    gathered.take(
        "cluster/version.json",
        version.map(pretty).map_err(Into::into),
    );
    gathered.take(
        "cluster/deployments.json",
        deployments(client, namespace).await,
    );
    gathered.take("cluster/events.json", events(client, namespace).await);
    match pods(client, namespace).await {
        Ok(all) => {
            gathered.take(
                "cluster/pods.json",
                Ok(pretty(json!(all.iter().map(told).collect::<Vec<_>>()))),
            );
            for pod in &all {
                logs(client, namespace, pod, lines, gathered).await;
            }
        }
        Err(error) => gathered.take("cluster/pods.json", Err(error)),
    }
}

fn pretty(value: impl serde::Serialize) -> String {
    format!("{:#}\n", json!(value))
}

/// Pods that the chart or the operator made.
async fn pods(client: &Client, namespace: &str) -> Result<Vec<Pod>> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let mut all = vec![];
    for labels in [
        "app.kubernetes.io/name=weir",
        "app.kubernetes.io/managed-by=weir-operator",
    ] {
        let found = api.list(&ListParams::default().labels(labels)).await;
        let found =
            found.with_context(|| format!("cannot list pods in namespace {namespace:?}"))?;
        all.extend(found.items);
    }
    all.sort_by_key(kube::ResourceExt::name_any);
    all.dedup_by_key(|pod| pod.name_any());
    Ok(all)
}

/// A pod without what may hold a secret.
fn told(pod: &Pod) -> Value {
    let spec = pod.spec.as_ref();
    let containers = spec.map(|spec| {
        let told = spec.containers.iter();
        told.map(|one| json!({"name": one.name, "image": one.image, "resources": one.resources}))
            .collect::<Vec<_>>()
    });
    json!({
        "name": pod.name_any(),
        "labels": pod.labels(),
        "created": pod.creation_timestamp(),
        "deleted": pod.metadata.deletion_timestamp,
        "node": spec.and_then(|spec| spec.node_name.as_ref()),
        "containers": containers,
        "status": pod.status,
    })
}

async fn deployments(client: &Client, namespace: &str) -> Result<String> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let found = api.list(&ListParams::default()).await;
    let found =
        found.with_context(|| format!("cannot list deployments in namespace {namespace:?}"))?;
    let told = found.items.iter().map(|one| {
        json!({
            "name": one.name_any(), "labels": one.labels(),
            "replicas": one.spec.as_ref().and_then(|spec| spec.replicas), "status": one.status,
        })
    });
    Ok(pretty(told.collect::<Vec<_>>()))
}

async fn events(client: &Client, namespace: &str) -> Result<String> {
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let found = api.list(&ListParams::default()).await;
    let mut all = found
        .with_context(|| format!("cannot list events in namespace {namespace:?}"))?
        .items;
    all.sort_by_key(|event| event.metadata.creation_timestamp.clone());
    let newest = &all[all.len().saturating_sub(EVENTS)..];
    let told = newest.iter().map(|event| {
        json!({
            "at": event.metadata.creation_timestamp, "type": event.type_, "reason": event.reason, "message": event.message,
            "of": format!("{}/{}", event.involved_object.kind.as_deref().unwrap_or_default(), event.involved_object.name.as_deref().unwrap_or_default()),
            "count": event.count,
        })
    });
    Ok(pretty(told.collect::<Vec<_>>()))
}

/// The ends of a pod's logs, container by container.
async fn logs(client: &Client, namespace: &str, pod: &Pod, lines: usize, gathered: &mut Gathered) {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    for container in containers {
        let params = LogParams {
            container: Some(container.name.clone()),
            tail_lines: Some(i64::try_from(lines).unwrap_or(i64::MAX)),
            ..LogParams::default()
        };
        let name = pod.name_any();
        let text = api.logs(&name, &params).await;
        let text = text.with_context(|| format!("no log of container {:?}", container.name));
        gathered.take(&format!("logs/{name}-{}.log", container.name), text);
    }
}
