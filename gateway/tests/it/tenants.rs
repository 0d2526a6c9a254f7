//! One tenant learns nothing of another's runs, on any route.

use http::Method;
use serde_json::json;

use crate::client::Client;
use crate::site::{Site, ask, snapshot, tenant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_tenants_run_is_as_absent_as_one_that_never_was() {
    let (site, _worker) = Site::new(true).await;
    let (acme, globex) = (site.client("acme"), site.client("globex"));
    let mut body = ask(4);
    body["requestKey"] = json!("shared-key");
    let own = acme.post("/inference", &body).await.run();
    acme.wait_status(&own, &["completed"]).await;
    let unknown = "run_00000000000000000000000000";
    for (method, path) in [
        (Method::GET, "/runs/RUN"),
        (Method::DELETE, "/runs/RUN"),
        (Method::GET, "/runs/RUN/events"),
        (Method::GET, "/runs/RUN/events?after=2"),
    ] {
        let theirs = globex
            .call(method.clone(), &path.replace("RUN", &own), None, &[])
            .await;
        let nobodys = globex
            .call(method.clone(), &path.replace("RUN", unknown), None, &[])
            .await;
        assert_eq!(
            (theirs.status, theirs.code()),
            (404, "run_not_found"),
            "{method} {path}"
        );
        assert_eq!(
            theirs.text, nobodys.text,
            "{method} {path}: existence does not show"
        );
        assert!(theirs.headers.get("x-run-id").is_none());
    }
    let replacing = |run: &str| {
        let mut body = ask(1);
        body["replaces"] = json!(run);
        body
    };
    let theirs = globex.post("/inference", &replacing(&own)).await;
    let nobodys = globex.post("/inference", &replacing(unknown)).await;
    assert_eq!(theirs.status, 400, "{theirs:?}");
    assert_eq!(
        theirs.text.replace(&own, ""),
        nobodys.text.replace(unknown, "")
    );
    let same_key = globex.post("/inference", &body).await;
    assert_eq!(same_key.status, 202, "request keys are per tenant");
    assert_ne!(same_key.run(), own);
    globex.wait_status(&same_key.run(), &["completed"]).await;
    let usage = globex.get("/usage").await.body;
    assert_eq!(usage["tenant"], "globex");
    assert_eq!(usage["byModel"][0]["runs"]["completed"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_open_their_own_tenant_until_they_end_or_are_taken_away() {
    let (site, _worker) = Site::new(true).await;
    for key in ["", "acme-dev-ke", "acme-dev-keyy", "weir1$x$y"] {
        for path in ["/usage", "/v1/models", "/runs/run_1"] {
            let stranger = Client::new(site.address, key).get(path).await;
            assert_eq!(
                (stranger.status, stranger.code()),
                (401, "unauthenticated"),
                "{key:?} {path}"
            );
        }
    }
    assert_eq!(site.client("acme").get("/usage").await.status, 200);
    let mut acme = tenant("acme");
    acme.keys[0].not_after_ms = Some(1);
    site.gateway
        .apply(snapshot(site.folder.path(), vec![acme], &["w0"]));
    assert_eq!(
        site.client("acme").get("/usage").await.status,
        401,
        "expired"
    );
    assert_eq!(
        site.client("globex").get("/usage").await.status,
        401,
        "taken away"
    );
    site.gateway
        .apply(snapshot(site.folder.path(), vec![tenant("acme")], &["w0"]));
    assert_eq!(
        site.client("acme").get("/usage").await.status,
        200,
        "a new hash of the same key"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scopes_leave_the_gateway_as_digests_that_differ_by_tenant() {
    let (site, worker) = Site::new(true).await;
    site.client("acme").post("/inference", &ask(1)).await;
    site.client("globex").post("/inference", &ask(1)).await;
    crate::site::wait_for("both runs", || worker.submits().len() == 2).await;
    let scopes: Vec<_> = worker
        .submits()
        .into_iter()
        .map(|s| s.trust_scope)
        .collect();
    assert!(scopes.iter().all(|scope| scope.len() == 32));
    assert_ne!(scopes[0], scopes[1]);
}
