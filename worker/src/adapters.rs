//! Adapters of a version, which come and go with their plans while it serves.

use std::path::PathBuf;

use tokio::sync::{mpsc, oneshot};
use weir_model::config::ModelConfig;

use crate::announce::Announcer;
use crate::engine::command::Command;
use crate::folder::{FolderWatch, Holder, Watching};
use crate::load::{LoadError, Loaded, load_adapter};

/// What adapters must be of.
#[derive(Clone, Debug)]
pub(crate) struct AdapterBase {
    digest: String,
    /// Its network; or the name of the device, where that applies no adapters.
    config: Result<ModelConfig, String>,
}

impl AdapterBase {
    pub(crate) fn of(loaded: &mut Loaded) -> Self {
        let config = match loaded.backend.adapters() {
            Some(adapters) => Ok(adapters.config().clone()),
            None => Err(loaded.backend.name().kind.to_owned()),
        };
        Self {
            digest: loaded.version_digest.clone(),
            config,
        }
    }
}

/// An engine that holds adapters.
struct AdapterHolder {
    base: AdapterBase,
    commands: mpsc::Sender<Command>,
}

/// Follows a folder of adapters, where there is one, until the value that comes back is dropped, or the engine is gone.
pub(crate) fn follow(
    folder: Option<PathBuf>,
    (base, commands): (AdapterBase, mpsc::Sender<Command>),
    announcer: &Announcer,
) -> Option<Watching> {
    let holder = AdapterHolder { base, commands };
    Some(FolderWatch::new(folder?, holder, announcer).start(|_| ()))
}

impl Holder for AdapterHolder {
    const EVENT: &'static str = "adapter";
    const GONE: &'static str = "removed";

    async fn load(&mut self, path: PathBuf) -> Option<Result<String, LoadError>> {
        let base = self.base.clone();
        let loading = tokio::task::spawn_blocking(move || {
            let config = base.config.as_ref().map_err(String::as_str);
            load_adapter(&path, (&base.digest, config))
        });
        Some(match loading.await {
            Ok(Ok(ready)) => {
                let digest = ready.digest.clone();
                let (reply, answer) = oneshot::channel();
                let command = Command::AddAdapter(Box::new(ready), reply);
                self.commands.send(command).await.ok()?;
                let added = answer.await.ok()?;
                added.map(|()| digest).map_err(LoadError::Adapter)
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(LoadError::Crashed),
        })
    }

    async fn remove(&mut self, digest: &str) -> Option<()> {
        let command = Command::DropAdapter(digest.to_owned());
        self.commands.send(command).await.ok()
    }
}
