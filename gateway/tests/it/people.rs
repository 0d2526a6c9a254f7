//! Keys of a tenant with less than all of its rights, further names of models, and pages in browsers.

use http::Method;
use serde_json::json;
use weir_budget::Limits;
use weir_gateway::{ApiKey, KeyRules, Priority, Settings, Snapshot, Tenant};
use weir_manifest::ApiKeyHash;

use crate::client::Client;
use crate::site::{Site, ask, config, snapshot, tenant, wait_for};
use crate::worker::FakeWorker;

fn key(name: &str) -> ApiKey {
    ApiKey {
        name: name.to_owned(),
        hash: ApiKeyHash::of(&format!("{name}-key")).unwrap().to_string(),
        ..ApiKey::default()
    }
}

fn acme(keys: Vec<ApiKey>) -> Tenant {
    Tenant {
        keys,
        ..tenant("acme")
    }
}

fn now_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    u64::try_from(now.unwrap().as_millis()).unwrap()
}

#[tokio::test]
async fn each_key_has_limits_models_and_a_priority_of_its_own() {
    let rules = |rules: KeyRules| Some(rules);
    let keys = vec![
        key("free"),
        ApiKey {
            rules: rules(KeyRules {
                limits: Limits {
                    requests_per_minute: Some(1),
                    ..Limits::default()
                },
                priority: Some(Priority::Batch),
                ..KeyRules::default()
            }),
            ..key("ci")
        },
        ApiKey {
            rules: rules(KeyRules {
                models: Some(vec!["other".to_owned()]),
                ..KeyRules::default()
            }),
            ..key("other")
        },
    ];
    let (site, _worker) = Site::with(true, vec![acme(keys)]).await;
    let by = |name: &str| Client::new(site.address, &format!("{name}-key"));
    let first = by("ci").post("/inference", &ask(2)).await;
    assert_eq!(first.status, 202, "{}", first.text);
    let row = by("free").get(&format!("/runs/{}", first.run())).await.body;
    assert_eq!(row["caller"], "ci", "{row}");
    let second = by("ci").post("/inference", &ask(2)).await;
    assert_eq!(
        (second.status, second.code()),
        (429, "rate_limited"),
        "{}",
        second.text
    );
    assert!(second.text.contains("key \\\"ci\\\""), "{}", second.text);
    assert_eq!(by("free").post("/inference", &ask(2)).await.status, 202);
    let mut urgent = ask(2);
    urgent["priority"] = json!("interactive");
    assert_eq!(
        by("ci").post("/inference", &urgent).await.code(),
        "priority_not_permitted"
    );
    assert_eq!(
        by("other").post("/inference", &ask(2)).await.code(),
        "model_not_permitted"
    );
    assert_eq!(by("other").get("/v1/models").await.body["data"], json!([]));
    site.assert_settled_by(&by("free")).await;
}

#[tokio::test]
async fn keys_overlap_while_one_replaces_the_other_and_a_revoked_one_is_out_with_its_snapshot() {
    let now = now_ms();
    let old = ApiKey {
        not_after_ms: Some(now + 3_600_000),
        ..key("old")
    };
    let keys = vec![
        old.clone(),
        key("new"),
        ApiKey {
            not_after_ms: Some(now - 1),
            ..key("expired")
        },
        ApiKey {
            not_before_ms: Some(now + 3_600_000),
            ..key("early")
        },
    ];
    let (site, _worker) = Site::with(true, vec![acme(keys)]).await;
    let status = |name: &'static str| {
        let client = Client::new(site.address, &format!("{name}-key"));
        async move { client.get("/v1/models").await }
    };
    for (name, want) in [
        ("old", 200),
        ("new", 200),
        ("expired", 401),
        ("early", 401),
        ("unknown", 401),
    ] {
        let reply = status(name).await;
        assert_eq!(reply.status, want, "{name}");
        assert_eq!(
            reply.code(),
            if want == 401 { "unauthenticated" } else { "" }
        );
    }
    site.gateway.apply(snapshot(
        site.folder.path(),
        vec![acme(vec![key("new")])],
        &["w0"],
    ));
    assert_eq!(status("old").await.status, 401);
    assert_eq!(status("new").await.status, 200);
}

async fn settled(yaml: &str) -> (Site, FakeWorker) {
    let (site, worker) = Site::new(true).await;
    let tenants = vec![tenant("acme"), tenant("globex")];
    site.gateway.apply(Snapshot {
        settings: Settings::from_yaml(yaml).unwrap(),
        ..snapshot(site.folder.path(), tenants, &["w0"])
    });
    wait_for("the model", || {
        site.gateway.is_served("small", crate::site::DIGEST)
    })
    .await;
    (site, worker)
}

#[tokio::test]
async fn an_alias_is_another_name_of_a_model_or_of_one_version() {
    let yaml = "aliases: [{name: fast, model: tiny}, {name: gpt-4o-mini, model: tiny@2}, {name: gone, model: nothing}]";
    let (site, _worker) = settled(yaml).await;
    let acme = site.client("acme");
    for name in ["fast", "gpt-4o-mini", "tiny", "tiny@2"] {
        let mut body = ask(2);
        body["model"] = json!(name);
        let reply = acme.post("/inference", &body).await;
        assert_eq!(reply.status, 202, "{name}: {}", reply.text);
        let row = acme.get(&format!("/runs/{}", reply.run())).await.body;
        assert_eq!(
            (&row["model"], &row["decision"]["requested"]),
            (&json!("tiny"), &json!(name)),
            "{row}"
        );
    }
    let mut body = ask(2);
    body["model"] = json!("gone");
    assert_eq!(
        acme.post("/inference", &body).await.code(),
        "model_not_permitted"
    );
    let list = acme.get("/v1/models").await.body;
    let ids: Vec<&str> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["fast", "gpt-4o-mini", "tiny"]);
    assert_eq!(acme.get("/v1/models/fast").await.body["alias_of"], "tiny");
}

#[tokio::test]
async fn a_page_of_a_listed_origin_may_call_every_path_and_no_other_page() {
    let (site, _worker) = settled("cors: {origins: ['https://chat.example.com']}").await;
    let acme = site.client("acme");
    for path in [
        "/inference",
        "/v1/chat/completions",
        "/runs/x",
        "/v1/models",
        "/nowhere",
    ] {
        let asked = [
            ("origin", "https://chat.example.com"),
            ("access-control-request-method", "POST"),
            (
                "access-control-request-headers",
                "authorization,content-type",
            ),
        ];
        // Browsers ask without a key.
        let reply = Client::new(site.address, "")
            .call(Method::OPTIONS, path, None, &asked)
            .await;
        assert_eq!(reply.status, 204, "{path}");
        assert_eq!(
            reply.header("access-control-allow-origin"),
            "https://chat.example.com"
        );
        assert_eq!(
            reply.header("access-control-allow-headers"),
            "authorization,content-type"
        );
    }
    let good = acme
        .call(
            Method::GET,
            "/v1/models",
            None,
            &[("origin", "https://chat.example.com")],
        )
        .await;
    assert_eq!(
        good.header("access-control-allow-origin"),
        "https://chat.example.com"
    );
    assert!(
        good.header("access-control-expose-headers")
            .contains("x-request-id")
    );
    let bad = acme
        .call(
            Method::GET,
            "/v1/models",
            None,
            &[("origin", "https://evil.example.com")],
        )
        .await;
    assert_eq!(
        (bad.status, bad.header("access-control-allow-origin")),
        (200, "")
    );
    // Not even the refusal of a wrong key can be read elsewhere, and can be here.
    let wrong = Client::new(site.address, "wrong")
        .call(
            Method::GET,
            "/v1/models",
            None,
            &[("origin", "https://chat.example.com")],
        )
        .await;
    assert_eq!(
        (wrong.status, wrong.header("access-control-allow-origin")),
        (401, "https://chat.example.com")
    );
}

#[tokio::test]
async fn without_origins_no_page_is_answered() {
    let (site, _worker) = Site::with(true, vec![tenant("acme")]).await;
    let asked = [
        ("origin", "https://a.example"),
        ("access-control-request-method", "POST"),
    ];
    let reply = Client::new(site.address, "")
        .call(Method::OPTIONS, "/inference", None, &asked)
        .await;
    assert_eq!(
        (reply.status, reply.header("access-control-allow-origin")),
        (204, "")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_keys_say_when_they_were_last_used_and_a_successor_still_knows() {
    let folder = tempfile::tempdir().unwrap();
    let store =
        weir_store::open(&folder.path().join("store"), weir_store::Engine::default()).unwrap();
    let keys = |site: &Site| {
        let answer = site.gateway.admin_queries()["/keys"].answer.clone();
        async move {
            let text = (answer.0)(bytes::Bytes::from_static(b"tenant=acme"))
                .await
                .unwrap();
            serde_json::from_str::<serde_json::Value>(&text).unwrap()
        }
    };
    let begun = jiff::Timestamp::now();
    let snapshot = |folder: &std::path::Path| {
        let mut acme = tenant("acme");
        acme.keys.push(weir_gateway::ApiKey {
            name: "next".to_owned(),
            hash: weir_manifest::ApiKeyHash::of("another")
                .unwrap()
                .to_string(),
            ..weir_gateway::ApiKey::default()
        });
        snapshot(folder, vec![acme, tenant("globex")], &[])
    };
    let at = snapshot(folder.path());
    let site = Site::on(folder, store.clone(), at, config()).await;
    assert_eq!(keys(&site).await[0]["lastUsedAt"], json!(null));
    assert_eq!(site.client("acme").get("/usage").await.status, 200);
    assert_eq!(
        crate::client::Client::new(site.address, "nobody's")
            .get("/usage")
            .await
            .status,
        401
    );
    let seen = keys(&site).await;
    let used: jiff::Timestamp = seen[0]["lastUsedAt"].as_str().unwrap().parse().unwrap();
    assert!(used.as_second() >= begun.as_second(), "{seen}");
    assert_eq!(
        seen[1]["lastUsedAt"],
        json!(null),
        "the other key was not used"
    );
    assert_eq!(seen[0]["overlaps"], json!(["next"]));
    site.gateway.stop().await;
    let at = snapshot(site.folder.path());
    let next = Site::on(site.folder, store, at, config()).await;
    assert_eq!(keys(&next).await, seen);
}
