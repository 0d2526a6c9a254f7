//! A snapshot written to a file by whoever decides what is served: JSON, every field accounted for.

mod keys;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use weir_model::{ModelText, OpenFiles};
use weir_rollout::routing::Table;
use weir_run::Price;

use keys::{FileKeyRules, FileWindow, key_rules, window};

use crate::alerts::Alerts;
use crate::settings::{Settings, SettingsSpec};
use crate::snapshot::{
    ApiKey, ModelPermission, ModelRoute, Pool, Priority, QueueBound, SamplingDefaults,
    ServedVersion, Snapshot, Tenant, WorkerAddress, WorkerEndpoint,
};
use crate::tables::SoleTables;
use crate::text::PromptText;

/// Why a snapshot file was not taken. What serves goes on serving.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotFileError {
    /// The file cannot be read.
    #[error("cannot read {path:?}")]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file is not a snapshot.
    #[error("{path:?} is not a snapshot; mend the place that the cause names")]
    Parse {
        /// Which file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// Its settings cannot be used.
    #[error("the settings in {path:?} cannot be used")]
    Settings {
        /// Which file.
        path: PathBuf,
        /// What stands against it.
        #[source]
        source: Box<crate::settings::SettingsError>,
    },
    /// A model's tokenizer or template cannot be loaded.
    #[error("cannot load the text side of version {version} of model {model:?} from {path:?}")]
    Text {
        /// Which model.
        model: String,
        /// Which version.
        version: u32,
        /// From where.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A model without a version to send runs to.
    #[error(
        "model {model:?} says neither `table` nor as `stable` one of its versions; give one of them"
    )]
    NoTable {
        /// Which model.
        model: String,
    },
}

/// Reads snapshots from one file; what was loaded for a digest is kept for the next reading.
pub struct SnapshotFile {
    path: PathBuf,
    content: Vec<u8>,
    texts: HashMap<String, Arc<ModelText>>,
    tables: SoleTables,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileSnapshot {
    tenants: Vec<FileTenant>,
    models: Vec<FileModel>,
    pools: Vec<FilePool>,
    workers: Vec<FileWorker>,
    #[serde(default)]
    settings: SettingsSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileTenant {
    name: String,
    keys: Vec<FileKey>,
    #[serde(default)]
    windows: Vec<FileWindow>,
    requests_per_minute: Option<u64>,
    tokens_per_minute: Option<u64>,
    concurrent_runs: Option<u64>,
    kv_share_percent: Option<u8>,
    max_prompt_tokens: Option<u32>,
    max_output_tokens: Option<u32>,
    priority: Priority,
    models: Vec<FilePermission>,
    trust_scope: String,
    retention_ms: u64,
    #[serde(default)]
    content_deletion: bool,
    #[serde(default)]
    alerts: Alerts,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileKey {
    name: String,
    hash: String,
    not_after_ms: Option<u64>,
    not_before_ms: Option<u64>,
    rules: Option<FileKeyRules>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FilePermission {
    name: String,
    #[serde(default)]
    tiers: Vec<String>,
    #[serde(default)]
    fallback: bool,
    #[serde(default)]
    pinning: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileModel {
    name: String,
    /// Everything goes to this version; with shares, `table` is given instead.
    stable: Option<u32>,
    table: Option<Table>,
    versions: Vec<FileVersion>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileVersion {
    version: u32,
    digest: String,
    pool: String,
    tier: String,
    price: Price,
    context_tokens: u32,
    /// A folder with the model's small files: configuration, tokenizer, template.
    path: PathBuf,
    #[serde(default)]
    fallback: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FilePool {
    name: String,
    interactive: FileQueue,
    standard: FileQueue,
    batch: FileQueue,
    class_bounds: [u32; 2],
    largest_prompt: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileQueue {
    max_depth: u32,
    max_wait_ms: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileWorker {
    name: String,
    pool: String,
    /// `unix:/path/to/socket` or `host:port`.
    address: String,
    /// Manifest digest of the version that is asked of it, where it holds several.
    #[serde(default)]
    version: Option<String>,
}

impl SnapshotFile {
    /// Of the file at `path`, which is not read yet.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            content: Vec::new(),
            texts: HashMap::new(),
            tables: SoleTables::default(),
        }
    }

    /// The snapshot, if the file changed since the last time. Blocks: reads files and loads tokenizers.
    ///
    /// # Errors
    /// The file or one it names cannot be read or makes no sense; the next call looks again when it has changed.
    pub fn read(&mut self) -> Result<Option<Snapshot>, SnapshotFileError> {
        let content = std::fs::read(&self.path).map_err(|source| SnapshotFileError::Read {
            path: self.path.clone(),
            source,
        })?;
        if content == self.content {
            return Ok(None);
        }
        self.content = content;
        let parsed = serde_json::from_slice(&self.content);
        let file: FileSnapshot = parsed.map_err(|source| SnapshotFileError::Parse {
            path: self.path.clone(),
            source,
        })?;
        let models = file
            .models
            .into_iter()
            .map(|model| self.model(model))
            .collect::<Result<Vec<_>, _>>()?;
        let digests = models.iter().flat_map(|model| &model.versions);
        let kept: Vec<&str> = digests.map(|version| version.digest.as_str()).collect();
        self.texts
            .retain(|digest, _| kept.contains(&digest.as_str()));
        let settings =
            Settings::new(file.settings).map_err(|source| SnapshotFileError::Settings {
                path: self.path.clone(),
                source: Box::new(source),
            })?;
        Ok(Some(Snapshot {
            settings,
            tenants: file.tenants.into_iter().map(tenant).collect(),
            models,
            pools: file.pools.into_iter().map(pool).collect(),
            workers: file.workers.into_iter().map(worker).collect(),
        }))
    }

    fn model(&mut self, model: FileModel) -> Result<ModelRoute, SnapshotFileError> {
        let versions = model
            .versions
            .into_iter()
            .map(|version| self.version(&model.name, version).map(Arc::new))
            .collect::<Result<Vec<_>, _>>()?;
        let stable = model.stable.and_then(|stable| {
            let mut all = versions.iter();
            all.find(|version| version.version == stable)
        });
        let table = match (model.table, stable) {
            (Some(table), _) => Arc::new(table),
            (None, Some(stable)) => self.tables.all_to(stable),
            (None, None) => return Err(SnapshotFileError::NoTable { model: model.name }),
        };
        Ok(ModelRoute {
            mirror: None,
            name: model.name,
            versions,
            table,
        })
    }

    fn version(
        &mut self,
        model: &str,
        version: FileVersion,
    ) -> Result<ServedVersion, SnapshotFileError> {
        let text = self.text(model, &version)?;
        Ok(ServedVersion {
            model: model.to_owned(),
            version: version.version,
            digest: version.digest,
            pool: version.pool,
            tier: version.tier,
            price: version.price,
            context_tokens: version.context_tokens.min(text.context_tokens()),
            defaults: SamplingDefaults::from(&text.generation),
            text: text as Arc<dyn PromptText>,
            fallback: version.fallback,
        })
    }

    /// A version never changes: what was loaded for its digest is good for ever.
    fn text(
        &mut self,
        model: &str,
        version: &FileVersion,
    ) -> Result<Arc<ModelText>, SnapshotFileError> {
        if let Some(text) = self.texts.get(&version.digest) {
            return Ok(Arc::clone(text));
        }
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| SnapshotFileError::Text {
            model: model.to_owned(),
            version: version.version,
            path: version.path.clone(),
            source,
        };
        let files = OpenFiles::from_dir(&version.path).map_err(|error| failed(error.into()))?;
        let text = ModelText::from_files(&files).map_err(|error| failed(error.into()))?;
        let text = Arc::new(text);
        self.texts.insert(version.digest.clone(), Arc::clone(&text));
        Ok(text)
    }
}

fn tenant(tenant: FileTenant) -> Tenant {
    let key = |key: FileKey| ApiKey {
        name: key.name,
        hash: key.hash,
        not_after_ms: key.not_after_ms,
        not_before_ms: key.not_before_ms,
        rules: key.rules.map(key_rules),
    };
    let permission = |permission: FilePermission| ModelPermission {
        name: permission.name,
        tiers: permission.tiers,
        fallback: permission.fallback,
        pinning: permission.pinning,
    };
    Tenant {
        name: tenant.name,
        caller: None,
        keys: tenant.keys.into_iter().map(key).collect(),
        limits: weir_budget::Limits {
            windows: tenant.windows.into_iter().map(window).collect(),
            requests_per_minute: tenant.requests_per_minute,
            tokens_per_minute: tenant.tokens_per_minute,
            concurrent_runs: tenant.concurrent_runs,
            pool_kv_tokens: None,
            key: None,
        },
        kv_share_percent: tenant.kv_share_percent,
        max_prompt_tokens: tenant.max_prompt_tokens,
        max_output_tokens: tenant.max_output_tokens,
        priority: tenant.priority,
        models: tenant.models.into_iter().map(permission).collect(),
        trust_scope: tenant.trust_scope,
        retention_ms: tenant.retention_ms,
        content_deletion: tenant.content_deletion,
        shadow: true,
        alerts: tenant.alerts,
    }
}

fn pool(pool: FilePool) -> Pool {
    let bound = |queue: &FileQueue| QueueBound {
        max_depth: queue.max_depth,
        max_wait_ms: queue.max_wait_ms,
    };
    Pool {
        queues: [
            bound(&pool.interactive),
            bound(&pool.standard),
            bound(&pool.batch),
        ],
        name: pool.name,
        class_bounds: pool.class_bounds,
        sleeps: false,
        largest_prompt: pool.largest_prompt,
    }
}

fn worker(worker: FileWorker) -> WorkerEndpoint {
    let address = match worker.address.strip_prefix("unix:") {
        Some(path) => WorkerAddress::Unix(PathBuf::from(path)),
        None => WorkerAddress::Tcp(worker.address),
    };
    WorkerEndpoint {
        name: worker.name,
        pool: worker.pool,
        address,
        version: worker.version,
    }
}

#[cfg(test)]
mod tests;
