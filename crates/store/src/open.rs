//! The folder of a store: which engine it is of, which format, and that only one process has it open.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use crate::embedded::Embedded;
use crate::kv::{self, Batch, Kv};
use crate::record::{key, seal, unseal};
use crate::writer::state::ReadError;
use crate::{Store, StoreError};

/// The format that this version reads and writes.
const FORMAT: u64 = 1;

/// Which engine keeps the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Our own log over a redb checkpoint.
    #[default]
    Log,
    /// redb 4: a copy-on-write B-tree in one file.
    Redb,
    /// sled 0.34: a Bw-tree over a log.
    Sled,
}

impl Engine {
    /// The name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Redb => "redb",
            Self::Sled => "sled",
        }
    }
}

impl std::str::FromStr for Engine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Log, Self::Redb, Self::Sled]
            .into_iter()
            .find(|engine| engine.as_str() == text)
            .ok_or_else(|| format!("unknown store engine {text:?}: there are log, redb and sled"))
    }
}

/// What an answer of the store promises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// It was synced to the medium: it survives the machine.
    #[default]
    Disk,
    /// It is with the kernel: it survives the process, however that dies. The medium follows within about a second; when the machine dies, the
    /// latest commits may be missing, always the newest ones and each whole, so that every budget adds up again. Only of the log.
    Memory,
}

impl Durability {
    /// The name in configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Memory => "memory",
        }
    }
}

impl std::str::FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::Disk, Self::Memory]
            .into_iter()
            .find(|durability| durability.as_str() == text)
            .ok_or_else(|| format!("unknown durability {text:?}: there are disk and memory"))
    }
}

/// Opens the store in a folder, or makes one. Needs no async runtime; blocks while it reads what is live.
///
/// # Errors
/// When another process has it open, it is of another engine or a newer format, or its files cannot be read.
pub fn open(folder: &Path, engine: Engine) -> Result<Arc<dyn Store>, StoreError> {
    open_with(folder, engine, Durability::Disk)
}

/// As [`open`], with another promise.
///
/// # Errors
/// As [`open`], and when the engine cannot keep this promise apart from the stronger one.
pub fn open_with(
    folder: &Path,
    engine: Engine,
    durability: Durability,
) -> Result<Arc<dyn Store>, StoreError> {
    if durability == Durability::Memory && engine != Engine::Log {
        return Err(StoreError::Contract(format!(
            "durability memory is of the log alone, and this store is kept by {}: choose --store log, or durability disk",
            engine.as_str()
        )));
    }
    let path = || folder.display().to_string();
    let unwritable = |error: std::io::Error| StoreError::Write {
        path: path(),
        cause: error.to_string(),
    };
    std::fs::create_dir_all(folder).map_err(unwritable)?;
    let (kv, lock) = files(folder, engine, durability)?;
    let identity = identity(&*kv).map_err(|cause| StoreError::Read {
        path: path(),
        cause,
    })?;
    // The engine's own files are new in the folder: their names have to be durable too.
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(unwritable)?;
    let again = folder.to_owned();
    let reopen = Box::new(move || kv::open(&again, engine, durability));
    let store = Embedded::start(folder.to_owned(), identity, kv, lock, reopen);
    Ok(Arc::new(store.map_err(|error| unreadable(folder, &error))?))
}

/// The engine's files, and the lock on the folder that is held while they are open.
pub(crate) fn files(
    folder: &Path,
    engine: Engine,
    durability: Durability,
) -> Result<(Arc<dyn Kv>, File), StoreError> {
    let lock = lock(folder)?;
    claim(folder, engine)?;
    let kv =
        kv::open(folder, engine, durability).map_err(|error| unreadable(folder, &error.into()))?;
    Ok((kv, lock))
}

fn unreadable(folder: &Path, error: &ReadError) -> StoreError {
    StoreError::Read {
        path: folder.display().to_string(),
        cause: error.to_string(),
    }
}

/// Held as long as the file is open; the kernel gives it back when the process dies, however it dies.
fn lock(folder: &Path) -> Result<File, StoreError> {
    let path = folder.join("lock");
    let failed = |error: std::io::Error| StoreError::Write {
        path: path.display().to_string(),
        cause: error.to_string(),
    };
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(failed)?;
    let is_held = |error: &StoreError| matches!(error, StoreError::Locked { .. });
    kv::patiently(is_held, || match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked {
            path: folder.display().to_string(),
        }),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    })?;
    Ok(file)
}

/// The folder is of one engine for good: opening it with another would look like an empty store.
fn claim(folder: &Path, engine: Engine) -> Result<(), StoreError> {
    let path = folder.join("engine");
    let failed = |error: std::io::Error| StoreError::Write {
        path: path.display().to_string(),
        cause: error.to_string(),
    };
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .map_err(failed)?;
    let mut found = String::new();
    file.read_to_string(&mut found).map_err(failed)?;
    match found.trim() {
        // Nothing, or what a crash left of the write below: no engine has made its files yet.
        "" => {
            file.write_all(engine.as_str().as_bytes()).map_err(failed)?;
            file.sync_all().map_err(failed)
        }
        name if name == engine.as_str() => Ok(()),
        name => Err(StoreError::Read {
            path: folder.display().to_string(),
            cause: format!(
                "it is kept by {name:?}, not by {:?}: choose that engine, or another folder",
                engine.as_str()
            ),
        }),
    }
}

/// The identity of an existing store, or a new one.
pub(crate) fn identity(kv: &dyn Kv) -> Result<String, String> {
    let (format, identity) = (key::meta("format"), key::meta("identity"));
    let view = kv.view().map_err(|error| error.to_string())?;
    let read = |key: &[u8]| -> Result<Option<Vec<u8>>, String> {
        let Some(value) = view.get(key).map_err(|error| error.to_string())? else {
            return Ok(None);
        };
        let payload = unseal(key, &value).map_err(|error| error.to_string())?;
        Ok(Some(payload.to_vec()))
    };
    if let Some(found) = read(&format)? {
        let bytes = <[u8; 8]>::try_from(found.as_slice());
        let found = bytes.map_or(0, u64::from_be_bytes);
        if found != FORMAT {
            return Err(format!(
                "its format is {found}, this version reads {FORMAT}: use the version that wrote it"
            ));
        }
        let name = read(&identity)?.ok_or("it has no identity")?;
        return String::from_utf8(name).map_err(|_| "its identity is not text".to_owned());
    }
    drop(view);
    let mut random = [0_u8; 16];
    getrandom::fill(&mut random).map_err(|error| error.to_string())?;
    let name = format!("{:032x}", u128::from_be_bytes(random));
    let mut batch = Batch::new();
    let sealed = seal(&format, FORMAT.to_be_bytes().to_vec());
    batch.insert(format, Some(sealed));
    let sealed = seal(&identity, name.clone().into_bytes());
    batch.insert(identity, Some(sealed));
    kv.commit(&batch).map_err(|error| error.to_string())?;
    Ok(name)
}
