//! From what a caller presents to a tenant: an API key, a token of an issuer, or a token of a Kubernetes `ServiceAccount`.

mod claims;
mod identity;
mod jwks;
mod keys;
mod list;
mod oidc;
mod review;
mod used;

use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use weir_protocol::error::ErrorCode;

pub(crate) use identity::Identity;
pub use identity::{AccountRule, ClaimRule, IdentitySpec, IssuerSpec, ServiceAccountSpec};
pub(crate) use keys::{Keys, digest};
pub(crate) use list::{KeyView, views};
pub(crate) use used::KeyUse;

use crate::core::Core;
use crate::error::{ApiError, ApiResult};
use crate::snapshot::Tenant;

/// Longest token that is looked at. Tokens of clusters and issuers with many groups have some thousand bytes.
const MAX_TOKEN_BYTES: usize = 8 << 10;

/// The tenant whose key or token a request presents.
pub(crate) async fn authenticate(core: &Core, headers: &HeaderMap) -> ApiResult<Arc<Tenant>> {
    let directory = core.directory.load_full();
    let token = bearer(headers)
        .ok_or_else(|| refused("no API key: send the header \"Authorization: Bearer KEY\""))?;
    if let Some(tenant) = directory.keys.find(token)? {
        return Ok(tenant);
    }
    let identity = &directory.identity;
    let Some(who) = identity.who(token).await? else {
        return Err(refused("this API key is not known here; check it"));
    };
    let Some(tenant) = directory.keys.tenant(&who.tenant) else {
        return Err(refused(
            "the token is good, but its tenant has no quota here",
        ));
    };
    Ok(Arc::new(Tenant {
        caller: Some(who.caller.clone()),
        ..Tenant::clone(&tenant)
    }))
}

pub(super) fn refused(message: &str) -> ApiError {
    ApiError::new(ErrorCode::Unauthenticated, message)
}

/// The key of `Authorization: Bearer KEY`; the scheme in any case, the key as it is.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = std::str::from_utf8(headers.get(AUTHORIZATION)?.as_bytes()).ok()?;
    let (scheme, key) = value.split_at_checked(7)?;
    (scheme.eq_ignore_ascii_case("bearer ") && !key.is_empty() && key.len() <= MAX_TOKEN_BYTES)
        .then_some(key)
}
