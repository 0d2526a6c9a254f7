//! What a worker prints on stdout. It is kept in memory that lives as long as the worker does: whoever takes a worker over reads it from the
//! beginning, and a parent that does not read never blocks it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::process::Stdio;

use rustix::fs::{MemfdFlags, memfd_create};

/// Bytes asked for at once.
const CHUNK: usize = 4096;

/// See the module.
#[derive(Debug)]
pub struct Lines {
    /// None where the stdout of a worker that was found cannot be read.
    file: Option<File>,
    read: u64,
    /// The beginning of a line whose end was not written yet.
    rest: Vec<u8>,
}

impl Lines {
    /// For a process that is about to start: what reads, and its stdout.
    ///
    /// # Errors
    /// There is no memory, or no file descriptor left.
    pub fn new() -> io::Result<(Self, Stdio)> {
        let file = File::from(memfd_create("weir-worker-stdout", MemfdFlags::CLOEXEC)?);
        let stdout = Stdio::from(file.try_clone()?);
        Ok((Self::read_from(Some(file)), stdout))
    }

    /// Of a process that runs already.
    pub fn of(pid: i32) -> Self {
        let file = File::open(format!("/proc/{pid}/fd/1")).ok();
        // A pipe or a terminal is not ours to read.
        Self::read_from(file.filter(|file| file.metadata().is_ok_and(|meta| meta.is_file())))
    }

    fn read_from(file: Option<File>) -> Self {
        Self {
            file,
            read: 0,
            rest: Vec::new(),
        }
    }

    /// The whole lines since the last call.
    pub fn whole(&mut self) -> Vec<String> {
        let mut chunk = [0; CHUNK];
        while let Some(file) = &self.file {
            match file.read_at(&mut chunk, self.read) {
                Ok(0) => break,
                Ok(count) => {
                    self.read += count as u64;
                    self.rest.extend_from_slice(&chunk[..count]);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "a worker's stdout cannot be read");
                    self.file = None;
                }
            }
        }
        let Some(end) = self.rest.iter().rposition(|byte| *byte == b'\n') else {
            return Vec::new();
        };
        let rest = self.rest.split_off(end + 1);
        let whole = std::mem::replace(&mut self.rest, rest);
        let whole = String::from_utf8_lossy(&whole);
        whole.lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn lines_come_whole_and_once() {
        let mut out = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        let mut lines = Lines::read_from(Some(out.try_clone().unwrap()));
        assert!(lines.whole().is_empty());
        let long = "x".repeat(3 * CHUNK);
        write!(out, "a\n{long}").unwrap();
        assert_eq!(lines.whole(), ["a"]);
        assert!(lines.whole().is_empty());
        write!(out, "y\nb\n").unwrap();
        assert_eq!(lines.whole(), [format!("{long}y"), "b".to_owned()]);
    }
}
