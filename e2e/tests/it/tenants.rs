//! Two tenants see nothing of each other, on any route, and share no cache.

use serde_json::json;
use weir_e2e::{RandomModel, Site, Tenant};

#[test]
fn nothing_of_one_tenant_is_visible_to_the_other() {
    let site = Site::random(
        RandomModel::default(),
        &[Tenant::unlimited("acme"), Tenant::unlimited("globex")],
    )
    .unwrap();
    let weir = site.up().unwrap();
    let (acme, globex) = (weir.client("acme-dev-key"), weir.client("globex-dev-key"));
    let body = json!({"model": "random", "input": "a secret", "maxOutputTokens": 4, "requestKey": "shared-key"});
    let own = acme.post("/inference", &body).unwrap().run_id();
    acme.all_events(&own, 0).unwrap();
    let unknown = "run_00000000000000000000000000";

    for path in ["/runs/RUN", "/runs/RUN/events", "/runs/RUN/events?after=2"] {
        let theirs = globex.get(&path.replace("RUN", &own)).unwrap();
        let nobodys = globex.get(&path.replace("RUN", unknown)).unwrap();
        assert_eq!(
            (theirs.status, theirs.code()),
            (404, "run_not_found"),
            "{path}: {theirs:?}"
        );
        assert_eq!(
            theirs.body.to_string().replace(&own, "RUN"),
            nobodys.body.to_string().replace(unknown, "RUN"),
            "{path}: existence does not show"
        );
    }
    assert_eq!(globex.delete(&format!("/runs/{own}")).unwrap().status, 404);
    let replacing = json!({"model": "random", "input": "x", "maxOutputTokens": 1, "replaces": own});
    let refused = globex.post("/inference", &replacing).unwrap();
    assert!(
        refused.status >= 400 && !refused.body.to_string().contains("acme"),
        "{refused:?}"
    );

    let same_key = globex.post("/inference", &body).unwrap();
    assert_eq!(
        same_key.status, 202,
        "request keys are per tenant: {same_key:?}"
    );
    assert_ne!(same_key.run_id(), own);
    globex.all_events(&same_key.run_id(), 0).unwrap();
    let usage = globex.get("/usage").unwrap().body;
    assert_eq!(usage["tenant"], "globex");
    assert_eq!(usage["byModel"][0]["runs"]["completed"], 1, "{usage}");

    for key in ["", "acme-dev-ke", "acme-dev-keyx", "weir1$x$y"] {
        let stranger = weir.client(key).get("/usage").unwrap();
        assert_eq!(
            (stranger.status, stranger.code()),
            (401, "unauthenticated"),
            "{key:?}: {stranger:?}"
        );
    }
}

#[test]
fn a_prefix_cached_by_one_tenant_never_speeds_up_the_other() {
    let site = Site::random(
        RandomModel::default(),
        &[Tenant::unlimited("acme"), Tenant::unlimited("globex")],
    )
    .unwrap();
    let weir = site.up().unwrap();
    let prompt: Vec<u32> = (0..400).map(|token| 10 + token % 200).collect();
    let cached = |key: &str| {
        let client = weir.client(key);
        let body = json!({"model": "random", "input": {"tokens": prompt}, "maxOutputTokens": 2, "sampling": {"ignoreEos": true}});
        let run = client.post("/inference", &body).unwrap().run_id();
        let end = client.all_events(&run, 0).unwrap().pop().unwrap();
        end.json()["usage"]["cachedTokens"].as_u64().unwrap()
    };
    assert_eq!(cached("acme-dev-key"), 0, "cold");
    assert!(cached("acme-dev-key") >= 384, "warm for its own tenant");
    assert_eq!(cached("globex-dev-key"), 0, "cold for the other");
    assert!(cached("globex-dev-key") >= 384);
}
