//! What is left of a tenant's rates, in the headers that `OpenAI`'s clients read.

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::clock::now_ms;
use crate::core::Core;
use crate::snapshot::Tenant;

const MINUTE_MS: u64 = 60_000;

/// Headers for an answer to a call that makes runs: as the account stands after it. A tenant without rates gets none.
pub(super) async fn headers(core: &Core, tenant: &Tenant) -> HeaderMap {
    let limits = &tenant.limits;
    let mut headers = HeaderMap::new();
    if limits.requests_per_minute.is_none() && limits.tokens_per_minute.is_none() {
        return headers;
    }
    let now = now_ms();
    let budget = match core.store.budget(&tenant.name, Vec::new(), now).await {
        Ok(budget) => budget,
        Err(error) => {
            tracing::debug!(%error, "no rates on this answer");
            return headers;
        }
    };
    let reset_ms = MINUTE_MS - now % MINUTE_MS;
    let mut insert = |kind: &str, limit: Option<u64>, taken: u64| {
        let Some(limit) = limit else { return };
        let reset = if taken == 0 { 0 } else { reset_ms };
        for (what, value) in [
            ("limit", limit.to_string()),
            ("remaining", limit.saturating_sub(taken).to_string()),
            ("reset", duration(reset)),
        ] {
            let name = HeaderName::try_from(format!("x-ratelimit-{what}-{kind}"));
            let value = HeaderValue::try_from(value);
            if let (Ok(name), Ok(value)) = (name, value) {
                headers.insert(name, value);
            }
        }
    };
    insert(
        "requests",
        limits.requests_per_minute,
        budget.minute_requests,
    );
    insert("tokens", limits.tokens_per_minute, budget.minute_tokens);
    headers
}

/// As `OpenAI` writes it: `0s`, `850ms`, `17s`.
fn duration(ms: u64) -> String {
    match ms {
        0 => "0s".to_owned(),
        1..1000 => format!("{ms}ms"),
        _ => format!("{}s", ms.div_ceil(1000)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_in_the_largest_unit_that_fits() {
        for (ms, want) in [(0, "0s"), (850, "850ms"), (16_001, "17s"), (60_000, "60s")] {
            assert_eq!(duration(ms), want);
        }
    }
}
