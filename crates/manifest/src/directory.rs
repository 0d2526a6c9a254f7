//! Reads an artifact's directory without ever following a link.
//!
//! Every name is opened component by component, relative to the directory opened before it, with `O_NOFOLLOW`. Only the directory that
//! the caller names may itself be reached through links (volumes are mounted so).

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

use crate::VerifyError;
use crate::path::FilePath;
use crate::statement::MAX_FILES;

/// An open directory.
#[derive(Debug)]
pub(crate) struct ArtifactDir {
    root: OwnedFd,
    path: PathBuf,
}

impl ArtifactDir {
    pub(crate) fn open(path: &Path) -> Result<Self, VerifyError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| unreadable(path, e))?;
        Ok(Self {
            root,
            path: path.to_owned(),
        })
    }

    /// Opens a regular file for reading.
    pub(crate) fn open_file(&self, path: &FilePath) -> Result<(File, Stat), VerifyError> {
        let mut parent: Option<OwnedFd> = None;
        let mut components = path.components().peekable();
        while let Some(component) = components.next() {
            let dir = parent.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
            let kind = if components.peek().is_some() {
                OFlags::DIRECTORY
            } else {
                // Without O_NONBLOCK the opening of a pipe would wait for its other end.
                OFlags::NONBLOCK | OFlags::NOCTTY
            };
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | kind;
            match openat(dir, component, flags, Mode::empty()) {
                Ok(fd) if components.peek().is_some() => parent = Some(fd),
                Ok(fd) => return self.regular(path, fd),
                Err(error) => {
                    let found = statat(dir, component, AtFlags::SYMLINK_NOFOLLOW).ok();
                    return Err(self.open_fault(path, error, found.as_ref()));
                }
            }
        }
        unreachable!("a path has at least one component")
    }

    fn regular(&self, path: &FilePath, fd: OwnedFd) -> Result<(File, Stat), VerifyError> {
        let stat = fstat(&fd).map_err(|e| unreadable(&self.path.join(path.as_str()), e))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(VerifyError::FileNotRegular {
                path: path.to_string(),
            });
        }
        Ok((File::from(fd), stat))
    }

    fn open_fault(&self, path: &FilePath, error: Errno, found: Option<&Stat>) -> VerifyError {
        let path_text = path.to_string();
        match found.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            Some(FileType::Symlink) => VerifyError::FileSymlink { path: path_text },
            None if error == Errno::NOENT => VerifyError::FileMissing { path: path_text },
            // A file where the path wants a directory, or a socket, which cannot be opened at all.
            _ if error == Errno::NOTDIR => VerifyError::FileMissing { path: path_text },
            Some(FileType::Socket) => VerifyError::FileNotRegular { path: path_text },
            _ => unreadable(&self.path.join(path.as_str()), error),
        }
    }

    /// Every file of the directory but those at or below `ignored`. Links and special files are refused, not skipped; empty directories
    /// hold nothing that could be served.
    pub(crate) fn list(&self, ignored: &[FilePath]) -> Result<BTreeSet<FilePath>, VerifyError> {
        let mut files = BTreeSet::new();
        self.list_into(&mut files, self.root.as_fd(), None, ignored)?;
        Ok(files)
    }

    /// The depth is bounded by that of a [`FilePath`].
    fn list_into(
        &self,
        files: &mut BTreeSet<FilePath>,
        dir: impl AsFd + Copy,
        prefix: Option<&FilePath>,
        ignored: &[FilePath],
    ) -> Result<(), VerifyError> {
        let shown = prefix.map_or_else(|| self.path.clone(), |p| self.path.join(p.as_str()));
        for entry in Dir::read_from(dir).map_err(|e| unreadable(&shown, e))? {
            let entry = entry.map_err(|e| unreadable(&shown, e))?;
            let name = entry.file_name().to_string_lossy();
            if name == "." || name == ".." {
                continue;
            }
            // A name that is not UTF-8 becomes one that does not exist, and contains a replacement character.
            if entry.file_name().to_str().is_err() {
                return Err(VerifyError::PathInvalid {
                    path: name.into_owned(),
                    fault: "is not UTF-8".to_owned(),
                });
            }
            let path: FilePath = prefix
                .map_or_else(|| name.to_string(), |p| format!("{p}/{name}"))
                .parse()?;
            if ignored.iter().any(|other| path.is_within(other)) {
                continue;
            }
            let stat = statat(dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|e| unreadable(&shown.join(&*name), e))?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => {
                    files.insert(path);
                }
                FileType::Directory => {
                    let flags =
                        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let below = openat(dir, entry.file_name(), flags, Mode::empty())
                        .map_err(|e| unreadable(&shown.join(&*name), e))?;
                    self.list_into(files, &below, Some(&path), ignored)?;
                }
                FileType::Symlink => return Err(VerifyError::FileSymlink { path: path.into() }),
                _ => return Err(VerifyError::FileNotRegular { path: path.into() }),
            }
            if files.len() > MAX_FILES {
                return Err(VerifyError::TooManyFiles { limit: MAX_FILES });
            }
        }
        Ok(())
    }

    pub(crate) fn shown(&self, path: &FilePath) -> PathBuf {
        self.path.join(path.as_str())
    }
}

pub(crate) fn unreadable(path: &Path, source: impl Into<io::Error>) -> VerifyError {
    VerifyError::FileUnreadable {
        path: path.to_owned(),
        source: source.into(),
    }
}
