//! From a load plan of an adapter to one in memory: verified as any version is, and checked against the base.

use std::path::Path;
use std::sync::Arc;

use weir_model::config::ModelConfig;
use weir_model::{Adapter, AdapterError};

use super::{LoadError, LoadPlan, open_files, verify};
use crate::announce::Announcer;
use crate::engine::adapters::ReadyAdapter;

/// Loads the adapter that a plan file names. `base` is the manifest digest of the version it must be of, and that version's network,
/// where the device applies adapters.
///
/// # Errors
/// See [`LoadError`]; nothing was mapped that is not verified.
pub(crate) fn load_adapter(
    path: &Path,
    (base, config): (&str, Result<&ModelConfig, &str>),
) -> Result<ReadyAdapter, LoadError> {
    let plan = LoadPlan::read(path)?;
    let of = plan.claim.adapter_of.map(|digest| digest.to_string());
    if of.as_deref() != Some(base) {
        return Err(LoadError::OtherBase {
            found: of.unwrap_or_else(|| "nothing".to_owned()),
            served: base.to_owned(),
        });
    }
    let config = config.map_err(|device| {
        let device = device.to_owned();
        LoadError::Adapter(AdapterError::Device { device })
    })?;
    let artifact = verify(&plan, &Announcer::silent())?;
    let files = open_files(&artifact)?;
    let adapter = Adapter::load(&files, config).map_err(LoadError::Adapter)?;
    Ok(ReadyAdapter {
        digest: artifact.manifest_digest.to_string(),
        content: *artifact.manifest_digest.as_bytes(),
        model: plan.claim.model,
        version: plan.claim.version,
        context_tokens: plan.claim.context_tokens,
        adapter: Arc::new(adapter),
    })
}
