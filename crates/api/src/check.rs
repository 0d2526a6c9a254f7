//! The same answer as an API server's: structure and cross-field rules of a kind's schema, all problems at once.

mod structure;

use std::sync::LazyLock;

use kube::core::cel::{CompiledSchema, ErrorKind, Validator, compile_schema};
use kube::{CustomResourceExt, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{FieldProblem, GpuPool, ModelVersion, TenantQuota, crd_of};

/// One of the three kinds.
pub trait Kind:
    CustomResourceExt + Resource<DynamicType = ()> + Serialize + DeserializeOwned + Clone + 'static
{
    /// Its rules, made once.
    #[doc(hidden)]
    fn rules() -> &'static Rules;
}

/// A kind's schema, ready to be used.
#[derive(Debug)]
pub struct Rules {
    schema: Value,
    compiled: CompiledSchema,
}

impl Rules {
    fn of<K: CustomResourceExt>() -> Self {
        let crd = crd_of::<K>();
        let schema = crd.spec.versions[0]
            .schema
            .as_ref()
            .and_then(|schema| schema.open_api_v3_schema.as_ref())
            .expect("the derive makes a schema");
        let schema = serde_json::to_value(schema).expect("a schema is JSON");
        let compiled = compile_schema(&schema);
        Self { schema, compiled }
    }

    /// The schema as JSON.
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    fn cross_field(&self, object: &Value, old: Option<&Value>) -> Vec<FieldProblem> {
        let Err(errors) = Validator::new().validate_compiled(&self.compiled, object, old) else {
            return Vec::new();
        };
        let problem = |error: kube::core::cel::ValidationError| {
            debug_assert_eq!(error.kind, ErrorKind::ValidationFailure, "{error:?}");
            FieldProblem::new(error.field_path, error.message)
        };
        errors.into_vec().into_iter().map(problem).collect()
    }
}

macro_rules! kind {
    ($kind:ty) => {
        impl Kind for $kind {
            fn rules() -> &'static Rules {
                static RULES: LazyLock<Rules> = LazyLock::new(Rules::of::<$kind>);
                &RULES
            }
        }
    };
}
kind!(ModelVersion);
kind!(GpuPool);
kind!(TenantQuota);

/// Reads an object as a person wrote it: unknown fields are refused, so that a misspelt one is not silently ignored. (Code that reads
/// from an API server deserialises instead, so that a newer field does not stop it.)
///
/// # Errors
/// Every problem of structure; where there is none, every cross-field rule that does not hold.
pub fn parse<K: Kind>(manifest: &Value) -> Result<K, Vec<FieldProblem>> {
    let rules = K::rules();
    let mut problems = structure::header::<K>(manifest);
    problems.extend(structure::check(&rules.schema, manifest));
    if problems.is_empty() {
        problems = rules.cross_field(manifest, None);
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    K::deserialize(manifest).map_err(|error| vec![FieldProblem::new("", error.to_string())])
}

/// Checks an object that may come from anywhere.
///
/// # Errors
/// As [`parse`].
pub fn check<K: Kind>(object: &K) -> Result<(), Vec<FieldProblem>> {
    let value = to_value(object);
    let rules = K::rules();
    let mut problems = structure::check(&rules.schema, &value);
    if problems.is_empty() {
        problems = rules.cross_field(&value, None);
    }
    or_ok(problems)
}

/// Checks that an object may replace another: what cannot change has not changed.
///
/// # Errors
/// Every cross-field rule that does not hold, the rules about the change included.
pub fn check_update<K: Kind>(new: &K, old: &K) -> Result<(), Vec<FieldProblem>> {
    or_ok(K::rules().cross_field(&to_value(new), Some(&to_value(old))))
}

fn to_value<K: Kind>(object: &K) -> Value {
    serde_json::to_value(object).expect("a kind is JSON")
}

fn or_ok(problems: Vec<FieldProblem>) -> Result<(), Vec<FieldProblem>> {
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems)
    }
}

#[cfg(test)]
#[allow(clippy::too_many_lines, reason = "tables: one row is read at a time")]
mod tests;
