//! Which adapters runs may name: they come and go while the engine runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_model::backend::{AdapterId, Backend};
use weir_model::{Adapter, AdapterError};
use weir_protocol::worker::LoadedModel;
use weir_scheduler::SlotId;

use super::core::Engine;
use super::request::ServedAdapter;

/// What a run ends with whose logits are no numbers.
pub(super) const OVERFLOW: &str = "adapter_error: with this adapter the model's numbers overflow; its weights, or its lora_alpha, are too large for the base";

/// A verified adapter in memory.
#[derive(Debug)]
pub(crate) struct ReadyAdapter {
    /// Manifest digest, `sha256:…`.
    pub(crate) digest: String,
    /// The same in bytes.
    pub(crate) content: [u8; 32],
    /// The model's name.
    pub(crate) model: String,
    /// Its version.
    pub(crate) version: u32,
    /// Positions per sequence that its signer allows.
    pub(crate) context_tokens: u32,
    /// Its weights.
    pub(crate) adapter: Arc<Adapter>,
}

/// Adapters of an engine.
#[derive(Debug, Default)]
pub(crate) struct HeldAdapters {
    /// What a welcome says of each that runs may name, by digest.
    models: BTreeMap<String, LoadedModel>,
    /// Those that no new run may name, until their last run has ended.
    leaving: Vec<AdapterId>,
    changed: bool,
}

impl HeldAdapters {
    /// Whether what runs may name has changed since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }
}

impl Engine {
    /// What runs may name: the version that was loaded, then its adapters.
    pub(super) fn models(&self) -> Vec<LoadedModel> {
        let base = &self.parts.identity.base;
        let adapters = self.adapters.models.values();
        std::iter::once(base).chain(adapters).cloned().collect()
    }

    /// Runs may name one more. Of one that they may name already nothing changes.
    pub(super) fn add_adapter(&mut self, ready: ReadyAdapter) -> Result<(), AdapterError> {
        let ReadyAdapter {
            digest,
            content,
            model,
            version,
            context_tokens,
            adapter,
        } = ready;
        let parts = &mut self.parts;
        if parts.served.adapters.contains_key(&digest) {
            return Ok(());
        }
        let Some(device) = parts.backend.adapters() else {
            let device = parts.backend.name().kind.to_owned();
            return Err(AdapterError::Device { device });
        };
        let (rank, bytes) = (adapter.rank(), adapter.bytes());
        let id = device.insert(adapter)?;
        let base = &parts.identity.base;
        let context_tokens = context_tokens.min(base.context_tokens);
        let loaded = LoadedModel {
            version_digest: digest.clone(),
            model,
            version,
            context_tokens,
            adapter_of: base.version_digest.clone(),
            ..base.clone()
        };
        tracing::info!(
            digest,
            model = loaded.model,
            version,
            rank,
            bytes,
            "adapter loaded"
        );
        let served = ServedAdapter {
            id,
            content,
            context_tokens,
        };
        parts.served.adapters.insert(digest.clone(), served);
        self.adapters.models.insert(digest, loaded);
        self.adapters.changed = true;
        Ok(())
    }

    /// No new run may name it; those that do go on.
    pub(super) fn drop_adapter(&mut self, digest: &str) {
        let Some(served) = self.parts.served.adapters.remove(digest) else {
            return;
        };
        self.adapters.models.remove(digest);
        self.adapters.leaving.push(served.id);
        self.adapters.changed = true;
        tracing::info!(digest, "adapter takes no new runs");
    }

    /// Lets go of adapters whose last run has ended.
    pub(super) fn settle_adapters(&mut self) {
        if self.adapters.leaving.is_empty() {
            return;
        }
        let live = self.runs.live();
        let in_use = |id: &AdapterId| {
            let mut runs = live.iter().filter_map(|number| self.runs.get(*number));
            runs.any(|run| run.adapter == Some(*id))
        };
        let (stay, go) = self.adapters.leaving.iter().partition(|id| in_use(id));
        self.adapters.leaving = stay;
        let go: Vec<AdapterId> = go;
        for id in go {
            let device = self.parts.backend.adapters();
            device.expect("who holds adapters applies them").remove(id);
        }
    }
}

/// Gives a slot that was just opened what its run needs.
pub(super) fn apply(backend: &mut dyn Backend, slot: SlotId, adapter: Option<AdapterId>) {
    if let Some(adapter) = adapter {
        let device = backend.adapters();
        device
            .expect("who holds adapters applies them")
            .apply(slot, adapter);
    }
}
