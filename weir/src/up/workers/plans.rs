//! Files that tell workers what to hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use weir_manifest::Digest;

use crate::up::verify::Verified;

/// What a worker is told to load.
pub(super) fn plan_text(verified: &Verified) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(&verified.plan)?)
}

/// Digest of what a worker would be told to load.
pub fn plan_digest(verified: &Verified) -> Option<String> {
    Some(Digest::of(&plan_text(verified).ok()?).to_string())
}

/// A reader sees the old content or the new, never a part.
pub(super) fn write_if_changed(path: &Path, content: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|old| old == content) {
        return Ok(());
    }
    write(path, content)
}

/// As `write_if_changed`, with a new time in any case: a worker tries again what it refused.
pub(super) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let partial = path.with_extension("partial");
    fs::write(&partial, content)?;
    fs::rename(partial, path)
}

/// Makes a folder hold these plans.
pub(super) fn write_all(folder: &Path, plans: &BTreeMap<String, Vec<u8>>) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, text) in plans {
        write_if_changed(&folder.join(name), text)?;
    }
    Ok(())
}

/// Removes the plans of a folder that are not `kept`, and what else is there for them.
pub(super) fn keep_only(folder: &Path, kept: &BTreeSet<&str>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(|name| kept.contains(name)) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
