//! Why a write was not made.

use weir_rollout::Stamp;

/// Why a write was not made.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// Another operator acts now.
    #[error("this operator does not lead")]
    NotLeading,
    /// A child carries a later record: the log must be read again.
    #[error("\"{child}\" carries record {theirs}, which is later than {mine}")]
    Stale {
        /// Which child.
        child: String,
        /// The record it carries.
        theirs: Stamp,
        /// The record on whose behalf it was to be changed.
        mine: Stamp,
    },
    /// It is not there, and what it should be like is not known.
    #[error("\"{0}\" does not exist, and its version's object is gone or wrong")]
    Unknown(String),
    /// The API server refuses or is away.
    #[error("cannot write {what} \"{name}\"")]
    Write {
        /// Its kind.
        what: &'static str,
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
}

impl ApplyError {
    /// Whether somebody else wrote in between, so that looking again is all there is to do.
    pub fn is_race(&self) -> bool {
        match self {
            Self::Stale { .. } => true,
            Self::Write { source, .. } => {
                matches!(&**source, kube::Error::Api(status) if status.code == 409)
            }
            Self::NotLeading | Self::Unknown(_) => false,
        }
    }

    /// One word, for a metric and an event.
    pub fn category(&self) -> &'static str {
        match self {
            Self::NotLeading => "NotLeading",
            Self::Stale { .. } => "Stale",
            Self::Unknown(_) => "Unknown",
            Self::Write { .. } if self.is_race() => "Conflict",
            Self::Write { .. } => "WriteFailed",
        }
    }
}
