//! Keeps one worker process running: starts it, restarts it with backoff, stops it when it is no longer wanted.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use weir_manifest::Digest;

use super::process::{Exit, Process};
use super::said::{Line, SharedSaid};

/// First wait after a crash; doubled with each further one.
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
/// Longest wait between two starts: a person who fixes the cause should not have to wait for long.
const BACKOFF_LAST: Duration = Duration::from_secs(10);
/// What a worker prints is read so soon after it printed something, and half as often each time it did not, down to `READ_LAST`: a look
/// costs a microsecond.
const READ_FIRST: Duration = Duration::from_millis(5);
/// See `READ_FIRST`.
const READ_LAST: Duration = Duration::from_millis(160);
/// A worker that lived this long was healthy: its next crash starts from the first wait again.
const HEALTHY_AFTER: Duration = Duration::from_secs(30);

/// How to start a worker, and how to tell whether a running one is the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSpec {
    /// Unique on this machine: pool, model, version and replica.
    pub name: String,
    /// The program and its arguments.
    pub program: PathBuf,
    /// See `program`.
    pub arguments: Vec<String>,
    /// Over everything above and the files it loads.
    pub hash: String,
    /// Where its footprint is kept.
    pub footprint: PathBuf,
    /// What it is told to load, where that is one version. May change between two starts.
    pub plan: Option<PathBuf>,
}

/// Where a worker is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerState {
    /// Process started; loading.
    Starting {
        /// What it says it is doing.
        progress: String,
    },
    /// It takes sessions.
    Up,
    /// Crashed; starts again by itself.
    Backoff {
        /// What it said or how it ended.
        reason: String,
        /// Crashes since it was last healthy.
        crashes: u32,
    },
    /// Starting it again cannot help until its specification changes.
    Refused {
        /// One word.
        reason: String,
        /// What it said.
        message: String,
        /// Digest of the plan that it refused.
        plan: String,
    },
    /// Stopped as asked.
    Stopped,
}

/// Runs until `stop` is cancelled, then drains the worker within `drain`. Each change of state goes to `state`.
pub async fn supervise(
    spec: WorkerSpec,
    (state, plans): (watch::Sender<WorkerState>, SharedSaid),
    stop: CancellationToken,
    drain: Duration,
) {
    let mut crashes = 0_u32;
    let mut found = Process::find(&spec.hash, &spec.footprint);
    if found.is_some() {
        state.send_replace(WorkerState::Up);
    }
    loop {
        let mut plan = String::new();
        let process = if let Some(process) = found.take() {
            Ok(process)
        } else {
            plan = spec.plan.as_deref().map(plan_digest).unwrap_or_default();
            plans.lock().begin();
            start(&spec)
        };
        let started = Instant::now();
        let mut said = None;
        let exit = match process {
            Err(error) => Exit::Other(format!("cannot start {}: {error}", spec.program.display())),
            Ok(process) => match run(process, (&state, &plans, &mut said), &stop, drain).await {
                Some(exit) => exit,
                None => break,
            },
        };
        if started.elapsed() >= HEALTHY_AFTER {
            crashes = 0;
        }
        crashes = crashes.saturating_add(1);
        let refused = exit == Exit::Configuration;
        state.send_replace(after_exit(exit, said, crashes, plan));
        let wait = async {
            if refused {
                std::future::pending::<()>().await;
            } else {
                sleep(backoff(crashes, &spec.name)).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => break,
            () = wait => {}
        }
    }
    state.send_replace(WorkerState::Stopped);
}

/// Why a worker says that it ends: one word, and the cause.
type Failure = Option<(String, String)>;

/// Until the process ends; nothing where it was stopped as asked.
async fn run(
    mut process: Process,
    (state, plans, said): (&watch::Sender<WorkerState>, &SharedSaid, &mut Failure),
    stop: &CancellationToken,
    drain: Duration,
) -> Option<Exit> {
    let mut note = |lines: Vec<String>| {
        let is_news = !lines.is_empty();
        for line in lines {
            note_line(&line, (state, plans), said);
        }
        is_news
    };
    let mut pause = READ_FIRST;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => {
                process.stop(drain).await;
                return None;
            }
            exit = process.wait() => {
                note(process.lines.whole());
                return Some(exit);
            }
            () = sleep(pause) => {
                let is_news = note(process.lines.whole());
                pause = if is_news { READ_FIRST } else { (pause * 2).min(READ_LAST) };
            }
        }
    }
}

fn start(spec: &WorkerSpec) -> std::io::Result<Process> {
    let mut command = Command::new(&spec.program);
    command.args(&spec.arguments);
    Process::start(command, &spec.hash, Path::new(&spec.footprint))
}

fn note_line(
    line: &str,
    (state, plans): (&watch::Sender<WorkerState>, &SharedSaid),
    said: &mut Failure,
) {
    let Ok(line) = serde_json::from_str::<Line>(line) else {
        tracing::debug!(line, "a worker printed a line that is not an event");
        return;
    };
    if plans.lock().note(&line) {
        // Whoever watches looks again.
        return state.send_modify(|_| {});
    }
    match line.event.as_str() {
        "ready" => drop(state.send_replace(WorkerState::Up)),
        "failed" => *said = Some((line.reason, line.message)),
        _ => drop(state.send_replace(WorkerState::Starting {
            progress: line.message,
        })),
    }
}

/// Digest of a plan file's content; of nothing when it cannot be read, which the worker will say itself.
fn plan_digest(plan: &Path) -> String {
    Digest::of(&std::fs::read(plan).unwrap_or_default()).to_string()
}

fn after_exit(exit: Exit, said: Failure, crashes: u32, plan: String) -> WorkerState {
    match (exit, said) {
        (Exit::Configuration, Some((reason, message))) => WorkerState::Refused {
            reason,
            message,
            plan,
        },
        (Exit::Configuration, None) => WorkerState::Refused {
            reason: "LoadFailed".to_owned(),
            message: "the worker refused what it was given and did not say why; see its log"
                .to_owned(),
            plan,
        },
        (Exit::Other(status), Some((_, message))) => WorkerState::Backoff {
            reason: format!("{message} ({status})"),
            crashes,
        },
        (Exit::Other(status), None) => WorkerState::Backoff {
            reason: status,
            crashes,
        },
    }
}

/// Doubling, with a jitter of up to a quarter that depends on name and count only, so that workers that die together do not
/// start together.
fn backoff(crashes: u32, name: &str) -> Duration {
    let doubled = BACKOFF_FIRST
        .saturating_mul(1 << crashes.saturating_sub(1).min(16))
        .min(BACKOFF_LAST);
    let spread = name.bytes().fold(crashes, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u32::from(byte))
    }) % 256;
    doubled + doubled * spread / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(dir: &Path, script: &str) -> WorkerSpec {
        WorkerSpec {
            name: "w".to_owned(),
            program: "sh".into(),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            hash: script.to_owned(),
            footprint: dir.join("w.json"),
            plan: Some(dir.join("w.plan")),
        }
    }

    async fn until(
        states: &mut watch::Receiver<WorkerState>,
        want: impl Fn(&WorkerState) -> bool,
    ) -> WorkerState {
        tokio::time::timeout(Duration::from_secs(20), states.wait_for(want))
            .await
            .unwrap()
            .unwrap()
            .clone()
    }

    fn begin(
        spec: WorkerSpec,
    ) -> (
        watch::Receiver<WorkerState>,
        CancellationToken,
        tokio::task::JoinHandle<()>,
    ) {
        let (sender, states) = watch::channel(WorkerState::Starting {
            progress: String::new(),
        });
        let stop = CancellationToken::new();
        let task = tokio::spawn(supervise(
            spec,
            (sender, SharedSaid::default()),
            stop.clone(),
            Duration::from_secs(5),
        ));
        (states, stop, task)
    }

    #[tokio::test]
    async fn a_worker_that_dies_starts_again() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        let script = format!(
            "if [ -e {0} ]; then echo '{{\"event\":\"ready\"}}'; exec sleep 60; fi; touch {0}; echo '{{\"event\":\"failed\",\"message\":\"no luck\"}}'; exit 3",
            mark.display()
        );
        let (mut states, stop, task) = begin(spec(dir.path(), &script));
        let crashed = until(&mut states, |s| matches!(s, WorkerState::Backoff { .. })).await;
        assert_eq!(
            crashed,
            WorkerState::Backoff {
                reason: "no luck (exit status: 3)".to_owned(),
                crashes: 1
            }
        );
        until(&mut states, |s| *s == WorkerState::Up).await;
        stop.cancel();
        task.await.unwrap();
        assert_eq!(*states.borrow(), WorkerState::Stopped);
    }

    #[tokio::test]
    async fn a_worker_that_refuses_its_configuration_is_not_started_again() {
        let dir = tempfile::tempdir().unwrap();
        let script =
            "echo '{\"event\":\"failed\",\"reason\":\"FileTampered\",\"message\":\"m\"}'; exit 78";
        let (mut states, stop, task) = begin(spec(dir.path(), script));
        let refused = until(&mut states, |s| matches!(s, WorkerState::Refused { .. })).await;
        assert_eq!(
            refused,
            WorkerState::Refused {
                reason: "FileTampered".to_owned(),
                message: "m".to_owned(),
                plan: plan_digest(Path::new("/nothing")),
            }
        );
        stop.cancel();
        task.await.unwrap();
    }

    #[test]
    fn backoff_doubles_up_to_a_bound() {
        for crashes in 1..40 {
            let wait = backoff(crashes, "pool/model/1/0");
            assert!(
                wait >= BACKOFF_FIRST && wait <= BACKOFF_LAST * 5 / 4,
                "{crashes}: {wait:?}"
            );
        }
        assert!(backoff(3, "a") >= BACKOFF_FIRST * 4);
    }
}
