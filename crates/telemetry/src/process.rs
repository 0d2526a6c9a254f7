//! The figures of the process itself, read from `/proc` when someone asks.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Ticks per second of the times in `/proc/self/stat`: `USER_HZ`, 100 on every Linux architecture Rust supports.
const TICKS_PER_SECOND: f64 = 100.0;

/// Reads `/proc/self` at each scrape. Where a file cannot be read (not Linux, hidden `/proc`) its figures are left out, never zero.
#[derive(Debug)]
pub(crate) struct ProcessCollector {
    start_unix_seconds: Option<f64>,
}

impl ProcessCollector {
    pub(crate) fn new() -> Self {
        Self {
            start_unix_seconds: start_unix_seconds(),
        }
    }
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let status = std::fs::read_to_string("/proc/self/status").ok();
        let kib = |field| status.as_deref().and_then(|text| status_kib(text, field));
        let gauges = [
            (
                "process_resident_memory_bytes",
                "Resident memory",
                kib("VmRSS:").map(|k| k * 1024),
            ),
            (
                "process_virtual_memory_bytes",
                "Virtual memory",
                kib("VmSize:").map(|k| k * 1024),
            ),
            (
                "process_resident_memory_peak_bytes",
                "Largest resident memory so far",
                kib("VmHWM:").map(|k| k * 1024),
            ),
            ("process_open_fds", "Open file descriptors", open_files()),
            (
                "process_max_fds",
                "Most file descriptors that may be open",
                max_files(),
            ),
        ];
        for (name, help, value) in gauges {
            if let Some(value) = value {
                encode(
                    &mut encoder,
                    name,
                    help,
                    &ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)),
                )?;
            }
        }
        if let Some(seconds) = self.start_unix_seconds {
            let help = "Start of the process, in seconds since the Unix epoch";
            encode(
                &mut encoder,
                "process_start_time_seconds",
                help,
                &ConstGauge::new(seconds),
            )?;
        }
        if let Some(seconds) = stat_fields().and_then(|fields| cpu_seconds(&fields)) {
            let help = "User and system time used";
            encode(
                &mut encoder,
                "process_cpu_seconds",
                help,
                &ConstCounter::new(seconds),
            )?;
        }
        Ok(())
    }
}

fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

/// A line such as `VmRSS:     1234 kB`.
fn status_kib(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

fn open_files() -> Option<u64> {
    // The directory being read is one of them.
    Some((std::fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1))
}

fn max_files() -> Option<u64> {
    let limits = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The fields of `/proc/self/stat` from the third on. The second is the command in parentheses, which may hold spaces itself.
fn stat_fields() -> Option<Vec<String>> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

/// `utime` and `stime` are fields 14 and 15 of `proc_pid_stat(5)`.
fn cpu_seconds(fields: &[String]) -> Option<f64> {
    let user: u64 = fields.get(11)?.parse().ok()?;
    let system: u64 = fields.get(12)?.parse().ok()?;
    Some((user + system) as f64 / TICKS_PER_SECOND)
}

/// `starttime`, field 22 of `proc_pid_stat(5)`, counts from boot; `btime` of `/proc/stat` is the boot.
fn start_unix_seconds() -> Option<f64> {
    let since_boot: u64 = stat_fields()?.get(19)?.parse().ok()?;
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let boot: u64 = stat
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()?;
    Some(boot as f64 + since_boot as f64 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_this_process_are_plausible() {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let resident = status_kib(&status, "VmRSS:").unwrap();
        assert!((500..64 << 20).contains(&resident), "{resident} KiB");
        assert!(open_files().unwrap() >= 3);
        assert!(max_files().unwrap() >= open_files().unwrap());
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs_f64();
        let age = now - start_unix_seconds().unwrap();
        assert!((-2.0..86_400.0).contains(&age), "{age} s old");
        assert!(cpu_seconds(&stat_fields().unwrap()).unwrap() < 86_400.0);
    }
}
