//! The machine under a measurement, and what processes on it use. Linux only: it reads /proc.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::repo;

/// What does not change while this runs.
pub(super) fn facts() -> Value {
    let first = |path: &str, key: &str| -> Option<String> {
        let text = fs::read_to_string(path).ok()?;
        let line = text.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    json!({
        "cpu": first("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "memory": first("/proc/meminfo", "MemTotal"),
        "kernel": kernel.trim(),
        "commit": commit(),
    })
}

fn commit() -> Option<String> {
    let git = |arguments: &[&str]| -> Option<String> {
        let mut command = Command::new("git");
        let output = command
            .args(arguments)
            .current_dir(repo::root())
            .output()
            .ok()?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=10", "HEAD"])?;
    let is_changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if is_changed {
        format!("{commit}, changed")
    } else {
        commit
    })
}

/// Load average over the last minute.
pub(super) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next();
    first.and_then(|load| load.parse().ok()).unwrap_or(f64::NAN)
}

/// Resident memory of a process.
#[derive(Clone, Copy, Default)]
pub(super) struct Memory {
    /// All of it.
    pub(super) resident_mib: f64,
    /// What no file backs: the process's own.
    pub(super) own_mib: f64,
}

impl Memory {
    /// The larger of each.
    pub(super) fn max(self, other: Self) -> Self {
        Self {
            resident_mib: self.resident_mib.max(other.resident_mib),
            own_mib: self.own_mib.max(other.own_mib),
        }
    }
}

/// Resident memory of a process now.
pub(super) fn memory(pid: i32) -> Result<Memory> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let mib = |key: &str| -> Result<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        Ok(kib.with_context(|| format!("no {key} in {path}"))? / 1024.0)
    };
    Ok(Memory {
        resident_mib: mib("VmRSS:")?,
        own_mib: mib("RssAnon:")?,
    })
}

/// Processor time that a process has used so far, all its threads together.
pub(super) fn cpu_time(pid: i32) -> Result<Duration> {
    /// What Linux shows to programs is in hundredths of a second, whatever the kernel counts in.
    const TICK: Duration = Duration::from_millis(10);
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    // The name of the program, in parentheses, may hold spaces; user and system time are the 14th and 15th field.
    let (_, fields) = text.rsplit_once(") ").context("no program name")?;
    let times = fields.split(' ').skip(11).take(2);
    let ticks = times.map(str::parse::<u32>).sum::<Result<u32, _>>();
    Ok(TICK * ticks.with_context(|| format!("cannot understand {path}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_uses_time() {
        let own = i32::try_from(std::process::id()).unwrap();
        let memory = memory(own).unwrap();
        assert!(memory.resident_mib > memory.own_mib && memory.own_mib > 0.0);
        let before = cpu_time(own).unwrap();
        let mut sum = 0_u64;
        while cpu_time(own).unwrap() == before {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(load() >= 0.0);
    }
}
