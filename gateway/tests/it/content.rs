//! Deletion of a tenant's content.

use serde_json::json;

use crate::site::{Site, ask, tenant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_content_is_gone_and_rows_keys_usage_and_ledger_stay() {
    let own = weir_gateway::Tenant {
        content_deletion: true,
        ..tenant("acme")
    };
    let (site, _worker) = Site::with(true, vec![own, tenant("globex")]).await;
    let acme = site.client("acme");
    let body = json!({"model": "tiny", "input": "hello", "maxOutputTokens": 3, "requestKey": "k", "metadata": {"note": "mine"}});
    let run = acme.post("/inference", &body).await.run();
    acme.wait_status(&run, &["completed"]).await;
    let usage = acme.get("/usage").await.body;
    let ledger = acme.get("/usage/ledger").await.text;
    let globex = site.client("globex");
    let refused = globex.delete("/tenant/content").await;
    assert_eq!(refused.status, 403, "{refused:?}");
    let theirs = globex.post("/inference", &ask(3)).await.run();
    globex.wait_status(&theirs, &["completed"]).await;

    assert_eq!(acme.delete("/tenant/content?before=1").await.status, 400);
    assert_eq!(acme.get("/tenant/content").await.status, 405);
    let early = acme
        .delete("/tenant/content?before=2020-01-01T00:00:00.000Z")
        .await;
    assert_eq!((early.status, &early.body["runs"]), (200, &json!(0)));
    assert!(!acme.all_events(&run, 0).await.is_empty());
    let deleted = acme.delete("/tenant/content").await;
    assert_eq!(
        (deleted.status, &deleted.body["runs"]),
        (200, &json!(1)),
        "{deleted:?}"
    );
    assert_eq!(deleted.body["scrubbed"], true);

    let gone = acme.get(&format!("/runs/{run}/events")).await;
    assert_eq!(
        (gone.status, gone.code()),
        (410, "events_expired"),
        "{gone:?}"
    );
    let row = acme.get(&format!("/runs/{run}")).await.body;
    assert_eq!(
        (&row["status"], &row["metadata"]),
        (&json!("completed"), &json!({}))
    );
    let again = acme.post("/inference", &body).await;
    assert_eq!(
        (again.status, again.run()),
        (200, run),
        "the key is known: {again:?}"
    );
    let after = acme.get("/usage").await.body;
    assert_eq!(
        (&after["byModel"], &after["consistent"]),
        (&usage["byModel"], &json!(true))
    );
    assert_eq!(acme.get("/usage/ledger").await.text, ledger);
    assert!(
        !globex.all_events(&theirs, 0).await.is_empty(),
        "another tenant's content stays"
    );
    let audit = site.gateway.admin_queries()["/audit"].answer.clone();
    let weir_telemetry::admin::Action(read) = audit;
    let lines = read(bytes::Bytes::new()).await.unwrap();
    assert!(lines.contains("\"action\":\"contentDeleted\""), "{lines}");
}
