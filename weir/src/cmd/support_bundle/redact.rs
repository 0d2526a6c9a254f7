//! What is left out of a bundle, by where it stands and by what it looks like.
//!
//! Objects are judged by their fields, and a field whose name speaks of a secret loses its value whatever it is. Text is judged by the forms
//! that secrets have. Either alone would miss some; every text goes through the second one too.

use serde_json::Value;

/// Stands where something was.
pub(super) const LEFT_OUT: &str = "[left out]";

/// Fields that are secrets wherever they stand, in lower case. Names that only speak of one (`secretRef`) are not among them.
const SECRET_FIELDS: &[&str] = &[
    "apikey",
    "api_key",
    "authorization",
    "clientsecret",
    "client_secret",
    "credentials",
    "hash",
    "key",
    "password",
    "privatekey",
    "secret",
    "signingsecret",
    "token",
];

/// Annotations that hold a whole former object.
const COPIES: &[&str] = &["last-applied-configuration"];

/// Leaves out of an object what nobody else may know.
pub(super) fn manifest(object: &mut Value) {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.retain(|name, _| !COPIES.iter().any(|copy| name.ends_with(copy)));
    }
    if kind == "Secret" {
        for part in ["data", "stringData"] {
            for value in object[part].as_object_mut().into_iter().flatten() {
                *value.1 = LEFT_OUT.into();
            }
        }
        return;
    }
    if kind == "ConfigMap" {
        config(object);
    }
    fields(object);
}

/// The text of a `ConfigMap` is YAML or JSON with fields of its own.
fn config(object: &mut Value) {
    for (_, text) in object["data"].as_object_mut().into_iter().flatten() {
        let inner = text.as_str().map(serde_yaml::from_str::<Value>);
        if let Some(Ok(mut inner)) = inner
            && (inner.is_object() || inner.is_array())
        {
            fields(&mut inner);
            *text = serde_yaml::to_string(&inner).unwrap_or_default().into();
        }
    }
}

fn fields(value: &mut Value) {
    match value {
        Value::Object(all) => {
            // `{name, key}` names a place in a Secret; what is there is not in it.
            let is_place = all.contains_key("name") && all.len() == 2;
            for (name, value) in all {
                let is_secret = SECRET_FIELDS.contains(&name.to_ascii_lowercase().as_str());
                let is_of_place = is_place && name == "key" && is_plain(value);
                if is_secret && value.is_string() && !is_of_place {
                    *value = LEFT_OUT.into();
                } else {
                    fields(value);
                }
            }
        }
        Value::Array(all) => all.iter_mut().for_each(fields),
        _ => {}
    }
}

/// A short plain word is the name of an entry, not a secret.
fn is_plain(value: &Value) -> bool {
    let word = value.as_str().unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_lowercase() || c == '-' || c == '.';
    word.len() <= 24 && word.chars().all(is_plain)
}

/// Begins of secrets in text; each goes on to the next blank, quote or bracket.
const BEGINS: &[&str] = &[
    "weir1$", "weir_", "sk-", "ghp_", "glpat-", "AKIA", "eyJ", "xoxb-", "hf_",
];
/// Words after which a secret follows, in lower case.
const BEFORE: &[&str] = &[
    "bearer ",
    "basic ",
    "x-api-key: ",
    "password=",
    "password: ",
    "token=",
];

/// Text without what has the form of a secret.
pub(super) fn text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_key = false;
    for line in text.split_inclusive('\n') {
        if line.contains("-----BEGIN ") && line.contains("PRIVATE KEY") {
            in_key = true;
            out.push_str(LEFT_OUT);
            out.push('\n');
        }
        let is_end = line.contains("-----END ");
        if !in_key {
            out.push_str(&one_line(line));
        }
        in_key &= !is_end;
    }
    out
}

fn one_line(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(found) = next_secret(rest) {
        out.push_str(&rest[..found.start]);
        out.push_str(LEFT_OUT);
        rest = &rest[found.end..];
    }
    out.push_str(rest);
    out
}

fn next_secret(line: &str) -> Option<std::ops::Range<usize>> {
    let candidates = [after_a_word(line), by_its_begin(line), in_an_address(line)];
    candidates
        .into_iter()
        .flatten()
        .min_by_key(|range| range.start)
}

fn ends(c: char) -> bool {
    c.is_whitespace()
        || matches!(
            c,
            '"' | '\'' | ',' | ';' | ')' | ']' | '}' | '<' | '&' | '\\'
        )
}

fn word_from(line: &str, start: usize) -> std::ops::Range<usize> {
    let length = line[start..].find(ends).unwrap_or(line.len() - start);
    start..start + length
}

fn after_a_word(line: &str) -> Option<std::ops::Range<usize>> {
    let lower = line.to_ascii_lowercase();
    let found = BEFORE.iter().filter_map(|word| {
        let places = lower
            .match_indices(word)
            .map(|(at, word)| word_from(line, at + word.len()));
        places
            .into_iter()
            .find(|word| !word.is_empty() && !line[word.clone()].starts_with("[left"))
    });
    found.min_by_key(|range| range.start)
}

/// A word that begins as secrets do and is as long as they are. Our metrics begin like our keys, but have no digit in a row so long.
fn by_its_begin(line: &str) -> Option<std::ops::Range<usize>> {
    let found = BEGINS.iter().filter_map(|begin| {
        let mut places = line.match_indices(begin).map(|(at, _)| word_from(line, at));
        places.find(|range| {
            let is_start = range.start == 0
                || line[..range.start].ends_with(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let word = &line[range.clone()];
            let digits = word.chars().filter(char::is_ascii_digit).count();
            is_start && word.len() >= begin.len() + 12 && digits >= 4
        })
    });
    found.min_by_key(|range| range.start)
}

/// The password in `scheme://user:password@host`.
fn in_an_address(line: &str) -> Option<std::ops::Range<usize>> {
    for (at, _) in line.match_indices("://") {
        let authority = word_from(line, at + 3);
        let authority_text = line[authority.clone()]
            .split('/')
            .next()
            .unwrap_or_default();
        if let Some(host) = authority_text.rfind('@')
            && let Some(colon) = authority_text[..host].find(':')
            && !authority_text[colon + 1..host].starts_with("[left")
        {
            return Some(authority.start + colon + 1..authority.start + host);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_loses_what_has_the_form_of_a_secret_and_nothing_else() {
        for (given, want) in [
            (
                "authorization: Bearer acme-dev-key, next",
                "authorization: Bearer [left out], next",
            ),
            (
                r#"{"auth":"bearer abc"}"#,
                r#"{"auth":"bearer [left out]"}"#,
            ),
            (
                "store postgres://weir:p4ss@db:5432/weir up",
                "store postgres://weir:[left out]@db:5432/weir up",
            ),
            ("hash weir1$4sawq0dmgyv093q0$40e4a251fb", "hash [left out]"),
            ("key sk-proj-0123456789abcdef!", "key [left out]"),
            (
                "weir_gateway_requests_total{code=\"200\"} 4",
                "weir_gateway_requests_total{code=\"200\"} 4",
            ),
            (
                "weir_rollout_log_evidence_boundary 4.828",
                "weir_rollout_log_evidence_boundary 4.828",
            ),
            (
                "run run_01M8N0V2M7PT2GPTTGAYKD384G of acme",
                "run run_01M8N0V2M7PT2GPTTGAYKD384G of acme",
            ),
            (
                "a\n-----BEGIN PRIVATE KEY-----\nMIIx\n-----END PRIVATE KEY-----\nb\n",
                "a\n[left out]\nb\n",
            ),
            (
                "password=hunter2 token=abc",
                "password=[left out] token=[left out]",
            ),
            (
                "http://127.0.0.1:9090/metrics",
                "http://127.0.0.1:9090/metrics",
            ),
        ] {
            assert_eq!(text(given), want);
        }
    }

    #[test]
    fn objects_lose_secrets_by_their_fields() {
        let mut secret = json!({"kind": "Secret", "metadata": {"name": "s", "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": "{\"stringData\":{\"a\":\"hidden\"}}"}},
            "stringData": {"a": "hidden"}, "data": {"b": "aGlkZGVu"}});
        manifest(&mut secret);
        let shown = secret.to_string();
        assert!(
            !shown.contains("hidden") && !shown.contains("aGlk"),
            "{shown}"
        );
        assert_eq!(secret["stringData"]["a"], LEFT_OUT);

        let mut quota = json!({"kind": "TenantQuota", "spec": {
            "keys": [{"name": "ci", "secretRef": {"name": "acme-keys", "key": "ci"}}],
            "alerts": {"webhook": {"url": "https://a", "secret": "S3cret!value"}}}});
        manifest(&mut quota);
        assert_eq!(quota["spec"]["keys"][0]["secretRef"]["key"], "ci");
        assert_eq!(quota["spec"]["alerts"]["webhook"]["secret"], LEFT_OUT);

        let mut config = json!({"kind": "ConfigMap", "data": {"settings.yaml": "oidc:\n  clientSecret: Abc123XYZ\n  issuer: https://i\n"}});
        manifest(&mut config);
        let text = config["data"]["settings.yaml"].as_str().unwrap();
        assert!(
            !text.contains("Abc123XYZ") && text.contains("https://i"),
            "{text}"
        );
    }
}
