//! How a registry wants to be told who asks. Pure.

use serde::Deserialize;

/// The header that comes with a refusal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// Name and password with each question.
    Basic,
    /// A token of a server.
    Bearer {
        /// The server.
        realm: String,
        /// What it is told of the registry.
        service: Option<String>,
    },
}

impl Challenge {
    pub(super) fn read(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut left) = (None, None, rest);
        while let Some((name, after)) = left.split_once('=') {
            let (value, next) = match after.strip_prefix('"') {
                // A value in quotes may contain commas.
                Some(quoted) => quoted.split_once('"')?,
                None => after.split_once(',').unwrap_or((after, "")),
            };
            match name.trim_matches([' ', ',']).to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value.to_owned()),
                "service" => service = Some(value.to_owned()),
                _ => {}
            }
            left = next;
        }
        Some(Self::Bearer {
            realm: realm?,
            service,
        })
    }
}

/// What a server of tokens answers; it says it in one of two ways.
#[derive(Deserialize)]
pub(super) struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

impl Token {
    pub(super) fn read(body: &[u8]) -> Option<String> {
        let answer: Self = serde_json::from_slice(body).ok()?;
        answer.token.or(answer.access_token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_names_the_server_of_tokens() {
        let bearer = |realm: &str, service: Option<&str>| {
            Some(Challenge::Bearer {
                realm: realm.to_owned(),
                service: service.map(str::to_owned),
            })
        };
        for (header, challenge) in [
            ("Basic realm=\"users\"", Some(Challenge::Basic)),
            (
                "Bearer realm=\"https://a.example/token\",service=\"r.example\",scope=\"repository:x:pull,push\"",
                bearer("https://a.example/token", Some("r.example")),
            ),
            (
                "bearer scope=\"a,b\", Realm=\"https://a.example/t?x=1\"",
                bearer("https://a.example/t?x=1", None),
            ),
            ("Bearer realm=plain, service=s", bearer("plain", Some("s"))),
            ("Bearer service=\"s\"", None),
            ("Bearer realm=\"no end", None),
            ("Negotiate", None),
        ] {
            assert_eq!(Challenge::read(header), challenge, "{header}");
        }
    }

    #[test]
    fn a_token_has_one_of_two_names() {
        assert_eq!(Token::read(b"{\"token\":\"a\"}").as_deref(), Some("a"));
        assert_eq!(
            Token::read(b"{\"access_token\":\"b\",\"expires_in\":5}").as_deref(),
            Some("b")
        );
        assert_eq!(Token::read(b"{}"), None);
        assert_eq!(Token::read(b"<html>"), None);
    }
}
