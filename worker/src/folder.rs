//! A folder of load plans that is looked at all the time: what they name comes and goes with them.
//!
//! A plan that is new or has changed is loaded beside what serves; what one that is gone has named takes no new runs. What is refused is said,
//! disturbs nothing, and is tried again when its file is written again.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use weir_manifest::Digest;

use crate::announce::{Announcer, Said};
use crate::error::chain;
use crate::load::{LoadError, LoadPlan};

/// How often the folder is looked at: a person who adds a plan should not wait, and a listing costs microseconds.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// What may pass by itself is tried again after this.
const RETRY: Duration = Duration::from_secs(5);
/// Plans in the folder: more are a mistake.
const PLANS_MAX: usize = 4096;
/// Bytes of a plan: one lists the files of an artifact and the keys that may sign.
const PLAN_BYTES_MAX: u64 = 4 << 20;

/// Who holds what plans name. `None` ends the looking: there is nobody to hold anything any more.
pub(crate) trait Holder: Send + 'static {
    /// The event that says what became of a plan.
    const EVENT: &'static str;
    /// What is said when a plan is gone, or names something else.
    const GONE: &'static str;

    /// Loads what a plan names; its manifest digest.
    fn load(
        &mut self,
        path: PathBuf,
    ) -> impl Future<Output = Option<Result<String, LoadError>>> + Send;

    /// No new run may name it.
    fn remove(&mut self, digest: &str) -> impl Future<Output = Option<()>> + Send;

    /// What ended by itself since the last call, and why.
    fn lost(&mut self) -> Vec<(String, LoadError)> {
        Vec::new()
    }
}

/// See the module.
pub(crate) struct FolderWatch<H> {
    folder: PathBuf,
    holder: H,
    announcer: Announcer,
    /// By file name.
    plans: BTreeMap<String, Plan>,
    /// Whether it could be looked at.
    is_known: bool,
    /// Plans that are there and cannot be read: that is said once.
    unread: BTreeSet<String>,
}

/// A plan's file.
struct Found {
    text: Vec<u8>,
    written: Option<SystemTime>,
}

/// A plan as it was found.
struct Plan {
    text: Vec<u8>,
    written: Option<SystemTime>,
    /// Manifest digest of what it loaded.
    loaded: Option<String>,
    /// When to try again.
    retry: Option<Instant>,
    /// What was said against it last: a cause that stays is said once.
    against: String,
}

impl Plan {
    /// Whether another text names what this one loaded.
    fn is_of_what_is_loaded(&self, text: &[u8]) -> bool {
        let other: Option<LoadPlan> = serde_json::from_slice(text).ok();
        let other = other.map(|other| other.digest.to_string());
        other.is_some() && other == self.loaded
    }

    fn is_due(&self, found: &Found) -> bool {
        let is_new = self.text != found.text;
        let is_written_again = self.loaded.is_none() && self.written != found.written;
        is_new || is_written_again || self.retry.is_some_and(|at| at <= Instant::now())
    }

    fn failed(&mut self, error: &LoadError) {
        let wait = if error.waits_for_room() {
            Duration::ZERO
        } else {
            RETRY
        };
        self.loaded = None;
        self.retry = (!error.is_configuration()).then(|| Instant::now() + wait);
    }
}

/// Stops looking when it is dropped.
pub(crate) struct Watching(JoinHandle<()>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<H: Holder> FolderWatch<H> {
    pub(crate) fn new(folder: PathBuf, holder: H, announcer: &Announcer) -> Self {
        Self {
            folder,
            holder,
            announcer: announcer.clone(),
            plans: BTreeMap::new(),
            is_known: false,
            unread: BTreeSet::new(),
        }
    }

    /// Looks until the value that comes back is dropped, or there is no holder any more. Calls `looked` after each look, with whether it serves.
    pub(crate) fn start(mut self, mut looked: impl FnMut(bool) + Send + 'static) -> Watching {
        Watching(tokio::spawn(async move {
            while self.look().await.is_some() {
                looked(self.serves());
                sleep(LOOK_EVERY).await;
            }
        }))
    }

    /// Whether something of what there is to hold is held. Where every plan fails, it is rather the holder that is at fault.
    fn serves(&self) -> bool {
        let mut plans = self.plans.values();
        self.is_known && (self.plans.is_empty() || plans.any(|plan| plan.loaded.is_some()))
    }

    /// One look; `None` when there is no holder any more.
    async fn look(&mut self) -> Option<()> {
        for (digest, error) in self.holder.lost() {
            self.note_lost(&digest, &error);
        }
        let folder = self.folder.clone();
        let found = tokio::task::spawn_blocking(move || list(&folder)).await;
        // A folder that cannot be read is no reason to take away what serves.
        let Ok(Some(found)) = found else {
            return Some(());
        };
        self.is_known = true;
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
        self.unread.retain(|name| found.contains_key(name));
        for (name, found) in found {
            let found = match found {
                Ok(found) => found,
                // What it named serves on: that it cannot be read says nothing of that.
                Err(error) => {
                    if self.unread.insert(name.clone()) {
                        tracing::warn!(plan = name, folder = ?self.folder, %error, "cannot read a load plan; what it named stays as it is");
                    }
                    continue;
                }
            };
            self.unread.remove(&name);
            if self.plans.get(&name).is_none_or(|plan| plan.is_due(&found)) {
                self.load(name, found).await?;
            }
        }
        Some(())
    }

    /// Loads what a plan says, then lets go of what it said before.
    async fn load(&mut self, name: String, found: Found) -> Option<()> {
        let Found { text, written } = found;
        if let Some(plan) = self.plans.get_mut(&name)
            && plan.is_of_what_is_loaded(&text)
        {
            // What is in memory serves on, whoever may sign now; so it is with the model.
            plan.text = text;
            return Some(());
        }
        let added = self.holder.load(self.folder.join(&name)).await?;
        let old = self.plans.remove(&name);
        let (before, said) = old.map_or_else(Default::default, |plan| {
            let is_same = plan.text == text && plan.written == written;
            (
                plan.loaded,
                if is_same { plan.against } else { String::new() },
            )
        });
        let mut plan = Plan {
            text,
            written,
            loaded: None,
            retry: None,
            against: String::new(),
        };
        match added {
            Ok(digest) => {
                self.say((&name, &plan.text), "loaded", &digest, None);
                plan.loaded = Some(digest);
            }
            Err(error) => {
                plan.failed(&error);
                plan.against = chain(&error);
                if plan.against != said {
                    let state = plan.retry.map_or("refused", |_| "failed");
                    self.say((&name, &plan.text), state, "", Some(&error));
                }
            }
        }
        // What a plan says no more is not served any more, also where the new one is refused.
        if let Some(before) = before.filter(|before| Some(before) != plan.loaded.as_ref()) {
            self.remove(&name, before).await?;
        }
        self.plans.insert(name, plan);
        Some(())
    }

    async fn remove(&mut self, name: &str, digest: String) -> Option<()> {
        // Another plan may have loaded the same.
        let is_shared = self
            .plans
            .iter()
            .any(|(other, plan)| other != name && plan.loaded.as_ref() == Some(&digest));
        if !is_shared {
            self.holder.remove(&digest).await?;
        }
        self.say((name, b""), H::GONE, &digest, None);
        Some(())
    }

    fn note_lost(&mut self, digest: &str, error: &LoadError) {
        let mut texts = Vec::new();
        for (name, plan) in &mut self.plans {
            if plan.loaded.as_deref() == Some(digest) {
                plan.failed(error);
                texts.push((name.clone(), plan.text.clone()));
            }
        }
        for (name, text) in texts {
            self.say((&name, &text), "failed", digest, Some(error));
        }
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
            tracing::error!(
                plan,
                reason,
                message,
                event = H::EVENT,
                "what a plan names does not serve"
            );
        }
        self.announcer.said(
            H::EVENT,
            &Said {
                plan,
                state,
                digest,
                reason,
                message: &message,
                text: &Digest::of(text).to_string(),
            },
        );
    }
}

/// The plans of a folder, by file name, or why one cannot be read; `None` where the folder cannot be. A folder that is not there has none.
fn list(folder: &Path) -> Option<BTreeMap<String, std::io::Result<Found>>> {
    let mut paths = paths(folder)?;
    // A folder that is changed at one stroke, as kubelet does it, may have changed in between: what is gone then is gone at the second sight.
    for is_last in [false, true] {
        let mut found = BTreeMap::new();
        let mut is_torn = false;
        for (name, path) in paths.into_iter().take(PLANS_MAX) {
            match read(&path) {
                Ok(Some(plan)) => drop(found.insert(name, Ok(plan))),
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => is_torn = true,
                Err(error) => drop(found.insert(name, Err(error))),
            }
        }
        if is_last || !is_torn {
            return Some(found);
        }
        paths = self::paths(folder)?;
    }
    None
}

/// A plan's file; `None` where it cannot be one.
fn read(path: &Path) -> std::io::Result<Option<Found>> {
    let meta = std::fs::metadata(path)?;
    if !meta.is_file() || meta.len() > PLAN_BYTES_MAX {
        return Ok(None);
    }
    Ok(Some(Found {
        text: std::fs::read(path)?,
        written: meta.modified().ok(),
    }))
}

/// Files that may be plans, by name.
fn paths(folder: &Path) -> Option<BTreeMap<String, PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Some(BTreeMap::new()),
        Err(error) => {
            tracing::warn!(?folder, %error, "cannot look for load plans");
            return None;
        }
    };
    let mut plans = BTreeMap::new();
    for entry in entries {
        let entry = entry.ok()?;
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let path = entry.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            plans.insert(name, path);
        }
    }
    if plans.len() > PLANS_MAX {
        tracing::warn!(
            ?folder,
            plans = plans.len(),
            most = PLANS_MAX,
            "the plans beyond the most, by name, are left out"
        );
    }
    Some(plans)
}

#[cfg(test)]
mod tests;
