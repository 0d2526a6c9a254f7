//! Logs go to stderr, one event a line, for people or as JSON.

use std::io::IsTerminal;
use std::str::FromStr;

use tracing_subscriber::EnvFilter;

/// The environment variable with the filter, in the syntax of `tracing_subscriber::EnvFilter` (`info,weir_worker=debug`).
pub const FILTER_VARIABLE: &str = "WEIR_LOG";

/// Libraries log at `warn`: hyper, h2 and tonic at `info` and below describe frames, not our work.
const DEFAULT_FILTER: &str =
    "info,h2=warn,hyper=warn,hyper_util=warn,tonic=warn,tower=warn,tokenizers=warn";

/// Who reads the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// People: short times, colours on a terminal.
    #[default]
    Text,
    /// Machines: one JSON object a line.
    Json,
}

/// The word is neither `text` nor `json`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown log format \"{given}\": use \"text\" or \"json\"")]
pub struct ParseLogFormatError {
    given: String,
}

impl FromStr for LogFormat {
    type Err = ParseLogFormatError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(ParseLogFormatError {
                given: word.to_owned(),
            }),
        }
    }
}

impl std::fmt::Display for LogFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// The log cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoggingError {
    /// `WEIR_LOG` is not a filter.
    #[error(
        "cannot read the log filter in {FILTER_VARIABLE}: use for example \"info,weir_worker=debug\""
    )]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    /// A log is set up already in this process.
    #[error("a log is already set up in this process")]
    AlreadySet,
}

/// Sets up the log of this process; call once, early in `main`.
///
/// # Errors
/// The filter in `WEIR_LOG` is malformed, or a log is set up already.
pub fn init(format: LogFormat) -> Result<(), LoggingError> {
    let filter = match std::env::var(FILTER_VARIABLE) {
        Ok(text) if !text.trim().is_empty() => EnvFilter::builder()
            .parse(text)
            .map_err(LoggingError::Filter)?,
        _ => EnvFilter::new(DEFAULT_FILTER),
    };
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    match format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    }
    .map_err(|_| LoggingError::AlreadySet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_round_trip_and_others_are_refused_by_name() {
        for format in [LogFormat::Text, LogFormat::Json] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        let refused = "yaml".parse::<LogFormat>().expect_err("not a format");
        assert!(refused.to_string().contains("\"yaml\""));
    }
}
