//! Moves traffic between versions on one machine: the same decisions as on a cluster, over files, processes and one gateway.
//!
//! Everything is decided by `weir_rollout::decide`; here is what it is asked with and what carries out its answers.

mod children;
mod log;
mod posted;
mod rollout;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use weir_rollout::evidence::Snapshot;

pub use children::ReplicasSeen;
pub use posted::posted;
pub use rollout::{Clock, ModelSeen, Rollout};

/// The rollouts of all models.
pub struct Rollouts {
    folder: PathBuf,
    entropy: [u8; 32],
    models: BTreeMap<String, Rollout>,
    /// Which model exchanges replicas in a pool.
    leases: BTreeMap<String, String>,
}

impl Rollouts {
    /// Opens the logs under the data folder. Which models there are turns out later.
    ///
    /// # Errors
    /// A folder cannot be made, or the secret of the coins cannot be made or read.
    pub fn open(data: &Path) -> io::Result<Self> {
        let folder = data.join("rollouts");
        std::fs::create_dir_all(&folder)?;
        Ok(Self {
            entropy: entropy(&folder.join("coin.secret"))?,
            folder,
            models: BTreeMap::new(),
            leases: BTreeMap::new(),
        })
    }

    /// Decides for a model, and again until nothing is left to decide now.
    ///
    /// # Errors
    /// A record cannot be written: what was in force stays so.
    pub fn step(
        &mut self,
        model: &str,
        seen: &ModelSeen,
        evidence: Option<&Snapshot>,
        clock: Clock,
    ) -> io::Result<&Rollout> {
        if !self.models.contains_key(model) {
            let rollout = Rollout::open(&self.folder, model, self.entropy)?;
            self.models.insert(model.to_owned(), rollout);
        }
        let rollout = self.models.get_mut(model).expect("it was just put there");
        rollout.step(seen, evidence, clock, &mut self.leases)?;
        Ok(rollout)
    }

    /// A model's rollout.
    pub fn of(&self, model: &str) -> Option<&Rollout> {
        self.models.get(model)
    }

    /// All of them, by model.
    pub fn all(&self) -> impl Iterator<Item = (&String, &Rollout)> {
        self.models.iter()
    }

    /// What every rollout remembers, as JSON by model.
    pub fn page(&self) -> String {
        let heads: BTreeMap<&String, _> = self
            .models
            .iter()
            .map(|(model, rollout)| (model, rollout.head()))
            .collect();
        serde_json::to_string(&heads).unwrap_or_default()
    }

    /// Hands a person's request to a model's rollout.
    pub fn ask(&mut self, model: &str, request: weir_rollout::decide::Request) -> bool {
        self.models.get_mut(model).is_some_and(|rollout| {
            rollout.ask(request);
            true
        })
    }
}

/// The secret from which coins are salted, made once: tenants who knew it could choose their version.
fn entropy(path: &Path) -> io::Result<[u8; 32]> {
    use std::os::unix::fs::OpenOptionsExt as _;
    if let Ok(bytes) = std::fs::read(path)
        && let Ok(secret) = <[u8; 32]>::try_from(bytes.as_slice())
    {
        return Ok(secret);
    }
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|error| io::Error::other(error.to_string()))?;
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    io::Write::write_all(&mut file, &secret)?;
    file.sync_all()?;
    Ok(secret)
}
