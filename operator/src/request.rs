//! What a person asks of a rollout, as it is written in an annotation or sent to an admin port.

use serde::Deserialize;
use weir_rollout::decide::{Action, Request};

/// The annotation's text, and what `weir rollout` sends.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Written {
    id: String,
    action: String,
    #[serde(default)]
    version: Option<u32>,
    #[serde(default)]
    attempt: Option<String>,
    #[serde(default)]
    step: Option<u32>,
}

/// Longest id: it is remembered in the record.
const MAX_ID: usize = 64;

/// Reads a request about `version`, unless it names another one.
///
/// # Errors
/// What is wrong with it, and what would be right.
pub fn request(text: &str, version: u32) -> Result<Request, String> {
    let written: Written = serde_json::from_str(text).map_err(|error| {
        format!("is no request ({error}); write {{\"id\": \"…\", \"action\": \"promote\", \"attempt\": \"v2-1\"}}")
    })?;
    if written.id.is_empty() || written.id.len() > MAX_ID {
        return Err(format!(
            "id must have 1 to {MAX_ID} bytes: it says whether a request was handled"
        ));
    }
    Ok(Request {
        action: action(&written.action)?,
        id: written.id,
        version: written.version.unwrap_or(version),
        attempt: written.attempt,
        step: written.step,
    })
}

fn action(word: &str) -> Result<Action, String> {
    Ok(match word {
        "promote" => Action::Promote,
        "promoteFull" => Action::PromoteFull,
        "abort" => Action::Abort,
        "retry" => Action::Retry,
        "undo" => Action::Undo,
        "pause" => Action::Pause,
        "resume" => Action::Resume,
        other => {
            return Err(format!(
                "action {other:?} is none of promote, promoteFull, abort, retry, undo, pause, resume"
            ));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_or_refused_with_a_remedy() {
        let read = request(
            r#"{"id":"1","action":"promote","attempt":"v2-1","step":1}"#,
            2,
        )
        .unwrap();
        assert_eq!(
            (read.action, read.version, read.step),
            (Action::Promote, 2, Some(1))
        );
        for (text, says) in [
            (r#"{"id":"1","action":"stop"}"#, "none of promote"),
            (r#"{"action":"abort"}"#, "is no request"),
            (r#"{"id":"","action":"abort"}"#, "1 to 64 bytes"),
            (
                r#"{"id":"1","action":"abort","force":true}"#,
                "is no request",
            ),
        ] {
            let refused = request(text, 2).unwrap_err();
            assert!(refused.contains(says), "{text}: {refused}");
        }
    }
}
