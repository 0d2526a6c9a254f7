//! Webhooks: signed, tried again until they are taken or a day is over, at least once each.
//!
//! `weir-signature: t=SECONDS,v1=HEX`, with HEX = HMAC-SHA256(secret, SECONDS "." BODY): a receiver computes it over the bytes it got and
//! refuses a time that is minutes off. `weir-delivery` names the alert: one that comes twice has the same name.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use weir_ledger::{Actor, AuditLine};
use weir_store::{Expect, Note, Object, ObjectRange, ObjectWrite, StoreError, Written};

use super::Webhook;
use crate::clock::now_ms;
use crate::core::Core;
use crate::fetch::Fetch;

/// Where deliveries wait.
const SPACE: &str = "delivery";
/// Looked at in one round.
const MOST: usize = 256;
/// Sent at once.
const AT_ONCE: usize = 8;
/// Longest time for one attempt.
const ATTEMPT_WITHIN: Duration = Duration::from_secs(10);
/// A gateway that dies while it sends leaves the delivery to the others after this.
const LEASE_MS: u64 = 30_000;
/// Longest pause between two attempts.
const LONGEST_PAUSE_MS: u64 = 300_000;
/// Given up after this.
const GIVE_UP_MS: u64 = 24 * 3_600_000;
/// Another gateway may have queued something.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// What is read of an answer.
const ANSWER_BYTES: usize = 64 << 10;

/// An alert on its way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Delivery {
    pub(super) id: String,
    pub(super) tenant: String,
    pub(super) body: String,
    pub(super) created_ms: u64,
    pub(super) due_ms: u64,
    pub(super) attempts: u32,
}

/// The write that queues a delivery; one that is queued already stays as it is.
pub(super) fn queued(delivery: &Delivery) -> ObjectWrite {
    write(delivery, Expect::Any, true)
}

fn write(delivery: &Delivery, expect: Expect, keep: bool) -> ObjectWrite {
    let text = serde_json::to_vec(delivery).expect("texts and numbers serialize");
    ObjectWrite {
        space: SPACE,
        owner: String::new(),
        name: delivery.id.clone(),
        expect,
        data: keep.then(|| Bytes::from(text)),
    }
}

/// Delivers for ever.
pub(crate) async fn deliver(core: Arc<Core>) {
    let fetch = Fetch::system();
    loop {
        let pause = match round(&core, &fetch).await {
            Ok(next_ms) => Duration::from_millis(next_ms).min(LOOK_EVERY),
            Err(StoreError::Closed) => return,
            Err(error) => {
                tracing::warn!(%error, "cannot look for alerts to deliver; trying again");
                LOOK_EVERY
            }
        };
        // Either is reason to look.
        let _ = tokio::time::timeout(pause, core.alerts.queued.notified()).await;
    }
}

/// Sends what is due; how long until something else is.
async fn round(core: &Core, fetch: &Fetch) -> Result<u64, StoreError> {
    let range = ObjectRange {
        space: SPACE,
        owner: String::new(),
        after: String::new(),
        before: None,
        descending: false,
        limit: MOST,
    };
    let objects = core.store.objects(range).await?;
    let read = |object: Object| {
        let delivery: Delivery = serde_json::from_slice(&object.data).ok()?;
        Some((object.version, delivery))
    };
    let (now, mut due) = (now_ms(), Vec::new());
    let mut next_ms = u64::MAX;
    for (version, delivery) in objects.into_iter().filter_map(read) {
        match delivery.due_ms.checked_sub(now) {
            None | Some(0) => due.push((version, delivery)),
            Some(wait_ms) => next_ms = next_ms.min(wait_ms),
        }
    }
    for some in due.chunks(AT_ONCE) {
        let sent = some
            .iter()
            .map(|(version, delivery)| attempt(core, fetch, *version, delivery.clone()));
        for outcome in join_all(sent).await {
            next_ms = next_ms.min(outcome?);
        }
    }
    Ok(next_ms)
}

/// One attempt; how long until the next is due.
async fn attempt(
    core: &Core,
    fetch: &Fetch,
    version: u64,
    mut delivery: Delivery,
) -> Result<u64, StoreError> {
    let webhook = webhook(core, &delivery.tenant);
    let is_old = now_ms().saturating_sub(delivery.created_ms) >= GIVE_UP_MS;
    if webhook.is_none() && !is_old {
        // Nothing was read yet, or the tenant is gone for a while.
        return Ok(u64::MAX);
    }
    delivery.due_ms = now_ms().saturating_add(LEASE_MS);
    delivery.attempts = delivery.attempts.saturating_add(1);
    let claim = write(&delivery, Expect::Version(version), true);
    if core.store.write_objects(vec![claim]).await? != Written::Done {
        // Another gateway has it.
        return Ok(u64::MAX);
    }
    let mine = Expect::Version(version.saturating_add(1));
    let Some(webhook) = webhook.flatten() else {
        return end(core, &delivery, mine, "there is no webhook for it").await;
    };
    let Err(problem) = send(fetch, &webhook, &delivery).await else {
        core.alerts.delivered("delivered");
        let done = write(&delivery, mine, false);
        core.store.write_objects(vec![done]).await?;
        return Ok(u64::MAX);
    };
    core.alerts.delivered("failed");
    tracing::warn!(
        alert = delivery.id,
        tenant = delivery.tenant,
        attempts = delivery.attempts,
        problem,
        "an alert was not taken"
    );
    if is_old {
        return end(core, &delivery, mine, &problem).await;
    }
    let pause_ms = pause_ms(core.config.webhook_pause, delivery.attempts);
    delivery.due_ms = now_ms().saturating_add(pause_ms);
    let again = write(&delivery, mine, true);
    core.store.write_objects(vec![again]).await?;
    Ok(pause_ms)
}

/// Where the tenant is told now: `None` when it is not in force, `Some(None)` when it has no webhook.
#[expect(
    clippy::option_option,
    reason = "not being in force and having no webhook are two answers"
)]
fn webhook(core: &Core, tenant: &str) -> Option<Option<Webhook>> {
    let directory = core.directory.load();
    let mut tenants = directory.keys.tenants().into_iter();
    let found = tenants.find(|of| of.name == tenant)?;
    Some(found.alerts.webhook.clone())
}

/// Doubles with each attempt, up to a bound.
fn pause_ms(first: Duration, attempts: u32) -> u64 {
    let first_ms = first.as_millis() as u64;
    let doubled = first_ms.saturating_mul(1 << attempts.saturating_sub(1).min(20));
    doubled.min(LONGEST_PAUSE_MS)
}

/// Gives a delivery up, and says so in the audit log.
async fn end(core: &Core, delivery: &Delivery, mine: Expect, why: &str) -> Result<u64, StoreError> {
    core.alerts.delivered("given_up");
    let now_ms = now_ms();
    let object = format!("TenantQuota {}", delivery.tenant);
    let details =
        serde_json::json!({"alert": delivery.id, "attempts": delivery.attempts, "why": why});
    let line = AuditLine::new(now_ms, Actor::new("weir", ""), "alertNotDelivered", &object);
    let note = Note {
        lines: vec![line.details(details).encode()],
        writes: vec![write(delivery, mine, false)],
        now_ms,
    };
    core.store.note(note).await?;
    Ok(u64::MAX)
}

async fn send(fetch: &Fetch, webhook: &Webhook, delivery: &Delivery) -> Result<(), String> {
    let seconds = now_ms() / 1000;
    let request = http::Request::post(&webhook.url)
        .header("content-type", "application/json")
        .header("user-agent", "weir")
        .header("weir-event", "budget.threshold")
        .header("weir-delivery", &delivery.id)
        .header(
            "weir-signature",
            signature(&webhook.secret, seconds, &delivery.body),
        );
    let sending = fetch.send(request, delivery.body.clone().into_bytes(), ANSWER_BYTES);
    match tokio::time::timeout(ATTEMPT_WITHIN, sending).await {
        Err(_) => Err(format!("no answer within {} s", ATTEMPT_WITHIN.as_secs())),
        Ok(Err(error)) => {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            Err(format!("{error}: {}", cause.unwrap_or_default()))
        }
        Ok(Ok((status, _))) if status.is_success() => Ok(()),
        Ok(Ok((status, _))) => Err(format!("the answer was {status}")),
    }
}

/// The header's value.
fn signature(secret: &str, seconds: u64, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes())
        .expect("an HMAC takes a key of any length");
    mac.update(seconds.to_string().as_bytes());
    mac.update(b".");
    mac.update(body.as_bytes());
    let digest = mac.finalize().into_bytes();
    let mut header = format!("t={seconds},v1=");
    for byte in digest {
        let _ = write!(header, "{byte:02x}");
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_what_any_other_implementation_computes() {
        // python3 -c 'import hmac; print(hmac.new(b"whsec", b"1764547230.{\"a\":1}", "sha256").hexdigest())'
        assert_eq!(
            signature("whsec", 1_764_547_230, "{\"a\":1}"),
            "t=1764547230,v1=6f5de1bd25541325029559c476b4be3d58ea3b204cf8acdb5155099ee27dfe9e"
        );
    }

    #[test]
    fn pauses_double_up_to_five_minutes() {
        let second = Duration::from_secs(1);
        let pauses: Vec<u64> = [1, 2, 3, 9, 10, 400].map(|n| pause_ms(second, n)).to_vec();
        assert_eq!(pauses, [1000, 2000, 4000, 256_000, 300_000, 300_000]);
    }
}
