//! Proven objects: every field checked, every silent field given the value it means.

mod gpu_pool;
mod model_version;
mod tenant_quota;

use std::time::Duration;

pub use gpu_pool::{
    Accelerator, AutoscaleTargets, EngineLimits, FetchLimits, PromptClass, QueueBound, QueueBounds,
    ValidGpuPool,
};
pub use model_version::{
    Guardrails, ManifestFile, RolloutPlan, RolloutStep, ShadowPlan, SignatureSource, TokenPrice,
    ValidManifest, ValidModelVersion,
};
pub use tenant_quota::{
    RateLimits, RunLimits, TenantKey, TenantKeyLimits, TenantModel, ValidTenantQuota, Window,
};

use crate::text::{DurationText, Percent, QuantityText};
use crate::{FieldProblem, Kind, check};

/// Turns an object into its proven form.
pub trait Validate: Kind {
    /// The proven form.
    type Valid;

    /// Checks the object as an API server would, then what a schema cannot say, and gives silent fields their values.
    ///
    /// # Errors
    /// Every problem, with its place and remedy.
    fn validate(&self) -> Result<Self::Valid, Vec<FieldProblem>> {
        check(self)?;
        let mut problems = Problems::default();
        let valid = self.resolve(&mut problems);
        if problems.0.is_empty() {
            Ok(valid)
        } else {
            Err(problems.0)
        }
    }

    /// The proven form of an object that has passed [`check`]; what the schema cannot say goes to `problems`.
    #[doc(hidden)]
    fn resolve(&self, problems: &mut Problems) -> Self::Valid;
}

/// What was found so far.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Problems(Vec<FieldProblem>);

impl Problems {
    fn push(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(FieldProblem::new(path, message));
    }

    /// A duration, or what it means when absent.
    fn duration(&mut self, path: &str, text: Option<&DurationText>, absent: Duration) -> Duration {
        match text.map(DurationText::parse) {
            None => absent,
            Some(Ok(duration)) => duration,
            Some(Err(error)) => {
                self.push(path, error.to_string());
                absent
            }
        }
    }

    /// A duration that must not be zero.
    fn period(&mut self, path: &str, text: Option<&DurationText>, absent: Duration) -> Duration {
        let duration = self.duration(path, text, absent);
        if duration.is_zero() {
            self.push(path, "must be longer than zero");
        }
        duration
    }

    /// Parts per million, or what they are when absent.
    fn share(&mut self, path: &str, percent: Option<&Percent>, absent_ppm: u32) -> u32 {
        match percent.map(Percent::parts_per_million) {
            None => absent_ppm,
            Some(Ok(ppm)) => ppm,
            Some(Err(error)) => {
                self.push(path, error.to_string());
                absent_ppm
            }
        }
    }

    /// A probability: neither certain nor impossible.
    fn probability(&mut self, path: &str, percent: Option<&Percent>, absent_ppm: u32) -> u32 {
        let ppm = self.share(path, percent, absent_ppm);
        if ppm == 0 || ppm > 500_000 {
            self.push(
                path,
                "must be above 0 and at most 50: 0 would need endless data",
            );
        }
        ppm
    }

    /// Bytes, or how many when absent.
    fn bytes(&mut self, path: &str, text: Option<&QuantityText>, absent: u64) -> u64 {
        match text.map(QuantityText::bytes) {
            None => absent,
            Some(Ok(bytes)) => bytes,
            Some(Err(error)) => {
                self.push(path, error.to_string());
                absent
            }
        }
    }
}

/// A number whose lower bound of zero the schema has checked.
fn unsigned(number: i32) -> u32 {
    u32::try_from(number).expect("the schema's minimum is checked before")
}

/// As [`unsigned`].
fn unsigned_64(number: i64) -> u64 {
    u64::try_from(number).expect("the schema's minimum is checked before")
}

/// Name, namespace and generation of an object.
fn identity<K: Kind>(object: &K) -> (String, Option<String>, i64) {
    let meta = object.meta();
    (
        meta.name.clone().unwrap_or_default(),
        meta.namespace.clone(),
        meta.generation.unwrap_or_default(),
    )
}

#[cfg(test)]
#[allow(clippy::too_many_lines, reason = "tables: one row is read at a time")]
mod tests;
