//! The thread that drives the engine, and the handle others hold.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};
use tonic::Status;

use super::command::Command;
use super::core::{Engine, Parts};
use super::snapshot::Snapshot;
use super::step::Stepped;

/// Commands between the sessions and the engine. A full ring holds the sessions' readers back, and so their HTTP/2 windows.
const COMMANDS_MAX: usize = 1024;

/// How long the engine waits for a command when the scheduler has work but found nothing to run in this step.
const RETRY: Duration = Duration::from_millis(1);

/// How the engine ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EngineEnd {
    /// As asked.
    Stopped,
    /// The device failed or the engine broke one of its own rules; every run has ended as failed.
    Failed(String),
}

/// A running engine.
#[derive(Debug)]
pub(crate) struct EngineHandle {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) snapshot: watch::Receiver<Snapshot>,
    pub(crate) end: oneshot::Receiver<EngineEnd>,
    /// Closed when the engine's memory is given back.
    pub(crate) gone: oneshot::Receiver<()>,
}

/// Starts the engine thread.
///
/// # Errors
/// The operating system refuses the thread.
pub(crate) fn start(parts: Parts, runtime: Handle) -> std::io::Result<EngineHandle> {
    let (commands, ring) = mpsc::channel(COMMANDS_MAX);
    let (publish, snapshot) = watch::channel(Snapshot::default());
    let (report, end) = oneshot::channel();
    let (holds, gone) = oneshot::channel();
    let mut engine = Engine::new(parts, publish);
    engine.publish();
    thread::Builder::new()
        .name("engine".to_owned())
        .spawn(move || {
            // If the report is not taken, the process is ending anyway.
            let _ = report.send(drive(&mut engine, ring, &runtime));
            drop(engine);
            drop(holds);
        })?;
    Ok(EngineHandle {
        commands,
        snapshot,
        end,
        gone,
    })
}

fn drive(engine: &mut Engine, mut ring: mpsc::Receiver<Command>, runtime: &Handle) -> EngineEnd {
    // The engine is used after a panic only to tell its runs that they failed, which touches neither scheduler nor backend.
    let outcome = catch_unwind(AssertUnwindSafe(|| turn(engine, &mut ring, runtime)));
    let message = match outcome {
        Ok(Ok(())) => {
            engine.close_sessions(&Status::unavailable("this worker ends"));
            return EngineEnd::Stopped;
        }
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!(
            "the engine broke one of its own rules: {}",
            panic_message(panic.as_ref())
        ),
    };
    tracing::error!(message, "the engine ends; all its runs fail");
    let told = catch_unwind(AssertUnwindSafe(|| {
        engine.fail_all(&message);
        engine.publish();
        engine.close_sessions(&Status::internal(
            "the engine has failed; this worker is about to exit",
        ));
    }));
    if told.is_err() {
        tracing::error!("runs could not be told that the engine failed");
    }
    EngineEnd::Failed(message)
}

/// Commands, step, rows, figures; until told to stop.
fn turn(
    engine: &mut Engine,
    ring: &mut mpsc::Receiver<Command>,
    runtime: &Handle,
) -> Result<(), weir_model::backend::BackendError> {
    loop {
        let mut next = ring.try_recv().ok();
        if next.is_none() && !engine.has_work() {
            // Sleeping here is safe: whatever creates work is a command.
            match ring.blocking_recv() {
                Some(command) => next = Some(command),
                None => return Ok(()),
            }
        }
        // At most one ring full, so that a flood of commands cannot keep the steps away.
        let mut left = COMMANDS_MAX;
        while let Some(command) = next.take() {
            if matches!(command, Command::Stop) {
                return Ok(());
            }
            engine.handle(command);
            left -= 1;
            next = if left > 0 { ring.try_recv().ok() } else { None };
        }
        let is_idle = engine.step()? == Stepped::Nothing;
        if is_idle {
            engine.flush();
        }
        engine.publish();
        if is_idle && engine.has_work() {
            let waited = runtime.block_on(async { tokio::time::timeout(RETRY, ring.recv()).await });
            match waited {
                Ok(None | Some(Command::Stop)) => return Ok(()),
                Ok(Some(command)) => engine.handle(command),
                Err(_) => {}
            }
        }
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("unknown")
}
