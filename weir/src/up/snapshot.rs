//! From the objects in force to what the gateway serves: a pure translation.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_api::ValidModelVersion;
use weir_gateway::{Mirror, ModelRoute, PromptText, SamplingDefaults, ServedVersion};

use weir_rollout::routing::Table;

use super::verify::Verified;

/// A version that has workers, as the gateway sees it.
pub fn served_version(valid: &ValidModelVersion, verified: &Verified) -> ServedVersion {
    ServedVersion {
        model: valid.model.clone(),
        version: valid.version,
        digest: verified.digest.clone(),
        pool: valid.pool.clone(),
        tier: valid.quality_tier.clone(),
        price: weir_run::Price {
            prompt_micros_per_token: valid.price.prompt_micros,
            cached_micros_per_token: valid.price.cached_micros,
            output_micros_per_token: valid.price.output_micros,
        },
        context_tokens: valid
            .manifest
            .context_tokens
            .min(verified.text.context_tokens()),
        text: Arc::clone(&verified.text) as Arc<dyn PromptText>,
        fallback: valid.fallback.clone(),
        defaults: SamplingDefaults::from(&verified.text.generation),
    }
}

/// Routes of all models that have a table.
pub fn routes(
    versions: Vec<Arc<ServedVersion>>,
    tables: &BTreeMap<String, Arc<Table>>,
    mirrors: &BTreeMap<String, Mirror>,
) -> Vec<ModelRoute> {
    let mut by_model: BTreeMap<String, Vec<Arc<ServedVersion>>> = BTreeMap::new();
    for version in versions {
        by_model
            .entry(version.model.clone())
            .or_default()
            .push(version);
    }
    let route = |(name, versions): (String, Vec<Arc<ServedVersion>>)| {
        let table = Arc::clone(tables.get(&name)?);
        Some(ModelRoute {
            mirror: mirrors.get(&name).cloned(),
            name,
            versions,
            table,
        })
    };
    by_model.into_iter().filter_map(route).collect()
}
