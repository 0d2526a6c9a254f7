//! What a person asks of a rollout, as it comes in on the admin port.

use serde::Deserialize;
use weir_operator::request;
use weir_rollout::decide::Request;

/// What comes in on the admin port: a request, and the model it is about.
#[derive(Deserialize)]
struct Posted {
    model: String,
    version: u32,
    #[serde(flatten)]
    request: serde_json::Map<String, serde_json::Value>,
}

/// Reads a body: the model and the request.
///
/// # Errors
/// What is wrong with it.
pub fn posted(body: &[u8]) -> Result<(String, Request), String> {
    let posted: Posted = serde_json::from_slice(body).map_err(|error| {
        format!("the body is no request ({error}): model, version, id and action are needed")
    })?;
    let text = serde_json::Value::Object(posted.request).to_string();
    Ok((posted.model, request(&text, posted.version)?))
}

#[cfg(test)]
mod tests {
    use weir_rollout::decide::Action;

    use super::*;

    #[test]
    fn a_posted_request_names_its_model() {
        let body = br#"{"model":"m","version":3,"id":"1","action":"abort","attempt":"v3-1"}"#;
        let (model, read) = posted(body).unwrap();
        assert_eq!(
            (model.as_str(), read.version, read.action),
            ("m", 3, Action::Abort)
        );
        assert!(posted(b"{}").is_err());
    }
}
