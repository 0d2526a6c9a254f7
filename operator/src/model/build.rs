//! Every child of a version, from proven objects: a pure translation.

mod artifact;
mod several;
mod workers;

use serde_json::{Value, json};
use weir_api::{SignatureSource, ValidGpuPool, ValidModelVersion};
use weir_manifest::{TrustPolicySpec, VersionClaim};
use weir_rollout::VersionId;

pub use self::artifact::CACHE;
use self::artifact::fetch;
pub use self::several::{Several, several, unshared};
pub use self::workers::{ADMIN_PORT, SESSION_PORT};
use self::workers::{Group, group};
use super::template::Refused;
use crate::names;

/// What all children of an operator share.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The namespace.
    pub namespace: String,
    /// Image of the worker.
    pub worker_image: String,
    /// Where volumes with artifacts are mounted, in workers as in gateways and operator.
    pub artifacts: String,
    /// The folder of every node that fetched artifacts are kept in, where there is one.
    pub node_cache: Option<String>,
    /// How long a worker may take to finish its runs.
    pub drain_s: u64,
    /// Whether gateways and workers prove themselves to each other.
    pub is_mutual: bool,
}

/// A version whose signature holds.
#[derive(Clone, Debug)]
pub struct Signed<'a> {
    /// The object.
    pub version: &'a ValidModelVersion,
    /// Its number and digest.
    pub id: &'a VersionId,
    /// What the object says of the artifact.
    pub claim: &'a VersionClaim,
    /// Who may sign, for the worker's own check.
    pub trust: &'a TrustPolicySpec,
}

/// All children of a version. A new one must be given its place in `apply`, which takes this apart.
#[derive(Clone, Debug, PartialEq)]
pub struct Children {
    /// What to load, and what gateways need to know of the version.
    pub plan: Value,
    /// Workers of its own, where those of its pool do not hold it.
    pub workers: Option<Workers>,
}

/// A Deployment of workers, and what goes with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Workers {
    /// Who may talk to them.
    pub policy: Value,
    /// A name for them.
    pub service: Value,
    /// How many of them maintenance may take away at once.
    pub disruption: Value,
    /// They, but for their number.
    pub deployment: Value,
}

/// Builds them.
///
/// # Errors
/// The pool's template asks for what the restricted profile or this operator does not allow.
pub fn children(
    shape: &Shape,
    signed: &Signed<'_>,
    pool: &ValidGpuPool,
) -> Result<Children, Refused> {
    let meta = Meta {
        shape,
        signed,
        pool,
    };
    let workers = if unshared(pool, signed.version).is_none() {
        None
    } else {
        Some(group(&meta.group())?)
    };
    Ok(Children {
        plan: plan(&meta),
        workers,
    })
}

struct Meta<'a> {
    shape: &'a Shape,
    signed: &'a Signed<'a>,
    pool: &'a ValidGpuPool,
}

impl Meta<'_> {
    fn model(&self) -> &str {
        &self.signed.version.model
    }

    fn name(&self) -> String {
        names::child(self.model(), self.signed.id)
    }

    fn metadata(&self) -> Value {
        json!({
            "name": self.name(),
            "namespace": self.shape.namespace,
            "labels": names::labels(self.model(), self.signed.id, &self.pool.name),
            "annotations": names::annotations(self.model(), self.signed.id),
        })
    }

    fn group(&self) -> Group<'_> {
        Group {
            shape: self.shape,
            pool: self.pool,
            name: self.name(),
            labels: names::labels(self.model(), self.signed.id, &self.pool.name),
            annotations: names::annotations(self.model(), self.signed.id),
            selector: names::selector(self.model(), self.signed.id),
            one: Some(self),
            claims: Vec::new(),
            held: 1,
        }
    }
}

/// `plan.json` is what the worker loads; `version.json` is what a gateway serves, should the object be gone or edited.
fn plan(meta: &Meta<'_>) -> Value {
    let Signed {
        version,
        id,
        claim,
        trust,
    } = meta.signed;
    let manifest = &version.manifest;
    let dir = manifest.mounted_path(&meta.shape.artifacts);
    let dir = dir.unwrap_or_default();
    let signature = match &version.signature {
        SignatureSource::Bundle(text) => json!({"bundle": text}),
        SignatureSource::File(name) => json!({"file": name}),
    };
    let mut plan = json!({
        "dir": dir, "digest": id.digest, "claim": claim, "signature": signature, "trust": trust,
    });
    let mut served = json!({
        "model": version.model,
        "version": version.version,
        "digest": id.digest,
        "pool": meta.pool.name,
        "tier": version.quality_tier,
        "price": {
            "promptMicrosPerToken": version.price.prompt_micros,
            "cachedMicrosPerToken": version.price.cached_micros,
            "outputMicrosPerToken": version.price.output_micros,
        },
        "contextTokens": manifest.context_tokens,
        "fallback": version.fallback,
        "dir": dir,
        "files": claim.files,
        "references": manifest.references,
    });
    if let Some((claim, _)) = manifest.claim() {
        served["claim"] = json!(claim);
    }
    if manifest.is_remote() {
        plan["fetch"] = fetch(meta);
        let secret = &manifest.artifact_secret;
        served["fetch"] =
            json!({"uri": manifest.artifact_uri, "secret": secret, "files": claim.files});
    }
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": meta.metadata(),
        "data": {"plan.json": plan.to_string(), "version.json": served.to_string()},
    })
}

#[cfg(test)]
mod tests;
