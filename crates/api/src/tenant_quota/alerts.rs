//! When and where a tenant is told that a budget is used up.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::SecretRef;

/// Where an alert may go: over TLS, or to this machine.
const WEBHOOK_URL: &str =
    "^(https://[^\\s/]+|http://(localhost|127\\.0\\.0\\.1|\\[::1\\])(:[0-9]+)?)(/\\S*)?$";

/// Alerts when a budget is used up to a threshold: a line of the audit log, a metric, and a webhook where one is named.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Alerts {
    /// Percent of each window's limits at which to alert; 50, 80, 95 and 100 where absent, never where empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), inner(range(min = 1, max = 100)))]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub thresholds_percent: Option<Vec<i32>>,
    /// Where to post alerts; nowhere where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
}

/// Where alerts are posted.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Webhook {
    /// `https://…`; `http://` only to localhost, 127.0.0.1 or [::1].
    #[schemars(length(min = 1, max = 2048), regex(pattern = WEBHOOK_URL))]
    pub url: String,
    /// Where the secret is that signs each alert: an entry of a Secret in the same namespace.
    pub secret_ref: SecretRef,
}
