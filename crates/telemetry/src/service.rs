//! The frame of a service's `main`: log, runtime, signals, exit status.

use std::error::Error;
use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

use crate::logging::{self, LogFormat};
use crate::shutdown::{EXIT_CONFIGURATION, Ending, run_until_signal};

/// Why a service ended before it was asked to.
pub type Failure = Box<dyn Error + Send + Sync>;

/// What is to be said of a service before it runs.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// What the log calls it.
    pub name: &'static str,
    /// Format of its log.
    pub log_format: LogFormat,
    /// How long it has from the first signal to its end.
    pub deadline: Duration,
}

impl Service {
    /// Runs until the service ends or a signal ended it, on the threads of `runtime`; the exit status of the process.
    pub fn run<F>(
        self,
        runtime: &mut Builder,
        service: impl FnOnce(CancellationToken) -> F,
    ) -> ExitCode
    where
        F: Future<Output = Result<(), Failure>>,
    {
        if logging::init(self.log_format).is_err() {
            // There is no log to tell it to; the status says that the configuration is wrong.
            return ExitCode::from(EXIT_CONFIGURATION);
        }
        let runtime = match runtime.enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::error!(%error, "cannot start the runtime");
                return ExitCode::FAILURE;
            }
        };
        let ended = runtime.block_on(run_until_signal(self.deadline, service));
        // Blocking work (files being hashed, tokenizers) may go on in threads that nobody waits for.
        runtime.shutdown_background();
        match ended {
            Ok(Ending::Finished(Ok(()))) => ExitCode::SUCCESS,
            Ok(Ending::Finished(Err(error))) => {
                tracing::error!(error = &*error as &dyn Error, "{} ended", self.name);
                ExitCode::FAILURE
            }
            Ok(Ending::DeadlinePassed | Ending::Forced) => ExitCode::FAILURE,
            Err(error) => {
                tracing::error!(%error, "cannot take signals");
                ExitCode::FAILURE
            }
        }
    }
}
