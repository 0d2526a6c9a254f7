//! Who vouches for callers without an API key, and what each token was found to be.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Deserialize;

use super::claims::{Claims, unverified};
use super::keys::digest;
use super::oidc::Issuer;
use super::review::Reviewer;
use crate::clock::now_ms;
use crate::error::{ApiError, ApiResult};

/// Tokens remembered, good and bad ones alike; reaching it forgets them all.
const CACHE_ENTRIES: usize = 8192;
/// How long a good token is not verified again: so long may a key that was withdrawn still count.
const GOOD_MS: u64 = 60_000;
/// How long a bad token is refused without being looked at again.
const BAD_MS: u64 = 10_000;

/// Issuers and the cluster.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IdentitySpec {
    /// `OpenID` Connect issuers.
    pub issuers: Vec<IssuerSpec>,
    /// Kubernetes' own.
    pub service_accounts: Option<ServiceAccountSpec>,
}

/// An `OpenID` Connect issuer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IssuerSpec {
    /// Its name, in logs and in the runs' caller.
    pub name: String,
    /// What tokens call it in `iss`: an `https` address; `http` on this machine only.
    pub issuer: String,
    /// At least one of them must be in `aud`.
    pub audiences: Vec<String>,
    /// Where its keys are: an address, or a file; where its discovery document says, if absent.
    pub jwks: Option<String>,
    /// PEM file of the certificates it is trusted by; the system's where absent.
    pub ca_file: Option<PathBuf>,
    /// RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384 or `EdDSA`; RS256 and ES256 where empty.
    #[serde(default)]
    pub algorithms: Vec<String>,
    /// By how much clocks may differ, at most 300; 30 where absent.
    pub leeway_seconds: Option<u64>,
    /// Whose a token is: the first entry that fits.
    pub tenants: Vec<ClaimRule>,
}

/// A claim that makes a caller a tenant's.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimRule {
    /// The claim's name, or a path of names with dots between them.
    pub claim: String,
    /// What it is, or what its list has.
    pub value: String,
    /// The tenant.
    pub tenant: String,
}

/// Tokens of Kubernetes service accounts.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceAccountSpec {
    /// What tokens must be made for: `audiences` of a projected volume, `kubectl create token --audience`.
    pub audience: String,
    /// The API server; the cluster's own where absent.
    pub api_server: Option<String>,
    /// PEM file of its certificates; the pod's where absent.
    pub ca_file: Option<PathBuf>,
    /// File with the gateway's own token; the pod's where absent.
    pub token_file: Option<PathBuf>,
    /// Whose an account is: the first entry that fits.
    pub tenants: Vec<AccountRule>,
}

/// A service account that is a tenant's.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AccountRule {
    /// Its namespace.
    pub namespace: String,
    /// Its name; every account of the namespace where absent.
    pub name: Option<String>,
    /// The tenant.
    pub tenant: String,
}

/// A caller that somebody vouches for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) tenant: String,
    /// For people and for the audit log.
    pub(crate) caller: String,
}

/// Until when a token counts as what it was found to be.
type Known = (u64, Option<Arc<Who>>);

/// Those who vouch, made ready, and what they said lately.
#[derive(Default)]
pub(crate) struct Identity {
    spec: IdentitySpec,
    issuers: Vec<Issuer>,
    reviewer: Option<Reviewer>,
    cache: Mutex<HashMap<[u8; 32], Known>>,
}

impl IdentitySpec {
    /// What stands against using it.
    pub(crate) fn check(&self) -> Result<(), String> {
        for issuer in &self.issuers {
            Issuer::new(issuer)?;
        }
        if let Some(accounts) = &self.service_accounts
            && accounts.audience.is_empty()
        {
            return Err(
                "serviceAccounts.audience is empty; name what tokens are made for".to_owned(),
            );
        }
        Ok(())
    }
}

impl Identity {
    /// `before` is kept where it says the same: its keys need not be fetched again.
    pub(crate) fn next(spec: IdentitySpec, before: &Arc<Self>) -> Arc<Self> {
        if before.spec == spec {
            return Arc::clone(before);
        }
        let mut issuers = Vec::new();
        for issuer in &spec.issuers {
            match Issuer::new(issuer) {
                Ok(issuer) => issuers.push(issuer),
                Err(why) => tracing::error!(issuer = issuer.name, why, "ignoring an issuer"),
            }
        }
        Arc::new(Self {
            issuers,
            reviewer: spec.service_accounts.clone().map(Reviewer::new),
            spec,
            cache: Mutex::default(),
        })
    }

    /// Who presents this token. `None`: nobody vouches for it.
    pub(crate) async fn who(&self, token: &str) -> ApiResult<Option<Arc<Who>>> {
        let looks_like_one = token.split('.').count() == 3;
        if !looks_like_one || (self.issuers.is_empty() && self.reviewer.is_none()) {
            return Ok(None);
        }
        let digest = digest(token);
        let now = now_ms();
        if let Some((until, known)) = self.cache.lock().get(&digest)
            && now < *until
        {
            return Ok(known.clone());
        }
        let Some(claims) = unverified(token) else {
            return Ok(None);
        };
        let found = self.ask(token, &claims).await?.map(Arc::new);
        let until = match &found {
            Some(_) => (now + GOOD_MS).min(claims.expires().unwrap_or(0).saturating_mul(1000)),
            None => now + BAD_MS,
        };
        let mut cache = self.cache.lock();
        if cache.len() >= CACHE_ENTRIES {
            cache.clear();
        }
        cache.insert(digest, (until, found.clone()));
        Ok(found)
    }

    async fn ask(&self, token: &str, claims: &Claims) -> ApiResult<Option<Who>> {
        let issuer = claims.get("iss").and_then(|iss| iss.as_str());
        let own = self
            .issuers
            .iter()
            .find(|known| Some(known.issuer()) == issuer);
        match (own, &self.reviewer) {
            (Some(issuer), _) => issuer.who(token).await,
            (None, Some(reviewer)) => reviewer.who(token).await,
            (None, None) => Ok(None),
        }
    }
}

/// Those who vouch cannot be asked: not the caller's fault, and nothing was let in.
pub(super) fn unavailable(who: &str) -> ApiError {
    ApiError::new(
        weir_protocol::error::ErrorCode::StoreUnavailable,
        format!(
            "{who} does not answer, so the token cannot be checked; nothing was started, try again"
        ),
    )
    .retry_after_ms(1000)
}
