//! Resident memory and processor time of other processes and their children, sampled while the load runs.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};

const EVERY: Duration = Duration::from_millis(250);
/// What Linux shows to programs is in hundredths of a second, whatever the kernel counts in.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Clone, Copy, Default)]
struct Used {
    resident_bytes: u64,
    cpu_seconds: f64,
}

/// Watches until told to stop.
pub(crate) struct Watch {
    pids: Vec<u32>,
    before: Used,
    own_before: f64,
    stop: Arc<AtomicBool>,
    sampling: JoinHandle<u64>,
}

impl Watch {
    pub(crate) fn start(pids: &[u32]) -> Self {
        let (watched, stop) = (pids.to_vec(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let sampling = std::thread::spawn(move || {
            let mut peak = 0;
            while !stopped.load(Ordering::Relaxed) {
                peak = peak.max(used(&watched).resident_bytes);
                std::thread::sleep(EVERY);
            }
            peak.max(used(&watched).resident_bytes)
        });
        Self {
            before: used(pids),
            own_before: used(&[std::process::id()]).cpu_seconds,
            pids: pids.to_vec(),
            stop,
            sampling,
        }
    }

    /// What was used, in all and for each of `streams` and `events`.
    pub(crate) fn finish(self, streams: u64, events: u64) -> Value {
        self.stop.store(true, Ordering::Relaxed);
        let after = used(&self.pids);
        let peak = self.sampling.join().unwrap_or(0);
        let cpu = after.cpu_seconds - self.before.cpu_seconds;
        let grown = peak.saturating_sub(self.before.resident_bytes) as f64;
        let per = |value: f64, count: u64| (count > 0).then(|| value / count as f64);
        json!({
            "rss_before_mb": self.before.resident_bytes as f64 / 1e6, "rss_peak_mb": peak as f64 / 1e6, "cpu_s": cpu,
            "rss_per_stream_kb": per(grown / 1e3, streams), "cpu_per_event_us": per(cpu * 1e6, events),
            "load_cpu_s": used(&[std::process::id()]).cpu_seconds - self.own_before,
        })
    }
}

fn used(pids: &[u32]) -> Used {
    let mut sum = Used::default();
    for pid in pids {
        for pid in tree(*pid) {
            let one = of_process(pid).unwrap_or_default();
            sum.resident_bytes += one.resident_bytes;
            sum.cpu_seconds += one.cpu_seconds;
        }
    }
    sum
}

fn tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let tasks = fs::read_dir(format!("/proc/{pid}/task"));
    for task in tasks.into_iter().flatten().flatten() {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|c| c.parse().ok());
        all.extend(children.flat_map(tree));
    }
    all
}

fn of_process(pid: u32) -> Option<Used> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in parentheses, may hold spaces; user and system time are the 14th and 15th field.
    let fields = stat.rsplit_once(") ")?.1.split(' ').skip(11).take(2);
    let ticks: f64 = fields.filter_map(|field| field.parse::<f64>().ok()).sum();
    Some(Used {
        resident_bytes: kib * 1024,
        cpu_seconds: ticks / TICKS_PER_SECOND,
    })
}
