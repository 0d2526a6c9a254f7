//! Why a worker cannot go on, and whether starting it again can help.

use std::io;
use std::process::ExitCode;

use weir_identity::IdentityError;
use weir_telemetry::shutdown::EXIT_CONFIGURATION;

use crate::load::LoadError;

/// Why a worker ended.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The model cannot be loaded.
    #[error("cannot load the model")]
    Load(#[from] LoadError),
    /// A panic while loading; its message is in the log.
    #[error("loading the model ended unexpectedly; see the log")]
    LoaderDied,
    /// No random numbers.
    #[error("the system gives no random numbers")]
    Random,
    /// Limits that no engine can have.
    #[error("the engine's limits make no sense: {reason}")]
    Limits {
        /// Which, and why.
        reason: String,
    },
    /// Others reach the address, and nothing says who may open sessions.
    #[error(
        "sessions at {address} would be open to whoever reaches it: give --workload-identity, or --plain-sessions where something else keeps others away"
    )]
    Open {
        /// Where.
        address: String,
    },
    /// What it should prove itself with cannot be used.
    #[error("cannot take sessions under TLS")]
    Identity(#[from] IdentityError),
    /// The session address cannot be bound.
    #[error("cannot take sessions on {address}")]
    Listen {
        /// Where.
        address: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The admin address cannot be bound or fails.
    #[error("cannot serve health and metrics on {address}")]
    Admin {
        /// Where.
        address: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The engine thread cannot be started.
    #[error("cannot start the engine thread")]
    Thread(#[source] io::Error),
    /// The device failed or the engine broke a rule of its own.
    #[error("the engine has failed: {reason}")]
    Engine {
        /// What it said.
        reason: String,
    },
    /// The gRPC server failed.
    #[error("the session server has failed")]
    Serve {
        /// The cause.
        #[source]
        source: tonic::transport::Error,
    },
    /// The gRPC server ended unasked.
    #[error("the session server ended unasked")]
    ServerEnded,
}

impl WorkerError {
    /// One word for conditions, metrics and the parent's table.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Load(error) => error.reason(),
            Self::Limits { .. } => "LimitsInvalid",
            Self::Open { .. } => "IdentityMissing",
            Self::Identity(_) => "IdentityInvalid",
            Self::Listen { .. } => "ListenFailed",
            Self::Admin { .. } => "AdminFailed",
            Self::LoaderDied => "LoadCrashed",
            Self::Random => "RandomFailed",
            Self::Thread(_) => "ThreadFailed",
            Self::Engine { .. } => "EngineFailed",
            Self::Serve { .. } | Self::ServerEnded => "ServeFailed",
        }
    }

    /// Whether it takes a change of what the worker was given.
    pub fn is_configuration(&self) -> bool {
        match self {
            Self::Load(error) => error.is_configuration(),
            Self::Limits { .. } | Self::Open { .. } | Self::Identity(_) => true,
            _ => false,
        }
    }

    /// The process's exit status.
    pub fn exit_code(&self) -> ExitCode {
        if self.is_configuration() {
            ExitCode::from(EXIT_CONFIGURATION)
        } else {
            ExitCode::FAILURE
        }
    }
}

/// An error with its causes in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
