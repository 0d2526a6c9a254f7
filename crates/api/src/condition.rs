//! Conditions: the same shape on every kind, with bounds that the schema of `k8s-openapi` leaves out.

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{Schema, SchemaGenerator, json_schema};

/// Sums up: whether the object does what its spec asks for.
pub const CONDITION_READY: &str = "Ready";
/// Present and `True` only while the controller still works towards the spec (kstatus).
pub const CONDITION_RECONCILING: &str = "Reconciling";
/// Present and `True` only while the controller cannot get further without a change (kstatus).
pub const CONDITION_STALLED: &str = "Stalled";

/// The condition of a type, if it is there.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// The schema of a list of conditions, as Kubernetes' own types have it.
pub(crate) fn conditions_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "description": "One observation about the object.",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {
                    "type": "string", "maxLength": 316,
                    "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                    "description": "What is observed, in PascalCase."
                },
                "status": {
                    "type": "string", "enum": ["True", "False", "Unknown"],
                    "description": "Whether it holds: True, False or Unknown."
                },
                "observedGeneration": {
                    "type": "integer", "format": "int64", "minimum": 0,
                    "description": "The metadata.generation that this observation is about."
                },
                "lastTransitionTime": {
                    "type": "string", "format": "date-time", "maxLength": 64,
                    "description": "When the status last changed."
                },
                "reason": {
                    "type": "string", "minLength": 1, "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                    "description": "Why, in one PascalCase word."
                },
                "message": {
                    "type": "string", "maxLength": 32768,
                    "description": "Why, for people: what happened and what to do."
                }
            }
        }
    })
}
