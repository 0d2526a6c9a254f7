//! An identity as new as its files.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::credentials::{AUTHORITIES, CERTIFICATE, Credentials, KEY};
use crate::error::IdentityError;

/// How often the files are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a process proves itself with, as new as the files `tls.crt`, `tls.key` and `ca.crt` of a folder.
///
/// Connections that are open live on when it changes; new ones use what is new.
#[derive(Debug)]
pub struct Identity {
    folder: PathBuf,
    current: ArcSwapOption<Credentials>,
    seen: Mutex<Seen>,
}

/// What the files had when they were looked at last.
#[derive(Debug)]
struct Seen {
    parts: Option<[Vec<u8>; 3]>,
    /// What was wrong with it: said once, not at each look.
    fault: Option<String>,
}

/// What came of files that changed.
#[derive(Debug)]
pub enum Reload {
    /// They are in force.
    Taken(Arc<Credentials>),
    /// They cannot be used: what was before is in force still.
    Refused(IdentityError),
}

impl Identity {
    /// Reads the folder, which must be complete.
    ///
    /// # Errors
    /// A file cannot be read or used.
    pub fn open(folder: &Path) -> Result<Self, IdentityError> {
        let identity = Self::awaited(folder);
        match identity.look() {
            Some(Reload::Refused(error)) => Err(error),
            _ => Ok(identity),
        }
    }

    /// For a folder that is filled later: nobody can be called until then.
    pub fn awaited(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            current: ArcSwapOption::empty(),
            seen: Mutex::new(Seen {
                parts: None,
                fault: None,
            }),
        }
    }

    /// What is in force now.
    ///
    /// # Errors
    /// The folder never had anything usable.
    pub fn current(&self) -> Result<Arc<Credentials>, IdentityError> {
        self.current.load_full().ok_or_else(|| {
            let fault = self.seen.lock().fault.clone();
            IdentityError::None(
                fault.unwrap_or_else(|| format!("{} is empty", self.folder.display())),
            )
        })
    }

    /// Looks at the files once; `None` where they are as they were. Blocks.
    pub fn look(&self) -> Option<Reload> {
        let read = read(&self.folder);
        let mut seen = self.seen.lock();
        let made = match read {
            Ok(parts) if seen.parts.as_ref() == Some(&parts) => return None,
            Ok(parts) => {
                let [certificate, key, authorities] = &parts;
                let made = Credentials::from_pem(certificate, key, authorities);
                seen.parts = Some(parts);
                made
            }
            Err(error) => {
                seen.parts = None;
                Err(error)
            }
        };
        match made {
            Ok(credentials) => {
                let credentials = Arc::new(credentials);
                self.current.store(Some(Arc::clone(&credentials)));
                seen.fault = None;
                Some(Reload::Taken(credentials))
            }
            Err(error) => {
                let fault = described(&error);
                if seen.fault.as_ref() == Some(&fault) {
                    return None;
                }
                seen.fault = Some(fault);
                Some(Reload::Refused(error))
            }
        }
    }

    /// Takes over what is new until `stop`, and tells of it.
    pub async fn follow(self: Arc<Self>, stop: CancellationToken, told: impl Fn(&Reload)) {
        loop {
            let looking = Arc::clone(&self);
            let Ok(reload) = tokio::task::spawn_blocking(move || looking.look()).await else {
                return;
            };
            match &reload {
                Some(Reload::Taken(now)) => {
                    let left = now.life().end.duration_since(std::time::SystemTime::now());
                    let left_s = left.map_or(0, |left| left.as_secs());
                    tracing::info!(folder = %self.folder.display(), left_s, "identity taken over");
                }
                Some(Reload::Refused(error)) => tracing::error!(
                    error = error as &dyn std::error::Error,
                    "the identity was not taken; the one before is used on"
                ),
                None => {}
            }
            if let Some(reload) = &reload {
                told(reload);
            }
            let rest = tokio::time::sleep(LOOK_EVERY);
            if stop.run_until_cancelled(rest).await.is_none() {
                return;
            }
        }
    }
}

/// Half a replacement is seen as a pair that does not fit; the next look sees the whole.
fn read(folder: &Path) -> Result<[Vec<u8>; 3], IdentityError> {
    let part = |name: &str| {
        let path = folder.join(name);
        std::fs::read(&path).map_err(|source| IdentityError::Read { path, source })
    };
    Ok([part(CERTIFICATE)?, part(KEY)?, part(AUTHORITIES)?])
}

fn described(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}
