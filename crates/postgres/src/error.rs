//! What the server's errors mean.

use sqlx::Error;
use weir_store::StoreError;

/// What became of a statement that failed.
#[derive(Debug)]
pub(crate) enum Failed {
    /// Nothing of it happened.
    Undone(Cause),
    /// It may have happened: the connection was lost while it was under way.
    Unknown(String),
}

/// Why nothing of a statement happened.
#[derive(Debug)]
pub(crate) enum Cause {
    /// Another gateway was faster.
    Raced,
    /// There is no partition for a run's events yet.
    NoPartition,
    /// The turn was not this gateway's: it was forgotten, or a lost commit came through after all.
    Turn,
    /// The server cannot work for us now.
    Away(String),
    /// It is out of space.
    Full,
    /// Anything else.
    Other(String),
}

/// SQLSTATE of `weir.commit` for a turn that is not this gateway's.
const TURN: &str = "WE001";

/// Tells what an error of a statement means.
pub(crate) fn failed(error: &Error) -> Failed {
    let text = chain(error);
    let Error::Database(database) = error else {
        return match error {
            // Nothing was sent.
            Error::PoolTimedOut
            | Error::PoolClosed
            | Error::Configuration(_)
            | Error::Encode(_) => Failed::Undone(Cause::Away(text)),
            _ => Failed::Unknown(text),
        };
    };
    let code = database.code().unwrap_or_default();
    let cause = match &*code {
        "23505" | "40001" | "40P01" | "55P03" => Cause::Raced,
        // "no partition of relation": the only check there is.
        "23514" => Cause::NoPartition,
        TURN => Cause::Turn,
        "53100" => Cause::Full,
        // The server ends: the statement's own end may have come before.
        "57P01" | "57P02" => return Failed::Unknown(text),
        "57P03" | "57014" | "53300" | "25006" | "08006" | "08003" => Cause::Away(text),
        _ => Cause::Other(text),
    };
    Failed::Undone(cause)
}

/// What a caller is told.
pub(crate) fn store_error(path: &str, cause: Cause) -> StoreError {
    let path = path.to_owned();
    match cause {
        Cause::Full => StoreError::Full { path },
        Cause::Away(cause) => StoreError::Away { path, cause },
        Cause::Other(cause) => StoreError::Write { path, cause },
        Cause::Raced => StoreError::Away {
            path,
            cause: "other gateways are faster all the time".to_owned(),
        },
        Cause::NoPartition => StoreError::Write {
            path,
            cause: "it has no partition for the events".to_owned(),
        },
        Cause::Turn => StoreError::Away {
            path,
            cause: "it has forgotten this gateway".to_owned(),
        },
    }
}

/// An error of a read.
pub(crate) fn unreadable(path: &str, error: &Error) -> StoreError {
    let path = path.to_owned();
    match failed(error) {
        Failed::Undone(Cause::Other(cause)) => StoreError::Read { path, cause },
        Failed::Undone(cause) => store_error(&path, cause),
        Failed::Unknown(cause) => StoreError::Away { path, cause },
    }
}

/// An error with what caused it.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
