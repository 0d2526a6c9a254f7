//! The install's authority: who gateways, workers and operators are to each other. It lives in a Secret, and so do the certificates it
//! issues to gateways and workers, one Secret a role; pods mount theirs. An operator issues its own to itself, whether it leads or not, and
//! keeps it in memory. Nothing is made here but content: the Secrets are installed with Weir, so that this operator needs no right to make
//! any, and only those are written that a Role names.

mod held;
mod issue;
mod life;
mod shown;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use weir_identity::{Credentials, Role};
use weir_telemetry::Metrics;

use self::held::{Entries, Held};
use self::life::{Lives, Spread, Step};
use self::shown::Shown;
use crate::apply::{Applier, ApplyError};
use crate::http::Proof;

/// The authority's Secret.
pub(crate) const AUTHORITY: &str = "weir-authority";
/// The workers'.
pub(crate) const WORKERS: &str = "weir-worker-identity";
/// Whose certificates lie in Secrets.
const WORKLOADS: [(&str, Role); 2] = [
    ("weir-gateway-identity", Role::Gateway),
    (WORKERS, Role::Worker),
];

/// Who writes them.
const MANAGER: &str = "weir-authority";
/// How often it is looked whether something is due.
const LOOK_EVERY: Duration = Duration::from_mins(1);
/// How soon again after a failure, or while there is nothing yet that this operator could prove itself by.
const AGAIN: Duration = Duration::from_secs(2);

/// Why certificates could not be kept in order.
#[derive(Debug, thiserror::Error)]
enum AuthorityError {
    #[error(
        "Secret {0:?} is not there; apply the manifests or the chart of this version again, which bring it along empty"
    )]
    Missing(&'static str),
    #[error("cannot read Secret {name:?}")]
    Read {
        name: &'static str,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("cannot write Secret {name:?}")]
    Write {
        name: &'static str,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("cannot make an authority")]
    Make(#[source] rcgen::Error),
    #[error("cannot issue the certificate of Secret {name:?}: {reason}")]
    Issue { name: &'static str, reason: String },
    #[error("cannot issue this operator's own certificate: {reason}")]
    Own { reason: String },
    #[error(transparent)]
    Fence(#[from] ApplyError),
}

/// Keeps what this operator proves itself by in order, and the authority and what it issued while this operator leads.
pub(crate) struct Authority {
    applier: Applier,
    namespace: String,
    lives: Lives,
    own: Proof,
    shown: Shown,
}

impl Authority {
    /// What issues certificates that live so long, among them this operator's `own`.
    pub(crate) fn new(
        applier: Applier,
        namespace: String,
        certificate: Duration,
        own: Proof,
        metrics: &Metrics,
    ) -> Self {
        Self {
            applier,
            namespace,
            lives: Lives { certificate },
            own,
            shown: Shown::new(metrics),
        }
    }

    /// Until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let mut own = Entries::new();
        loop {
            let pause = match self.look(&mut own).await {
                Ok(()) => LOOK_EVERY,
                Err(AuthorityError::Fence(_)) if self.own.load().is_some() => LOOK_EVERY,
                Err(AuthorityError::Fence(_)) => AGAIN,
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "certificates could not be kept in order; it is tried again"
                    );
                    AGAIN
                }
            };
            let rest = tokio::time::sleep(pause);
            if stop.run_until_cancelled(rest).await.is_none() {
                return;
            }
        }
    }

    async fn look(&self, own: &mut Entries) -> Result<(), AuthorityError> {
        let now_s = now_s();
        let mut stored = self.read(AUTHORITY).await?;
        let mut held = Held::read(stored.data.as_ref().unwrap_or(&Entries::new()));
        let mut workloads = Vec::new();
        for (name, role) in WORKLOADS {
            let read = self.read(name).await;
            if let Ok(secret) = &read {
                self.shown
                    .show(role, &secret.data.clone().unwrap_or_default());
            }
            workloads.push((name, role, read));
        }
        // An authority that is damaged is begun anew below, whatever this comes to.
        let mut outcome = match held.current {
            Some(_) => self.prove(&held, own, now_s),
            None => Ok(()),
        };
        self.applier.fence()?;
        // What was not written yet, or cannot be, has reached nobody.
        let lacks = |held: &Held, role, read: &Result<Secret, AuthorityError>| {
            let entries = read.as_ref().ok()?.data.clone().unwrap_or_default();
            Some(!held.is_complete(role, &entries, now_s))
        };
        let lacking: Vec<Option<bool>> = workloads
            .iter()
            .map(|(_, role, read)| lacks(&held, *role, read))
            .collect();
        let spread = if lacking.iter().all(|lacks| *lacks == Some(false)) {
            Spread::Begun
        } else {
            Spread::Incomplete
        };
        let step = held
            .advance(&self.namespace, self.lives, spread, now_s)
            .map_err(AuthorityError::Make)?;
        // The next step counts from what is written last, and that is said before it is written.
        let is_late = lacking.contains(&Some(true)) && held.delays(now_s);
        if step != Step::Rest || is_late {
            // Written before anything is issued by it: with the version that was read, so that of two operators one does it.
            stored = self.write(AUTHORITY, &stored, &held.entries()).await?;
            tracing::info!(
                ?step,
                version = stored.resource_version(),
                "the authority of this install"
            );
            outcome = self.prove(&held, own, now_s);
        }
        for (name, role, read) in workloads {
            let kept = match read {
                Ok(read) => self.keep((name, role), &read, &held, now_s).await,
                Err(error) => Err(error),
            };
            // One Secret that cannot be written must not keep the other from what it needs.
            outcome = outcome.and(kept);
        }
        outcome
    }

    /// Issues to this operator what it proves itself by, where that is due.
    fn prove(&self, held: &Held, own: &mut Entries, now_s: u64) -> Result<(), AuthorityError> {
        let refused = |reason| AuthorityError::Own { reason };
        let renewed = held.renewed(Role::Operator, own, self.lives, now_s);
        if let Some(renewed) = renewed.map_err(refused)? {
            let part = |name| renewed.get(name).map_or("", String::as_str).as_bytes();
            let made = Credentials::from_pem(part("tls.crt"), part("tls.key"), part("ca.crt"));
            let made = made.map_err(|error| refused(error.to_string()))?;
            self.own.store(Some(Arc::new(made)));
            *own = held::stored(&renewed);
        }
        self.shown.show(Role::Operator, own);
        self.shown.authority(held);
        Ok(())
    }

    /// Renews a role's certificates where that is due.
    async fn keep(
        &self,
        (name, role): (&'static str, Role),
        stored: &Secret,
        held: &Held,
        now_s: u64,
    ) -> Result<(), AuthorityError> {
        let entries = stored.data.clone().unwrap_or_default();
        let renewed = held.renewed(role, &entries, self.lives, now_s);
        let renewed = renewed.map_err(|reason| AuthorityError::Issue { name, reason })?;
        if let Some(renewed) = renewed {
            self.write(name, stored, &renewed).await?;
            self.shown.show(role, &held::stored(&renewed));
            tracing::info!(secret = name, "certificates renewed");
        }
        Ok(())
    }

    fn secrets(&self) -> Api<Secret> {
        self.applier.api()
    }

    async fn read(&self, name: &'static str) -> Result<Secret, AuthorityError> {
        let read = self.secrets().get_opt(name).await;
        let read = read.map_err(|error| AuthorityError::Read {
            name,
            source: Box::new(error),
        })?;
        read.ok_or(AuthorityError::Missing(name))
    }

    async fn write(
        &self,
        name: &'static str,
        stored: &Secret,
        entries: &BTreeMap<&'static str, String>,
    ) -> Result<Secret, AuthorityError> {
        self.applier.fence()?;
        let body = body(stored, entries);
        let params = PatchParams {
            field_manager: Some(MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let written = self
            .secrets()
            .patch(name, &params, &Patch::Merge(&body))
            .await;
        written.map_err(|error| AuthorityError::Write {
            name,
            source: Box::new(error),
        })
    }
}

/// A merge, which cannot make what is not there; empty entries go.
fn body(stored: &Secret, entries: &BTreeMap<&'static str, String>) -> Value {
    let entry = |(name, text): (&&str, &String)| {
        let value = if text.is_empty() {
            Value::Null
        } else {
            json!(k8s_openapi::ByteString(text.clone().into_bytes()))
        };
        ((*name).to_owned(), value)
    };
    let data: serde_json::Map<String, Value> = entries.iter().map(entry).collect();
    json!({"metadata": {"resourceVersion": stored.resource_version()}, "data": data})
}

fn now_s() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}
