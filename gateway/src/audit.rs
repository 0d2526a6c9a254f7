//! Who changed what: lines of the audit log, in the store and therefore shared by all gateways.
//!
//! What is in force is compared with what was in force when a line was last written, whichever process did, so that a change made while
//! no gateway ran is found too. No line holds a secret, a key's hash, or a word of a prompt.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use weir_ledger::{Actor, AuditLine, diff};
use weir_store::{Expect, Note, Noted, Object, ObjectRange, ObjectWrite, Store, StoreError};

use crate::clock::now_ms;
use crate::native::period;
use crate::snapshot::{ModelRoute, Pool, ServedVersion, Snapshot, Tenant};

/// Where the last form of each object is kept.
const SPACE: &str = "settings";
/// Snapshots that wait to be compared. A further one is left out: the next is compared with what was written all the same.
const WAITING: usize = 16;
/// Objects read at a time.
const PAGE: usize = 500;
/// Attempts against other gateways that write the same lines.
const ATTEMPTS: usize = 8;

/// Objects by kind and name, and what people can set of them.
pub(crate) type Settings = BTreeMap<String, Value>;

/// What was applied, on its way into the log.
#[derive(Debug)]
pub(crate) struct Applied {
    settings: Settings,
    /// Kinds of which `settings` has every object: one that is missing is gone.
    whole: &'static [&'static str],
    actor: Actor,
}

/// Takes what was applied.
#[derive(Debug)]
pub(crate) struct AuditSender(mpsc::Sender<Applied>);

impl AuditSender {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Applied>) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (Self(sender), receiver)
    }

    /// A snapshot came into force.
    pub(crate) fn snapshot(&self, snapshot: &Snapshot, actor: Actor) {
        // Before anything was read nothing is in force, which says nothing about what was removed.
        if snapshot.tenants.is_empty() && snapshot.models.is_empty() {
            return;
        }
        let settings = settings(snapshot);
        // Versions come and go with their workers; only their values count.
        self.send(Applied {
            settings,
            whole: &["TenantQuota"],
            actor,
        });
    }

    /// One more thing is in force.
    pub(crate) fn setting(&self, object: &str, value: Value, actor: Actor) {
        self.send(Applied {
            settings: Settings::from([(object.to_owned(), value)]),
            whole: &[],
            actor,
        });
    }

    fn send(&self, applied: Applied) {
        if self.0.try_send(applied).is_err() {
            tracing::warn!(
                "the audit log falls behind; the next change is compared with what it has"
            );
        }
    }
}

/// Writes lines for what was applied, for ever.
pub(crate) async fn follow(store: std::sync::Arc<dyn Store>, mut applied: mpsc::Receiver<Applied>) {
    while let Some(applied) = applied.recv().await {
        if let Err(error) = note(&*store, &applied).await {
            tracing::error!(%error, "cannot write the audit log; the change is noted with the next one");
        }
    }
}

async fn note(store: &dyn Store, applied: &Applied) -> Result<(), StoreError> {
    for _ in 0..ATTEMPTS {
        let known = known(store).await?;
        let note = compare(&known, applied, now_ms());
        if note.lines.is_empty() {
            return Ok(());
        }
        if let Noted::Written(_) = store.note(note).await? {
            return Ok(());
        }
    }
    Ok(())
}

async fn known(store: &dyn Store) -> Result<BTreeMap<String, Object>, StoreError> {
    let mut all = BTreeMap::new();
    let mut after = String::new();
    loop {
        let range = ObjectRange {
            space: SPACE,
            owner: String::new(),
            after: after.clone(),
            before: None,
            descending: false,
            limit: PAGE,
        };
        let page = store.objects(range).await?;
        let Some(last) = page.last() else {
            return Ok(all);
        };
        after.clone_from(&last.name);
        all.extend(page.into_iter().map(|object| (object.name.clone(), object)));
    }
}

/// Lines for what differs, and the new forms.
fn compare(known: &BTreeMap<String, Object>, applied: &Applied, now_ms: u64) -> Note {
    let mut note = Note {
        now_ms,
        ..Note::default()
    };
    let mut line = |name: &str, action: &str, old: &Value, new: &Value| {
        let line = AuditLine::new(now_ms, applied.actor.clone(), action, name);
        note.lines.push(line.changes(diff(old, new)).encode());
        let object = known.get(name);
        note.writes.push(ObjectWrite {
            space: SPACE,
            owner: String::new(),
            name: name.to_owned(),
            expect: object.map_or(Expect::Absent, |object| Expect::Version(object.version)),
            data: (!new.is_null()).then(|| Bytes::from(new.to_string())),
        });
    };
    for (name, new) in &applied.settings {
        let old = known.get(name).map_or(Value::Null, form);
        if old != *new {
            let action = if old.is_null() { "created" } else { "changed" };
            line(name, action, &old, new);
        }
    }
    for (name, object) in known {
        let is_whole = |kind: &&str| name.split_once(' ').is_some_and(|(of, _)| of == *kind);
        if applied.whole.iter().any(is_whole) && !applied.settings.contains_key(name) {
            line(name, "removed", &form(object), &Value::Null);
        }
    }
    note
}

fn form(object: &Object) -> Value {
    serde_json::from_slice(&object.data).unwrap_or_default()
}

/// What people can set, without secrets.
fn settings(snapshot: &Snapshot) -> Settings {
    let tenants = snapshot.tenants.iter();
    let tenants = tenants.map(|t| (format!("TenantQuota {}", t.name), tenant(t)));
    let versions = snapshot.models.iter().flat_map(|model| &model.versions);
    let versions = versions.map(|v| {
        (
            format!("ModelVersion {}@{}", v.model, v.version),
            version(v),
        )
    });
    let models = snapshot.models.iter();
    let models = models.map(|m| (format!("Rollout {}", m.name), route(m)));
    let pools = snapshot.pools.iter();
    let pools = pools.map(|p| (format!("GpuPool {}", p.name), pool(p)));
    tenants.chain(versions).chain(models).chain(pools).collect()
}

fn tenant(tenant: &Tenant) -> Value {
    let limits = &tenant.limits;
    let windows = limits.windows.iter().map(|window| {
        let limit = json!({"tokens": window.tokens, "micros": window.micros});
        (period(window.period_s), limit)
    });
    let keys = tenant.keys.iter().map(|key| {
        let shown = json!({"fingerprint": fingerprint(&key.hash), "notAfterMs": key.not_after_ms});
        (key.name.clone(), shown)
    });
    let models = tenant.models.iter().map(|model| {
        let shown =
            json!({"tiers": model.tiers, "fallback": model.fallback, "pinning": model.pinning});
        (model.name.clone(), shown)
    });
    let webhook = tenant.alerts.webhook.as_ref();
    json!({
        "windows": windows.collect::<Map<_, _>>(),
        "rates": {"requestsPerMinute": limits.requests_per_minute, "tokensPerMinute": limits.tokens_per_minute},
        "limits": {"concurrentRuns": limits.concurrent_runs, "maxPromptTokens": tenant.max_prompt_tokens,
            "maxOutputTokens": tenant.max_output_tokens, "kvSharePercent": tenant.kv_share_percent},
        "keys": keys.collect::<Map<_, _>>(),
        "models": models.collect::<Map<_, _>>(),
        "priority": format!("{:?}", tenant.priority).to_lowercase(),
        "trustScope": tenant.trust_scope,
        "retentionMs": tenant.retention_ms,
        "contentDeletion": tenant.content_deletion,
        "alerts": {"thresholdsPercent": tenant.alerts.thresholds_percent, "webhook": webhook.map(|hook| &hook.url)},
    })
}

fn version(version: &ServedVersion) -> Value {
    json!({"digest": version.digest, "price": version.price, "tier": version.tier, "pool": version.pool,
        "fallback": version.fallback})
}

fn route(model: &ModelRoute) -> Value {
    let shares: BTreeMap<String, u32> = model
        .table
        .entries
        .iter()
        .map(|share| (share.id.version.to_string(), share.weight))
        .collect();
    json!({"stable": model.table.stable.version, "percent": shares})
}

fn pool(pool: &Pool) -> Value {
    let queues = pool.queues.iter();
    let queue = |bound: &crate::snapshot::QueueBound| json!({"maxDepth": bound.max_depth, "maxWaitMs": bound.max_wait_ms});
    json!({"queues": queues.map(queue).collect::<Vec<_>>()})
}

/// Tells one key from another, and nothing about either.
fn fingerprint(hash: &str) -> String {
    blake3::hash(hash.as_bytes()).to_hex()[..12].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(settings: &[(&str, Value)]) -> Applied {
        let settings = settings.iter();
        Applied {
            settings: settings
                .map(|(name, value)| ((*name).to_owned(), value.clone()))
                .collect(),
            whole: &["TenantQuota"],
            actor: Actor::new("manifests", "here"),
        }
    }

    #[test]
    fn only_what_differs_from_what_was_noted_is_noted_and_a_version_that_is_not_loaded_is_not_gone()
    {
        let object = |name: &str, value: Value| {
            let data = Bytes::from(value.to_string());
            let object = Object {
                name: name.to_owned(),
                version: 3,
                data,
            };
            (name.to_owned(), object)
        };
        let known = BTreeMap::from([
            object("ModelVersion tiny@1", json!({"price": 1})),
            object("TenantQuota acme", json!({"tokens": 5})),
            object("TenantQuota gone", json!({"tokens": 1})),
            object("TenantQuota same", json!({"tokens": 2})),
        ]);
        let note = compare(
            &known,
            &applied(&[
                ("TenantQuota acme", json!({"tokens": 7})),
                ("TenantQuota new", json!({"tokens": 1})),
                ("TenantQuota same", json!({"tokens": 2})),
            ]),
            9,
        );
        let lines: Vec<Value> = note
            .lines
            .iter()
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect();
        let told: Vec<(&str, &str)> = lines
            .iter()
            .map(|line| {
                (
                    line["action"].as_str().unwrap(),
                    line["object"].as_str().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            told,
            [
                ("changed", "TenantQuota acme"),
                ("created", "TenantQuota new"),
                ("removed", "TenantQuota gone")
            ]
        );
        assert_eq!(
            lines[0]["changes"],
            json!([{"field": "tokens", "old": 5, "new": 7}])
        );
        let expects: Vec<Expect> = note.writes.iter().map(|write| write.expect).collect();
        assert_eq!(
            expects,
            [Expect::Version(3), Expect::Absent, Expect::Version(3)]
        );
        assert!(note.writes[2].data.is_none());
    }
}
