//! Adapters that come and go: a folder of load plans that is looked at all the time.
//!
//! A plan that is new or has changed is verified and loaded beside what serves; one that is gone takes no new runs. What is refused is said,
//! and serves nothing; the model and the other adapters go on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use weir_manifest::Digest;
use weir_model::config::ModelConfig;

use crate::announce::{AdapterSaid, Announcer};
use crate::engine::command::Command;
use crate::error::chain;
use crate::load::{LoadError, LoadPlan, Loaded, load_adapter};

/// How often the folder is looked at: a person who adds an adapter should not wait, and a listing costs microseconds.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// What may pass by itself is tried again after this.
const RETRY: Duration = Duration::from_secs(5);
/// Plans in the folder: more are a mistake.
const PLANS_MAX: usize = 4096;
/// Bytes of a plan: one lists the files of an artifact and the keys that may sign.
const PLAN_BYTES_MAX: u64 = 4 << 20;

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

/// See the module.
pub(crate) struct AdapterWatch {
    folder: PathBuf,
    base: AdapterBase,
    commands: mpsc::Sender<Command>,
    announcer: Announcer,
    /// By file name.
    plans: BTreeMap<String, Plan>,
}

/// A plan as it was found.
struct Plan {
    text: Vec<u8>,
    /// Manifest digest of what it loaded.
    loaded: Option<String>,
    /// When to try again.
    retry: Option<Instant>,
}

impl Plan {
    /// Whether another text names what this one loaded.
    fn is_of_what_is_loaded(&self, text: &[u8]) -> bool {
        let other: Option<LoadPlan> = serde_json::from_slice(text).ok();
        let other = other.map(|other| other.digest.to_string());
        other.is_some() && other == self.loaded
    }
}

/// Stops looking when it is dropped.
pub(crate) struct Watching(JoinHandle<()>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl AdapterWatch {
    /// Looks, where there is a folder, until the value that comes back is dropped, or the engine is gone.
    pub(crate) fn start(
        folder: Option<PathBuf>,
        (base, commands): (AdapterBase, mpsc::Sender<Command>),
        announcer: &Announcer,
    ) -> Option<Watching> {
        let mut watch = Self {
            folder: folder?,
            base,
            commands,
            announcer: announcer.clone(),
            plans: BTreeMap::new(),
        };
        Some(Watching(tokio::spawn(async move {
            while watch.look().await.is_some() {
                sleep(LOOK_EVERY).await;
            }
        })))
    }

    /// One look; `None` when the engine is gone.
    async fn look(&mut self) -> Option<()> {
        let folder = self.folder.clone();
        let found = tokio::task::spawn_blocking(move || list(&folder)).await;
        // A folder that cannot be read is no reason to take away what serves.
        let Ok(Some(found)) = found else {
            return Some(());
        };
        let gone: Vec<String> = self
            .plans
            .keys()
            .filter(|name| !found.contains_key(*name))
            .cloned()
            .collect();
        for name in gone {
            if let Some(digest) = self.plans.remove(&name).and_then(|plan| plan.loaded) {
                self.remove(&name, digest).await?;
            }
        }
        for (name, text) in found {
            let is_due = self.plans.get(&name).is_none_or(|plan| {
                plan.text != text || plan.retry.is_some_and(|at| at <= Instant::now())
            });
            if is_due {
                self.load(name, text).await?;
            }
        }
        Some(())
    }

    /// Loads what a plan says, then lets go of what it said before.
    async fn load(&mut self, name: String, text: Vec<u8>) -> Option<()> {
        if let Some(plan) = self.plans.get_mut(&name)
            && plan.is_of_what_is_loaded(&text)
        {
            // What is in memory serves on, whoever may sign now; so it is with the model.
            plan.text = text;
            return Some(());
        }
        let (path, base) = (self.folder.join(&name), self.base.clone());
        let loading = tokio::task::spawn_blocking(move || {
            let config = base.config.as_ref().map_err(String::as_str);
            load_adapter(&path, (&base.digest, config))
        });
        let added = match loading.await {
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
        };
        let before = self.plans.get(&name).and_then(|plan| plan.loaded.clone());
        let mut plan = Plan {
            text,
            loaded: None,
            retry: None,
        };
        match added {
            Ok(digest) => {
                self.say((&name, &plan.text), "loaded", &digest, None);
                plan.loaded = Some(digest);
            }
            Err(error) => {
                plan.retry = (!error.is_configuration()).then(|| Instant::now() + RETRY);
                let state = plan.retry.map_or("refused", |_| "failed");
                self.say((&name, &plan.text), state, "", Some(&error));
            }
        }
        // What a plan says no more is not served any more, also where the new one is refused.
        if let Some(before) = before.filter(|before| Some(before) != plan.loaded.as_ref()) {
            self.remove(&name, before).await?;
        }
        self.plans.insert(name, plan);
        Some(())
    }

    async fn remove(&self, name: &str, digest: String) -> Option<()> {
        // Another plan may have loaded the same.
        let is_shared = self
            .plans
            .iter()
            .any(|(other, plan)| other != name && plan.loaded.as_ref() == Some(&digest));
        if !is_shared {
            let command = Command::DropAdapter(digest.clone());
            self.commands.send(command).await.ok()?;
        }
        self.say((name, b""), "removed", &digest, None);
        Some(())
    }

    fn say(
        &self,
        (plan, text): (&str, &[u8]),
        state: &str,
        digest: &str,
        error: Option<&LoadError>,
    ) {
        let message = error.map(|error| chain(error)).unwrap_or_default();
        let reason = error.map_or("", LoadError::reason);
        if error.is_some() {
            tracing::error!(plan, reason, message, "the adapter is refused");
        }
        self.announcer.adapter(&AdapterSaid {
            plan,
            state,
            digest,
            reason,
            message: &message,
            text: &Digest::of(text).to_string(),
        });
    }
}

/// The plans of a folder, by file name; `None` where it cannot be read. A folder that is not there has none.
fn list(folder: &Path) -> Option<BTreeMap<String, Vec<u8>>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(BTreeMap::new()),
        Err(error) => {
            tracing::warn!(?folder, %error, "cannot look for adapters");
            return None;
        }
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        let entry = entry.ok()?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let path = entry.path();
        let is_plan = path.extension().is_some_and(|ending| ending == "json");
        if !is_plan || found.len() >= PLANS_MAX {
            continue;
        }
        // It may have gone since, and comes with the next look if not.
        if std::fs::metadata(&path).is_ok_and(|meta| meta.is_file() && meta.len() <= PLAN_BYTES_MAX)
            && let Ok(text) = std::fs::read(&path)
        {
            found.insert(name, text);
        }
    }
    Some(found)
}
