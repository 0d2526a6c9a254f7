//! Durations, quantities and percentages as manifests write them.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The text is not of its type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// Not a duration.
    #[error(
        "{0:?} is not a duration: write whole numbers with ms, s, m or h, such as \"90s\" or \"1h30m\""
    )]
    Duration(String),
    /// Not a quantity of bytes.
    #[error(
        "{0:?} is not a number of bytes: write a number with Ki, Mi, Gi or Ti, such as \"1Gi\""
    )]
    Quantity(String),
    /// Not a percentage.
    #[error(
        "{0:?} is not a percentage: write a whole number from 0 to 100, or a decimal in quotes with at most four places, such as \"0.1\""
    )]
    Percent(String),
}

/// A duration such as `300s`, `1h30m` or `500ms`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DurationText(pub String);

const DURATION: &str = "^([0-9]{1,9}(ms|s|m|h)){1,4}$";

impl DurationText {
    /// The duration.
    ///
    /// # Errors
    /// The text is not a duration.
    pub fn parse(&self) -> Result<Duration, TextError> {
        let error = || TextError::Duration(self.0.clone());
        let mut rest = self.0.as_str();
        let mut total_ms = 0_u64;
        let mut parts = 0;
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            if digits == 0 || digits > 9 || parts == 4 {
                return Err(error());
            }
            let number: u64 = rest[..digits].parse().map_err(|_| error())?;
            rest = &rest[digits..];
            let (unit, unit_ms) = UNITS
                .iter()
                .find(|(unit, _)| rest.starts_with(unit))
                .ok_or_else(error)?;
            rest = &rest[unit.len()..];
            total_ms += number * unit_ms;
            parts += 1;
        }
        if parts == 0 {
            return Err(error());
        }
        Ok(Duration::from_millis(total_ms))
    }
}

/// `ms` comes before `m`, which is its prefix.
const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

impl From<Duration> for DurationText {
    /// Whole hours, minutes or seconds where possible, milliseconds else.
    fn from(duration: Duration) -> Self {
        let ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        let (unit, unit_ms) = UNITS
            .iter()
            .rev()
            .find(|(_, unit_ms)| ms > 0 && ms % unit_ms == 0)
            .unwrap_or(&UNITS[1]);
        Self(format!("{}{unit}", ms / unit_ms))
    }
}

impl fmt::Display for DurationText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonSchema for DurationText {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "DurationText".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "minLength": 2, "maxLength": 32, "pattern": DURATION})
    }
}

/// A number of bytes: a whole number, or text such as `1Gi` or `512Mi`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum QuantityText {
    /// Bytes.
    Bytes(i64),
    /// With a suffix.
    Text(String),
}

const QUANTITY: &str = "^[0-9]{1,15}(\\.[0-9]{1,3})?(k|M|G|T|Ki|Mi|Gi|Ti)?$";

const SUFFIXES: [(&str, u128); 8] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
];

impl QuantityText {
    /// Bytes, rounded up as Kubernetes does.
    ///
    /// # Errors
    /// The text is not a quantity, or more than fits 63 bits.
    pub fn bytes(&self) -> Result<u64, TextError> {
        let text = match self {
            Self::Bytes(bytes) => {
                return u64::try_from(*bytes).map_err(|_| TextError::Quantity(bytes.to_string()));
            }
            Self::Text(text) => text,
        };
        let error = || TextError::Quantity(text.clone());
        let (number, factor) = SUFFIXES
            .iter()
            .find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)))
            .unwrap_or((text, 1));
        let thousandths = decimal(number, 15, 3).ok_or_else(error)?;
        let bytes = (u128::from(thousandths) * factor).div_ceil(1_000);
        i64::try_from(bytes).map_err(|_| error())?;
        u64::try_from(bytes).map_err(|_| error())
    }
}

impl fmt::Display for QuantityText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl JsonSchema for QuantityText {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "QuantityText".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"x-kubernetes-int-or-string": true, "maxLength": 24, "minimum": 0, "pattern": QUANTITY})
    }
}

/// A share: a whole number of percent, or a decimal as text, such as `"0.1"`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Percent {
    /// Whole percent.
    Whole(i32),
    /// With decimals.
    Text(String),
}

const PERCENT: &str = "^(100(\\.0{1,4})?|[0-9]{1,2}(\\.[0-9]{1,4})?)$";

impl Percent {
    /// The share in parts per million: 1 % is 10,000.
    ///
    /// # Errors
    /// Not a decimal number from 0 to 100 with at most four places.
    pub fn parts_per_million(&self) -> Result<u32, TextError> {
        let error = || TextError::Percent(self.to_string());
        let ppm = match self {
            Self::Whole(whole) => u64::try_from(*whole).map_err(|_| error())? * 10_000,
            Self::Text(text) if text.starts_with("100") => decimal(text, 3, 4).ok_or_else(error)?,
            Self::Text(text) => decimal(text, 2, 4).ok_or_else(error)?,
        };
        u32::try_from(ppm)
            .ok()
            .filter(|ppm| *ppm <= 1_000_000)
            .ok_or_else(error)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(whole) => whole.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl JsonSchema for Percent {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Percent".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"x-kubernetes-int-or-string": true, "maxLength": 8, "minimum": 0, "maximum": 100, "pattern": PERCENT})
    }
}

/// A decimal number times 10^places, or none if it has other characters, more whole digits or more places.
fn decimal(text: &str, whole_digits: usize, places: usize) -> Option<u64> {
    let (whole, fraction) = match text.split_once('.') {
        Some((_, "")) => return None,
        Some(parts) => parts,
        None => (text, ""),
    };
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || whole.len() > whole_digits || fraction.len() > places {
        return None;
    }
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    format!("{whole}{fraction:0<places$}").parse().ok()
}

#[cfg(test)]
mod tests;
