//! Typed access to a JSON object, with errors that name file, key and value.

use std::ops::RangeInclusive;

use serde_json::{Map, Value};

/// A configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Not a JSON object.
    #[error("\"{file}\" is not a JSON object")]
    Json {
        /// The file.
        file: &'static str,
        /// The cause.
        #[source]
        source: Option<serde_json::Error>,
    },
    /// A key's value cannot be used.
    #[error("\"{file}\": key \"{key}\" = {value} {why}")]
    Value {
        /// The file.
        file: &'static str,
        /// Path of the key.
        key: String,
        /// The value as JSON, shortened; `absent` if there is none.
        value: String,
        /// What is wrong and what would be right.
        why: String,
    },
}

/// An object of a configuration file.
pub(super) struct Keys {
    file: &'static str,
    prefix: String,
    object: Map<String, Value>,
}

impl Keys {
    pub(super) fn parse(file: &'static str, bytes: &[u8]) -> Result<Self, ConfigError> {
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(object)) => Ok(Self {
                file,
                prefix: String::new(),
                object,
            }),
            Ok(_) => Err(ConfigError::Json { file, source: None }),
            Err(source) => Err(ConfigError::Json {
                file,
                source: Some(source),
            }),
        }
    }

    /// The object under a key, if there is one.
    pub(super) fn object(&self, key: &str) -> Result<Option<Self>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(object)) => Ok(Some(Self {
                file: self.file,
                prefix: format!("{}{key}.", self.prefix),
                object: object.clone(),
            })),
            Some(_) => Err(self.refuse(key, "must be an object".to_owned())),
        }
    }

    /// The value, unless absent or null.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// Whether the key is there, even if null.
    pub(super) fn present(&self, key: &str) -> bool {
        self.object.contains_key(key)
    }

    pub(super) fn refuse(&self, key: &str, why: String) -> ConfigError {
        let mut value = self
            .object
            .get(key)
            .map_or_else(|| "absent".to_owned(), Value::to_string);
        if value.chars().count() > 120 {
            value = value.chars().take(120).chain("…".chars()).collect();
        }
        ConfigError::Value {
            file: self.file,
            key: format!("{}{key}", self.prefix),
            value,
            why,
        }
    }

    /// A positive integer.
    pub(super) fn size(
        &self,
        key: &str,
        default: Option<usize>,
        max: usize,
    ) -> Result<usize, ConfigError> {
        let value = match (self.get(key), default) {
            (None, Some(default)) => default as u64,
            (value, _) => value.and_then(Value::as_u64).unwrap_or(0),
        };
        match usize::try_from(value) {
            Ok(size) if (1..=max).contains(&size) => Ok(size),
            _ => Err(self.refuse(key, format!("must be an integer from 1 to {max}"))),
        }
    }

    pub(super) fn size_or_zero(
        &self,
        key: &str,
        default: usize,
        max: usize,
    ) -> Result<usize, ConfigError> {
        match self.get(key).map(Value::as_u64) {
            None => Ok(default),
            Some(Some(0)) => Ok(0),
            Some(_) => self.size(key, None, max),
        }
    }

    pub(super) fn number(
        &self,
        key: &str,
        default: f32,
        range: RangeInclusive<f32>,
    ) -> Result<f32, ConfigError> {
        let Some(value) = self.get(key) else {
            return Ok(default);
        };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the network computes in f32"
        )]
        match value.as_f64().map(|value| value as f32) {
            Some(number) if range.contains(&number) => Ok(number),
            _ => Err(self.refuse(
                key,
                format!("must be a number from {} to {}", range.start(), range.end()),
            )),
        }
    }

    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.refuse(key, "must be true or false".to_owned())),
        }
    }

    /// One token id or a list of them; null and absent are an empty list.
    pub(super) fn token_ids(&self, key: &str, vocab_size: usize) -> Result<Vec<u32>, ConfigError> {
        let one = |value: &Value| {
            value
                .as_u64()
                .filter(|&id| id < vocab_size as u64)
                .and_then(|id| u32::try_from(id).ok())
                .ok_or_else(|| {
                    self.refuse(
                        key,
                        format!("must hold token ids from 0 to {}", vocab_size - 1),
                    )
                })
        };
        match self.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) if list.len() <= 64 => list.iter().map(one).collect(),
            Some(value) => Ok(vec![one(value)?]),
        }
    }
}
