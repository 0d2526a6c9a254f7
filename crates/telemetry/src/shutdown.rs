//! From a signal to an orderly end: first signal asks, a deadline insists, a second signal ends it.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Exit status for a fault of what a process was given: starting it again with the same cannot help (`EX_CONFIG` of `sysexits.h`).
pub const EXIT_CONFIGURATION: u8 = 78;

/// SIGINT and SIGTERM of this process, from the moment this is made.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Takes the two signals over; from now on they no longer end the process.
    ///
    /// # Errors
    /// The operating system refuses the handler.
    pub fn install() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The name of the next signal.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }
}

/// How a service ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ending<T> {
    /// By itself or after the first signal, with this outcome.
    Finished(T),
    /// It did not end within the deadline after the first signal; it was dropped.
    DeadlinePassed,
    /// A second signal came first; it was dropped.
    Forced,
}

/// Runs `service` until it ends. The first SIGINT or SIGTERM cancels the token it was given; it then has `deadline` to end, and a
/// second signal ends the wait at once. `main` turns [`Ending`] into an exit status: a service that hangs while it shuts down (hyper's
/// graceful shutdown can) never holds the process.
///
/// # Errors
/// The operating system refuses the signal handlers.
pub async fn run_until_signal<F, T>(
    deadline: Duration,
    service: impl FnOnce(CancellationToken) -> F,
) -> io::Result<Ending<T>>
where
    F: Future<Output = T>,
{
    let mut signals = Signals::install()?;
    let token = CancellationToken::new();
    let mut service = pin!(service(token.clone()));
    tokio::select! {
        outcome = &mut service => return Ok(Ending::Finished(outcome)),
        name = signals.next() => tracing::info!(signal = name, "shutting down; a second signal ends at once"),
    }
    token.cancel();
    Ok(tokio::select! {
        outcome = timeout(deadline, service) => match outcome {
            Ok(outcome) => Ending::Finished(outcome),
            Err(_) => Ending::DeadlinePassed,
        },
        name = signals.next() => {
            tracing::warn!(signal = name, "second signal: ending without waiting");
            Ending::Forced
        }
    })
}

/// Waits for `work` while `token` is not cancelled, and for at most `grace` longer once it is; `None` if that was not enough.
pub async fn within_grace<F: Future>(
    token: &CancellationToken,
    grace: Duration,
    work: F,
) -> Option<F::Output> {
    let mut work = pin!(work);
    tokio::select! {
        outcome = &mut work => Some(outcome),
        () = token.cancelled() => timeout(grace, work).await.ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn grace_starts_with_the_cancellation() {
        let token = CancellationToken::new();
        let done = within_grace(&token, Duration::from_secs(1), async { 7 }).await;
        assert_eq!(done, Some(7));

        token.cancel();
        let hung = within_grace(&token, Duration::from_secs(1), std::future::pending::<()>()).await;
        assert_eq!(hung, None);
    }
}
