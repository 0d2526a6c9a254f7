//! One operator acts, the others wait: a Lease, as Kubernetes' own controllers have it.
//!
//! A lease alone does not fence: who slept may believe too long. Times are therefore of the local clock only (how long a foreign lease has
//! not changed, how long ago the own one was renewed), an operator stops ten seconds after its last renewal while others wait fifteen, and
//! every write carries a fence of its own besides: records are created once, children are changed with the version that was read.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Others take over after this long without a renewal.
const DURATION: Duration = Duration::from_secs(15);
/// The holder stops acting after this long without one.
const DEADLINE: Duration = Duration::from_secs(10);
/// Between two attempts.
const RETRY: Duration = Duration::from_secs(2);

/// What this operator is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It acts.
    Leading,
    /// It led, and does not know whether it still does: it may only send runs back to where they were safe.
    Lapsed,
    /// Another one acts.
    Following,
}

/// Whether this operator leads. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Leadership(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    renewed: Option<Instant>,
    /// Raised each time it begins to lead: what was remembered from before is stale then.
    term: u64,
    /// The foreign lease as last seen, and since when it has not changed.
    seen: Option<(String, Instant)>,
}

impl Default for Leadership {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(State::default())))
    }
}

impl Leadership {
    /// What it is now.
    pub fn role(&self, now: Instant) -> Role {
        match self.0.lock().renewed {
            Some(renewed) if now.saturating_duration_since(renewed) < DEADLINE => Role::Leading,
            Some(_) => Role::Lapsed,
            None => Role::Following,
        }
    }

    /// The present term, if it leads.
    pub fn term(&self, now: Instant) -> Option<u64> {
        (self.role(now) == Role::Leading).then(|| self.0.lock().term)
    }

    fn renewed(&self, at: Instant) {
        let mut state = self.0.lock();
        let is_gap = state
            .renewed
            .is_none_or(|renewed| at.saturating_duration_since(renewed) >= DEADLINE);
        state.term += u64::from(is_gap);
        state.renewed = Some(at);
        state.seen = None;
    }

    fn lost(&self) {
        self.0.lock().renewed = None;
    }

    /// Whether a foreign lease, as described by `mark`, is over: it has not changed for its whole duration.
    fn is_over(&self, mark: &str, now: Instant) -> bool {
        let mut state = self.0.lock();
        match &state.seen {
            Some((known, since)) if known == mark => {
                now.saturating_duration_since(*since) >= DURATION
            }
            _ => {
                state.seen = Some((mark.to_owned(), now));
                false
            }
        }
    }
}

/// Where the lease is, and who asks for it.
#[derive(Clone)]
pub struct Elector {
    api: Api<Lease>,
    name: String,
    identity: String,
    leadership: Leadership,
}

impl Elector {
    /// For the lease `name`.
    pub fn new(client: Client, namespace: &str, name: &str, identity: String) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name: name.to_owned(),
            identity,
            leadership: Leadership::default(),
        }
    }

    /// What it comes to.
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Keeps trying until `stop`, then gives the lease back, so that the next one need not wait.
    pub async fn run(self, stop: CancellationToken) {
        loop {
            if let Ok(Err(error)) = tokio::time::timeout(DEADLINE, self.attempt()).await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the lease cannot be renewed"
                );
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = stop.cancelled() => break,
            }
        }
        if self.leadership.role(Instant::now()) == Role::Leading {
            self.leadership.lost();
            if let Err(error) = self.release().await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the lease was not given back; it ends by itself"
                );
            }
        }
    }

    async fn attempt(&self) -> kube::Result<()> {
        let began = Instant::now();
        let Some(mut lease) = self.api.get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    ..ObjectMeta::default()
                },
                spec: None,
            };
            let created = self
                .api
                .create(&PostParams::default(), &self.held(lease))
                .await;
            return self.took(created, began);
        };
        let spec = lease.spec.take().unwrap_or_default();
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let is_mine = holder == self.identity;
        if !is_mine {
            self.leadership.lost();
            let mark = format!(
                "{holder} {:?} {:?}",
                spec.renew_time, lease.metadata.resource_version
            );
            if !holder.is_empty() && !self.leadership.is_over(&mark, began) {
                return Ok(());
            }
        }
        lease.spec = Some(spec);
        // With the version that was read: who comes second is refused.
        let replaced = self
            .api
            .replace(&self.name, &PostParams::default(), &self.held(lease))
            .await;
        self.took(replaced, began)
    }

    fn took(&self, written: kube::Result<Lease>, began: Instant) -> kube::Result<()> {
        match written {
            Ok(_) => {
                if self.leadership.role(began) != Role::Leading {
                    tracing::info!(identity = self.identity, "leads");
                }
                // From before the request: the server may have written it at any time since.
                self.leadership.renewed(began);
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.leadership.lost();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn held(&self, mut lease: Lease) -> Lease {
        let now = MicroTime(jiff::Timestamp::now());
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            spec.holder_identity = Some(self.identity.clone());
            spec.acquire_time = Some(now.clone());
            spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |count| count + 1));
        }
        spec.lease_duration_seconds = i32::try_from(DURATION.as_secs()).ok();
        spec.renew_time = Some(now);
        lease
    }

    async fn release(&self) -> kube::Result<()> {
        let mut lease = self.api.get(&self.name).await?;
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(&self.identity) {
            spec.holder_identity = None;
            self.api
                .replace(&self.name, &PostParams::default(), &lease)
                .await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_renew_stops_before_others_begin() {
        let (leadership, start) = (Leadership::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        assert_eq!(leadership.role(at(0)), Role::Following);
        leadership.renewed(at(0));
        assert_eq!(
            (leadership.role(at(9)), leadership.term(at(9))),
            (Role::Leading, Some(1))
        );
        assert_eq!(
            (leadership.role(at(10)), leadership.term(at(10))),
            (Role::Lapsed, None)
        );
        leadership.renewed(at(11));
        assert_eq!(
            leadership.term(at(11)),
            Some(2),
            "what was remembered is stale"
        );
        leadership.renewed(at(13));
        assert_eq!(leadership.term(at(13)), Some(2));
        leadership.lost();
        assert_eq!(leadership.role(at(13)), Role::Following);
    }

    #[test]
    fn a_foreign_lease_is_over_when_it_has_not_changed_for_its_duration_by_the_own_clock() {
        let (leadership, start) = (Leadership::default(), Instant::now());
        let at = |s| start + Duration::from_secs(s);
        assert!(!leadership.is_over("b 1", at(0)));
        assert!(!leadership.is_over("b 1", at(14)));
        assert!(!leadership.is_over("b 2", at(15)), "it was renewed");
        assert!(!leadership.is_over("b 2", at(29)));
        assert!(leadership.is_over("b 2", at(30)));
    }
}
