//! The install's authority: who gateways, workers and this operator are to each other. It lives in a Secret, and so do the certificates it
//! issues, one Secret a role; pods mount theirs. Nothing is made here but content: the Secrets are installed with Weir, so that this
//! operator needs no right to make any, and only those are written that a Role names.

mod held;
mod issue;
mod life;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use weir_identity::Role;

use self::held::{Entries, Held};
pub(crate) use self::life::Lives;
use self::life::Step;
use crate::apply::{Applier, ApplyError};

/// The authority's Secret.
pub(crate) const AUTHORITY: &str = "weir-authority";
/// The gateways'.
pub(crate) const GATEWAYS: &str = "weir-gateway-identity";
/// The workers'.
pub(crate) const WORKERS: &str = "weir-worker-identity";

/// Who writes them.
const MANAGER: &str = "weir-authority";
/// How often it is looked whether something is due.
const LOOK_EVERY: Duration = Duration::from_mins(1);
/// How soon again after a failure, or while another one leads.
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
    #[error(transparent)]
    Fence(#[from] ApplyError),
}

/// Keeps the authority and what it issued in order, while this operator leads.
pub(crate) struct Authority {
    pub(crate) applier: Applier,
    pub(crate) namespace: String,
    pub(crate) lives: Lives,
}

impl Authority {
    /// Until `stop`.
    pub(crate) async fn run(self, stop: CancellationToken) {
        loop {
            let pause = match self.look().await {
                Ok(()) => LOOK_EVERY,
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

    async fn look(&self) -> Result<(), AuthorityError> {
        self.applier.fence()?;
        let now_s = now_s();
        let stored = self.read(AUTHORITY).await?;
        let mut held = Held::read(stored.data.as_ref().unwrap_or(&Entries::new()));
        let step = held
            .advance(&self.namespace, self.lives, now_s)
            .map_err(AuthorityError::Make)?;
        if step != Step::Rest {
            // Written before anything is issued by it: with the version that was read, so that of two operators one does it.
            self.write(AUTHORITY, &stored, &held.entries()).await?;
            tracing::info!(?step, "the authority of this install");
        }
        for (name, role) in [(GATEWAYS, Role::Gateway), (WORKERS, Role::Worker)] {
            let stored = self.read(name).await?;
            let entries = stored.data.clone().unwrap_or_default();
            let renewed = held.renewed(role, &entries, self.lives, now_s);
            let renewed = renewed.map_err(|reason| AuthorityError::Issue { name, reason })?;
            if let Some(renewed) = renewed {
                self.write(name, &stored, &renewed).await?;
                tracing::info!(secret = name, "certificates renewed");
            }
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
    ) -> Result<(), AuthorityError> {
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
        written.map(drop).map_err(|error| AuthorityError::Write {
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
