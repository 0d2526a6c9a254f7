//! Tokens of an `OpenID` Connect issuer: its signature, by an algorithm that is listed and fits the key; its claims; its tenant.

use std::str::FromStr as _;

use jsonwebtoken::{Algorithm, Validation, decode, decode_header};

use super::claims::Claims;
use super::identity::{ClaimRule, IssuerSpec, Who, unavailable};
use super::jwks::{Jwks, Lookup};
use crate::error::ApiResult;

const DEFAULT_LEEWAY_S: u64 = 30;
const MAX_LEEWAY_S: u64 = 300;
/// Longest name of a key that is looked for.
const MAX_KID_BYTES: usize = 256;

/// An issuer that tokens of can be verified.
pub(super) struct Issuer {
    name: String,
    address: String,
    audiences: Vec<String>,
    algorithms: Vec<Algorithm>,
    leeway_s: u64,
    rules: Vec<ClaimRule>,
    jwks: Jwks,
}

impl Issuer {
    pub(super) fn new(spec: &IssuerSpec) -> Result<Self, String> {
        let refuse = |why: &str| Err(format!("issuer {:?}: {why}", spec.name));
        if spec.audiences.is_empty() {
            return refuse("audiences is empty: tokens made for others would be taken; name yours");
        }
        let leeway_s = spec.leeway_seconds.unwrap_or(DEFAULT_LEEWAY_S);
        if leeway_s > MAX_LEEWAY_S {
            return refuse("leewaySeconds must be at most 300");
        }
        let mut algorithms = Vec::new();
        for name in &spec.algorithms {
            match Algorithm::from_str(name) {
                // A secret that both sides have is none: whoever can verify could sign.
                Ok(Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512) | Err(_) => {
                    return refuse(&format!(
                        "algorithm {name:?} is not taken; use RS256, ES256 or EdDSA"
                    ));
                }
                Ok(algorithm) => algorithms.push(algorithm),
            }
        }
        if algorithms.is_empty() {
            algorithms = vec![Algorithm::RS256, Algorithm::ES256];
        }
        Ok(Self {
            name: spec.name.clone(),
            address: spec.issuer.clone(),
            audiences: spec.audiences.clone(),
            algorithms,
            leeway_s,
            rules: spec.tenants.clone(),
            jwks: Jwks::new(spec).map_err(|why| format!("issuer {:?}: {why}", spec.name))?,
        })
    }

    pub(super) fn issuer(&self) -> &str {
        &self.address
    }

    /// Whose token this is, if it is good.
    pub(super) async fn who(&self, token: &str) -> ApiResult<Option<Who>> {
        let Ok(header) = decode_header(token) else {
            return Ok(None);
        };
        let kid = header.kid.as_deref();
        if !self.algorithms.contains(&header.alg)
            || kid.is_some_and(|kid| kid.len() > MAX_KID_BYTES)
            || header.crit.is_some()
        {
            return Ok(None);
        }
        let key = match self.jwks.find(kid, header.alg).await {
            Lookup::Found(key) => key,
            Lookup::Unknown => return Ok(None),
            Lookup::Unavailable => return Err(unavailable("the issuer of the token")),
        };
        // One algorithm, and the library refuses it for a key of another family.
        let mut validation = Validation::new(header.alg);
        validation.leeway = self.leeway_s;
        validation.validate_nbf = true;
        validation.set_audience(&self.audiences);
        validation.set_issuer(&[&self.address]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        match decode::<Claims>(token, &key, &validation) {
            Ok(token) => Ok(self.tenant(&token.claims)),
            Err(error) => {
                tracing::debug!(issuer = self.name, %error, "refused a token");
                Ok(None)
            }
        }
    }

    fn tenant(&self, claims: &Claims) -> Option<Who> {
        let fits = |rule: &&ClaimRule| claims.says(&rule.claim, &rule.value);
        let rule = self.rules.iter().find(fits)?;
        let subject = claims.get("sub").and_then(|sub| sub.as_str()).unwrap_or("");
        let subject: String = subject
            .chars()
            .filter(|c| !c.is_control())
            .take(96)
            .collect();
        Some(Who {
            tenant: rule.tenant.clone(),
            caller: format!("oidc:{}:{subject}", self.name),
        })
    }
}
