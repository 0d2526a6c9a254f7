//! Names and labels of children: functions of model and version, so that whoever looks later finds the same ones.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use weir_api::{
    ANNOTATION_DIGEST, ANNOTATION_MODEL, ANNOTATION_RECORD, ANNOTATION_REPLICAS, ANNOTATION_ROLE,
    LABEL_COMPONENT, LABEL_MANAGED_BY, LABEL_MODEL, LABEL_POOL, LABEL_SHARING, LABEL_VERSION,
    MANAGER,
};
use weir_rollout::{Stamp, VersionId};

/// Value of [`LABEL_COMPONENT`] on workers.
pub const WORKER: &str = "worker";
/// Value of [`LABEL_COMPONENT`] on gateways.
pub const GATEWAY: &str = "gateway";
/// Value of [`LABEL_SHARING`] on workers that hold several versions.
pub const SHARED: &str = "Shared";
/// What a record calls the version that serves.
pub const STABLE: &str = "Stable";
/// What it calls the one before.
pub const ROLLBACK: &str = "Rollback";
/// What it calls any other.
pub const CANDIDATE: &str = "Candidate";
/// What is said of workers that were left: others carry all runs of their version.
pub const LEFT: &str = "Left";
/// Longest value of a label.
const MAX_LABEL: usize = 63;
/// Room that a model's name has in the name of a child.
const MAX_SLUG: usize = 28;

/// The name of a version's children. The digest is in it, so that another content under the same number is another child.
pub fn child(model: &str, id: &VersionId) -> String {
    let mut slug: String = model
        .to_ascii_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(MAX_SLUG)
        .collect();
    slug.truncate(slug.trim_end_matches('-').len());
    // Two models may have one slug: the hash is over both.
    let hash = blake3::hash(format!("{model} {}", id.digest).as_bytes()).to_hex();
    format!("weir-{slug}-v{}-{}", id.version, &hash[..8])
}

/// The name of a shared pool's children.
pub fn pool_child(pool: &str) -> String {
    let mut slug: String = pool
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(MAX_SLUG)
        .collect();
    slug.truncate(slug.trim_end_matches('-').len());
    let hash = blake3::hash(format!("pool {pool}").as_bytes()).to_hex();
    format!("weir-pool-{slug}-{}", &hash[..8])
}

/// Labels of all children of a shared pool.
pub fn pool_labels(pool: &str) -> BTreeMap<&'static str, String> {
    let mut labels = pool_selector(pool);
    labels.insert("app.kubernetes.io/part-of", "weir".to_owned());
    labels.insert(LABEL_MANAGED_BY, MANAGER.to_owned());
    labels.insert(LABEL_POOL, pool.to_owned());
    labels
}

/// Labels that name a shared pool's workers.
pub fn pool_selector(pool: &str) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        (LABEL_COMPONENT, WORKER.to_owned()),
        (LABEL_SHARING, SHARED.to_owned()),
        ("weir.dev/child", pool_child(pool)),
    ])
}

/// What gateways call a version on a worker of a shared pool: each has a session of its own.
pub fn seat(pod: &str, child: &str) -> String {
    format!("{pod}/{child}")
}

/// The name of the volume of a claim: claims may have longer ones.
pub fn volume(claim: &str) -> String {
    let hash = blake3::hash(claim.as_bytes()).to_hex();
    format!("artifact-{}", &hash[..16])
}

/// On how many of a shared pool's workers a version is counted on, if they hold it at all.
pub fn replicas_of(meta: &ObjectMeta) -> Option<u32> {
    let annotations = meta.annotations.as_ref()?;
    annotations.get(ANNOTATION_REPLICAS)?.parse().ok()
}

/// What the record that last changed a child calls its version.
pub fn role_of(meta: &ObjectMeta) -> &'static str {
    let role = meta.annotations.as_ref();
    let role = role.and_then(|annotations| annotations.get(ANNOTATION_ROLE));
    match role.map(String::as_str) {
        Some(STABLE) => STABLE,
        Some(ROLLBACK) => ROLLBACK,
        Some(LEFT) => LEFT,
        _ => CANDIDATE,
    }
}

/// A model's name as the value of a label; the annotation beside it has the name itself.
pub fn model_label(model: &str) -> String {
    let is_value = model.len() <= MAX_LABEL
        && model
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
    if is_value {
        model.to_owned()
    } else {
        format!("m-{}", &blake3::hash(model.as_bytes()).to_hex()[..32])
    }
}

/// Labels of all children of a version.
pub fn labels(model: &str, id: &VersionId, pool: &str) -> BTreeMap<&'static str, String> {
    let mut labels = selector(model, id);
    labels.insert("app.kubernetes.io/part-of", "weir".to_owned());
    labels.insert(LABEL_MANAGED_BY, MANAGER.to_owned());
    labels.insert(LABEL_POOL, pool.to_owned());
    labels
}

/// Labels that name a version's workers. The digest is among them: the same number with other content is another set of workers.
pub fn selector(model: &str, id: &VersionId) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        (LABEL_COMPONENT, WORKER.to_owned()),
        (LABEL_MODEL, model_label(model)),
        (LABEL_VERSION, id.version.to_string()),
        ("weir.dev/child", child(model, id)),
    ])
}

/// Annotations that say in full what labels can only hint at.
pub fn annotations(model: &str, id: &VersionId) -> BTreeMap<&'static str, String> {
    BTreeMap::from([
        (ANNOTATION_MODEL, model.to_owned()),
        (ANNOTATION_DIGEST, id.digest.clone()),
    ])
}

/// The version that a child is of, if it is a child.
pub fn version_of(meta: &ObjectMeta) -> Option<(String, VersionId)> {
    let annotations = meta.annotations.as_ref()?;
    let version = meta.labels.as_ref()?.get(LABEL_VERSION)?.parse().ok()?;
    let digest = annotations.get(ANNOTATION_DIGEST)?;
    let model = annotations.get(ANNOTATION_MODEL)?;
    Some((model.clone(), VersionId::new(version, digest.clone())))
}

/// The record that last changed a child.
pub fn stamp_of(meta: &ObjectMeta) -> Stamp {
    let text = meta
        .annotations
        .as_ref()
        .and_then(|a| a.get(ANNOTATION_RECORD));
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_childs_name_is_a_dns_label_whatever_the_models_is() {
        for model in [
            "tiny-chat",
            "Org/Model.v1:Q4",
            &"x".repeat(96),
            "a/b",
            "a-b",
        ] {
            let id = VersionId::new(4_294_967_295, "sha256:aa");
            let name = child(model, &id);
            assert!(name.len() <= 63, "{name}");
            let is_label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(
                name.chars().all(is_label) && !name.contains("--v"),
                "{name}"
            );
            assert!(model_label(model).len() <= 63);
        }
        let id = VersionId::new(1, "sha256:aa");
        assert_ne!(child("a/b", &id), child("a-b", &id));
        assert_ne!(child("a", &id), child("a", &VersionId::new(1, "sha256:bb")));
    }

    #[test]
    fn a_child_says_what_it_is_of() {
        let id = VersionId::new(7, "sha256:aa");
        let own = |map: BTreeMap<&str, String>| {
            Some(map.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
        };
        let mut meta = ObjectMeta {
            labels: own(labels("a/b", &id, "p")),
            annotations: own(annotations("a/b", &id)),
            ..ObjectMeta::default()
        };
        assert_eq!(version_of(&meta), Some(("a/b".to_owned(), id)));
        assert_eq!(stamp_of(&meta), Stamp::default());
        meta.annotations
            .as_mut()
            .unwrap()
            .insert(ANNOTATION_RECORD.to_owned(), "2.17".to_owned());
        assert_eq!(
            stamp_of(&meta),
            Stamp {
                epoch: 2,
                revision: 17
            }
        );
        meta.annotations = None;
        assert_eq!(version_of(&meta), None);
    }
}
