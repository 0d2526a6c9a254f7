//! Rotary position encoding: which frequencies, from which keys.

use serde_json::Value;

use super::read::{ConfigError, Keys};

/// Rotary position encoding (`RoFormer`, arXiv 2104.09864) with an optional change of frequencies.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Llama 3's change of low frequencies, if any.
    pub llama3: Option<Llama3Rope>,
    /// (`head_dim` / 2) what each frequency is divided by, where the file lists it.
    pub factors: Option<Vec<f32>>,
}

/// Frequencies whose wavelength is long against the trained context are divided by `factor`, those in between blended.
#[derive(Clone, Debug, PartialEq)]
pub struct Llama3Rope {
    /// Divides low frequencies.
    pub factor: f32,
    /// Wavelengths above `original_context / low_freq_factor` are low frequencies.
    pub low_freq_factor: f32,
    /// Wavelengths below `original_context / high_freq_factor` stay as they are.
    pub high_freq_factor: f32,
    /// Positions before the stretch.
    pub original_context: f32,
}

/// The kind that lists a factor for each frequency: ours, for files that carry the factors themselves.
const FACTORS: &str = "weir_factors";

fn factors(scaling: &Keys) -> Result<Vec<f32>, ConfigError> {
    let numbers = scaling.get("factors").and_then(Value::as_array);
    let numbers = numbers.filter(|numbers| numbers.len() <= 1 << 12);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the network computes in f32"
    )]
    let one = |number: &Value| {
        let number = number.as_f64()? as f32;
        (1e-3..=1e6).contains(&number).then_some(number)
    };
    numbers
        .and_then(|numbers| numbers.iter().map(one).collect())
        .ok_or_else(|| {
            scaling.refuse(
                "factors",
                "must be a list of numbers from 0.001 to 1000000".to_owned(),
            )
        })
}

impl Rope {
    /// `rope_parameters` is how transformers 5 writes what 4 wrote as `rope_theta` and `rope_scaling`.
    pub(super) fn read(keys: &Keys) -> Result<Self, ConfigError> {
        let (key, scaling) = match keys.object("rope_parameters")? {
            Some(object) => ("rope_parameters", Some(object)),
            None => ("rope_scaling", keys.object("rope_scaling")?),
        };
        let plain = |theta: f32| Self {
            theta: f64::from(theta),
            llama3: None,
            factors: None,
        };
        let outer_theta = keys.number("rope_theta", 10_000.0, 1.0..=1e12)?;
        let Some(scaling) = scaling else {
            return Ok(plain(outer_theta));
        };
        let theta = scaling.number("rope_theta", outer_theta, 1.0..=1e12)?;
        let one = scaling.number("partial_rotary_factor", 1.0, 0.0..=1.0)?;
        if (one - 1.0).abs() > f32::EPSILON {
            return Err(scaling.refuse(
                "partial_rotary_factor",
                "is not supported; only 1.0 is".to_owned(),
            ));
        }
        let kind = scaling.get("rope_type").or_else(|| scaling.get("type"));
        match kind.and_then(Value::as_str) {
            None if kind.is_none() => Ok(plain(theta)),
            Some("default") => Ok(plain(theta)),
            Some("llama3") => Ok(Self {
                llama3: Some(Llama3Rope::read(&scaling, keys)?),
                ..plain(theta)
            }),
            Some(FACTORS) => Ok(Self {
                factors: Some(factors(&scaling)?),
                ..plain(theta)
            }),
            _ => Err(keys.refuse(
                key,
                "asks for a rope_type that is not supported; \"default\" and \"llama3\" are"
                    .to_owned(),
            )),
        }
    }

    /// (`head_dim` / 2) radians per position, computed in f32 step by step as the reference does.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the reference computes in f32"
    )]
    pub fn inverse_frequencies(&self, head_dim: usize) -> Vec<f32> {
        let frequency = |i: usize| {
            let exponent = (2 * i) as f32 / head_dim as f32;
            1.0 / (self.theta.powf(f64::from(exponent)) as f32)
        };
        (0..head_dim / 2)
            .map(frequency)
            .map(|frequency| {
                self.llama3
                    .as_ref()
                    .map_or(frequency, |llama3| llama3.rescale(frequency))
            })
            .enumerate()
            .map(|(at, frequency)| {
                let factor = self.factors.as_ref().and_then(|factors| factors.get(at));
                factor.map_or(frequency, |factor| frequency / factor)
            })
            .collect()
    }
}

impl Llama3Rope {
    fn read(scaling: &Keys, keys: &Keys) -> Result<Self, ConfigError> {
        let need = |key: &str, range| match scaling.get(key) {
            Some(_) => scaling.number(key, 0.0, range),
            None => Err(scaling.refuse(key, "is needed by rope_type \"llama3\"".to_owned())),
        };
        let low_freq_factor = need("low_freq_factor", 1e-3..=1e3)?;
        let high_freq_factor = need("high_freq_factor", 1e-3..=1e3)?;
        if high_freq_factor <= low_freq_factor {
            return Err(scaling.refuse(
                "high_freq_factor",
                format!("must be above low_freq_factor {low_freq_factor}"),
            ));
        }
        let context = match scaling.get("original_max_position_embeddings") {
            Some(_) => scaling.number("original_max_position_embeddings", 0.0, 1.0..=1e8)?,
            None => keys.number("max_position_embeddings", 2048.0, 1.0..=1e8)?,
        };
        Ok(Self {
            factor: need("factor", 1.0..=1e4)?,
            low_freq_factor,
            high_freq_factor,
            original_context: context,
        })
    }

    fn rescale(&self, frequency: f32) -> f32 {
        let wavelength = std::f32::consts::TAU / frequency;
        if wavelength < self.original_context / self.high_freq_factor {
            return frequency;
        }
        if wavelength > self.original_context / self.low_freq_factor {
            return frequency / self.factor;
        }
        let smooth = (self.original_context / wavelength - self.low_freq_factor)
            / (self.high_freq_factor - self.low_freq_factor);
        (1.0 - smooth) * frequency / self.factor + smooth * frequency
    }
}
