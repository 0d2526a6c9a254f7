//! Budgets refuse before any work is done, and say what would fit.

use serde_json::json;
use weir_e2e::{RandomModel, Site, Tenant};

#[test]
fn a_run_beyond_the_budget_is_refused_before_any_work_and_told_what_fits() {
    let budget = json!({
        "windows": [{"period": "24h", "tokens": 10_000}],
        "limits": {"maxPromptTokens": 16_000, "maxOutputTokens": 4_000},
    });
    let shape = RandomModel {
        context: 16_384,
        ..RandomModel::default()
    };
    let site = Site::random(
        shape,
        &[Tenant {
            name: "acme",
            spec: budget,
        }],
    )
    .unwrap();
    let weir = site.up().unwrap();
    let client = weir.client("acme-dev-key");
    let prompt: Vec<u32> = (0..9_000).map(|token| 10 + token % 500).collect();
    let ask = |max: u32| json!({"model": "random", "input": {"tokens": prompt}, "maxOutputTokens": max, "requestKey": "big"});

    let before = weir.metric("weir_worker_prompt_tokens_total").unwrap();
    let refused = client.post("/inference", &ask(2_000)).unwrap();
    assert_eq!(
        (refused.status, refused.code()),
        (429, "budget_exceeded"),
        "{refused:?}"
    );
    let details = &refused.body["error"]["details"];
    assert_eq!(details["availableTokens"], 10_000);
    assert_eq!(details["promptTokens"], 9_000);
    assert_eq!(details["largestMaxOutputTokens"], 1_000);
    assert_eq!(
        refused.header("x-should-retry"),
        Some("false"),
        "no client should wait for tomorrow"
    );
    assert_eq!(
        weir.metric("weir_worker_prompt_tokens_total").unwrap(),
        before,
        "no work was done"
    );

    // The refusal consumed neither the key nor any budget: what it said would fit is accepted.
    let accepted = client.post("/inference", &ask(1_000)).unwrap();
    assert_eq!(accepted.status, 202, "{accepted:?}");
    assert_eq!(accepted.body["modelVersion"], 1);
    assert_eq!(accepted.body["promptTokens"], 9_000);
    assert_eq!(accepted.body["reservedTokens"], 10_000);
    let run = client.get(&format!("/runs/{}", accepted.run_id())).unwrap();
    assert_eq!(run.body["modelVersion"], 1);
    assert_eq!(run.body["decision"]["reason"], "stable");
    let window = &client.get("/usage").unwrap().body["windows"][0];
    assert_eq!(window["limitTokens"], 10_000);
    assert_eq!(window["availableTokens"], 0, "{window}");
    client
        .delete(&format!("/runs/{}", accepted.run_id()))
        .unwrap();
    client.all_events(&accepted.run_id(), 0).unwrap();
    let usage = client.get("/usage").unwrap().body;
    let window = &usage["windows"][0];
    assert_eq!(window["reservedTokens"], 0, "{usage}");
    let sum = window["usedTokens"].as_i64().unwrap() + window["availableTokens"].as_i64().unwrap();
    assert_eq!(sum, 10_000, "{usage}");
    assert_eq!(usage["consistent"], true);
}
