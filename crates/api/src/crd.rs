//! CustomResourceDefinitions as they are written to `crds/`.

pub use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

use crate::{GpuPool, ModelVersion, TenantQuota};

/// All definitions, by name.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![
        crd_of::<GpuPool>(),
        crd_of::<ModelVersion>(),
        crd_of::<TenantQuota>(),
    ]
}

/// The definition of one kind, cleaned of what the derive adds and an API server or a person would trip over.
pub fn crd_of<K: CustomResourceExt>() -> CustomResourceDefinition {
    let mut crd = K::crd();
    for version in &mut crd.spec.versions {
        let schema = version
            .schema
            .as_mut()
            .and_then(|schema| schema.open_api_v3_schema.take())
            .expect("the derive makes a schema");
        let mut schema = serde_json::to_value(schema).expect("a schema is JSON");
        clean(&mut schema);
        let schema = serde_json::from_value(schema).expect("cleaning keeps the schema's form");
        version
            .schema
            .as_mut()
            .expect("it was there above")
            .open_api_v3_schema = Some(schema);
    }
    crd
}

/// Takes away `nullable` (a silent field is left out, never null) and the titles that repeat Rust's type names.
fn clean(schema: &mut Value) {
    let Value::Object(object) = schema else {
        return;
    };
    object.remove("nullable");
    object.remove("title");
    for key in ["properties", "items", "additionalProperties"] {
        match (key, object.get_mut(key)) {
            ("properties", Some(Value::Object(properties))) => {
                properties.values_mut().for_each(clean);
            }
            (_, Some(child)) => clean(child),
            (_, None) => {}
        }
    }
}
