//! Where a worker finds the files of its version, or what it needs to fetch them.

use serde_json::{Value, json};

use super::Meta;
use super::workers::Group;
use crate::names;

/// The volume that fetched files lie in. Only workers that fetch have it.
pub const CACHE: &str = "model-cache";
/// Where a worker finds how a place is spoken to.
const SECRET_FOLDER: &str = "/etc/weir-artifact";
/// Of a node's volume, in percent: kubelet throws pods out where less than 15 is free for images.
const NODE_FREE_PERCENT: u8 = 20;
/// Where a worker keeps what it fetches.
const CACHE_FOLDER: &str = "/var/cache/weir/models";

/// How a worker brings the files itself.
pub(super) fn fetch(meta: &Meta<'_>) -> Value {
    let (manifest, limits) = (&meta.signed.version.manifest, &meta.pool.fetch);
    let secret = manifest.artifact_secret.as_ref().map(|_| SECRET_FOLDER);
    let mut fetch = json!({
        "uri": manifest.artifact_uri,
        "cache": CACHE_FOLDER,
        "cacheBytes": limits.cache_bytes,
        "bytesPerSecond": limits.bytes_per_second,
        "parallel": limits.parallel,
        "secret": secret,
    });
    // Named only where it matters: workers of an earlier version do not know it.
    if cache(meta).get("hostPath").is_some() {
        fetch["freePercent"] = json!(NODE_FREE_PERCENT);
    }
    fetch
}

/// The volume that holds the artifact: the claim that it lies in, or a cache that it is fetched into.
pub(super) fn artifact(meta: &Meta<'_>, volumes: &mut Vec<Value>, mounts: &mut Vec<Value>) {
    let manifest = &meta.signed.version.manifest;
    let root = &meta.shape.artifacts;
    if let Some((claim, _)) = manifest.claim() {
        mount("artifact", claim, root, (volumes, mounts));
    }
    if !manifest.is_remote() {
        return;
    }
    volumes.push(cache(meta));
    mounts.push(json!({"name": CACHE, "mountPath": CACHE_FOLDER}));
    if let Some(secret) = &manifest.artifact_secret {
        // Readable by the pod's group, which kubelet makes it the files' own.
        let source = json!({"secretName": secret, "defaultMode": 0o440});
        volumes.push(json!({"name": "artifact-secret", "secret": source}));
        mounts.push(json!({
            "name": "artifact-secret", "mountPath": SECRET_FOLDER, "readOnly": true,
        }));
    }
}

/// The claims that the artifacts of several versions lie in.
pub(super) fn artifacts(of: &Group<'_>, volumes: &mut Vec<Value>, mounts: &mut Vec<Value>) {
    for claim in &of.claims {
        let name = names::volume(claim);
        mount(&name, claim, &of.shape.artifacts, (volumes, mounts));
    }
}

fn mount(
    name: &str,
    claim: &str,
    root: &str,
    (volumes, mounts): (&mut Vec<Value>, &mut Vec<Value>),
) {
    volumes.push(json!({
        "name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": true},
    }));
    mounts.push(json!({
        "name": name, "mountPath": format!("{root}/{claim}"), "readOnly": true,
    }));
}

/// Whether what is fetched takes room of the pod's own.
pub(super) fn is_pods_own(meta: &Meta<'_>) -> bool {
    meta.signed.version.manifest.is_remote() && cache(meta).get("emptyDir").is_some()
}

/// Where fetched files lie: the pool's claim, a folder of the node, or the pod's own.
fn cache(meta: &Meta<'_>) -> Value {
    match (&meta.pool.fetch.cache_claim, &meta.shape.node_cache) {
        (Some(claim), _) => json!({"name": CACHE, "persistentVolumeClaim": {"claimName": claim}}),
        // Made by whoever runs the nodes, for the user that workers run as: kubelet would make it root's.
        (None, Some(folder)) => {
            json!({"name": CACHE, "hostPath": {"path": folder, "type": "Directory"}})
        }
        (None, None) => json!({"name": CACHE, "emptyDir": {}}),
    }
}
