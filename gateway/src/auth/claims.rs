//! A token's claims, read so that nothing in them has two meanings.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::{Map, Value};

/// A JSON object in which every name stands once. Two parsers may take different ones of a doubled claim: such a token is refused.
#[derive(Clone, Debug)]
pub(super) struct Claims(pub(super) Map<String, Value>);

impl<'de> Deserialize<'de> for Claims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Once;
        impl<'de> Visitor<'de> for Once {
            type Value = Claims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of claims")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Claims, A::Error> {
                let mut map = Map::new();
                while let Some((name, value)) = access.next_entry::<String, Value>()? {
                    if map.insert(name, value).is_some() {
                        return Err(A::Error::custom("a claim stands twice"));
                    }
                }
                Ok(Claims(map))
            }
        }
        deserializer.deserialize_map(Once)
    }
}

impl Claims {
    /// A claim by its name, or by a path of names with dots between them.
    pub(super) fn get(&self, path: &str) -> Option<&Value> {
        if let Some(value) = self.0.get(path) {
            return Some(value);
        }
        let mut names = path.split('.');
        let first = self.0.get(names.next()?)?;
        names.try_fold(first, |value, name| value.get(name))
    }

    /// Whether a claim is this text, or a list with it.
    pub(super) fn says(&self, path: &str, text: &str) -> bool {
        match self.get(path) {
            Some(Value::String(value)) => value == text,
            Some(Value::Array(values)) => values.iter().any(|value| value == text),
            _ => false,
        }
    }

    /// Seconds since the Unix epoch.
    pub(super) fn expires(&self) -> Option<u64> {
        let value = self.0.get("exp")?;
        value.as_u64().or_else(|| {
            let number = value.as_f64().filter(|n| (0.0..9e15).contains(n))?;
            #[expect(clippy::cast_sign_loss, reason = "it is not negative")]
            Some(number as u64)
        })
    }
}

/// The claims of a token that nobody has verified: to find who could.
pub(super) fn unverified(token: &str) -> Option<Claims> {
    jsonwebtoken::dangerous::insecure_decode_claims(token).ok()
}
