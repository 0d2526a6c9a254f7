//! Usage reconciled, the ledger exported, a budget repaired, changes noted.

use bytes::Bytes;
use serde_json::{Value, json};
use weir_budget::{Account, Limits, WindowLimit};
use weir_ledger::{Chain, Line, Verifier, parse_line};
use weir_store::{Engine, open};
use weir_telemetry::admin::Action;

use crate::site::{DIGEST, Site, ask, config, snapshot, tenant, wait_for};
use crate::worker::FakeWorker;

fn budgeted(tokens: u64) -> weir_gateway::Tenant {
    weir_gateway::Tenant {
        limits: Limits {
            windows: vec![WindowLimit {
                period_s: 86_400,
                tokens: Some(tokens),
                micros: None,
            }],
            ..Limits::default()
        },
        ..tenant("acme")
    }
}

async fn finish(site: &Site, output: u32) -> String {
    let client = site.client("acme");
    let run = client.post("/inference", &ask(output)).await.run();
    client.wait_status(&run, &["completed"]).await;
    run
}

/// The page of an admin port's GET or POST.
async fn admin(action: &Action, given: &str) -> Result<String, String> {
    let Action(act) = action;
    act(Bytes::copy_from_slice(given.as_bytes())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn usage_adds_up_by_version_and_day_and_its_chain_can_be_checked_by_a_stranger() {
    let (site, _worker) = Site::with(true, vec![budgeted(10_000), tenant("globex")]).await;
    let mut runs = Vec::new();
    for output in 1..=5 {
        runs.push(finish(&site, output).await);
    }
    let client = site.client("acme");
    let usage = client.get("/usage?groupBy=version").await.body;
    assert_eq!(usage["consistent"], true, "{usage}");
    assert_eq!(usage["checked"]["records"], 5, "{usage}");
    assert_eq!(usage["checked"]["runs"], 5, "{usage}");
    assert!(
        usage["checked"]["events"].as_u64().unwrap() >= 20,
        "{usage}"
    );
    let version = &usage["byVersion"][0];
    // Of five prompt tokens the worker had two already, which cost nothing.
    let cost = 5 * 3 + 4 * (1 + 2 + 3 + 4 + 5);
    assert_eq!(version["costMicros"], cost, "{usage}");
    assert_eq!(version["costPerCompletedRunMicros"], cost / 5);
    let usage = client.get("/usage?groupBy=day").await.body;
    let day = usage["byDay"][0]["day"].as_str().unwrap().to_owned();
    assert_eq!(usage["byDay"][0]["runs"]["completed"], 5, "{usage}");
    assert_eq!(client.get("/usage?groupBy=week").await.status, 400);

    let (mut lines, mut after) = (Vec::new(), 0);
    loop {
        let page = client
            .get(&format!("/usage/ledger?day={day}&after={after}&limit=2"))
            .await;
        assert_eq!(page.header("content-type"), "application/x-ndjson");
        let parsed: Vec<Line> = page
            .text
            .lines()
            .map(|line| parse_line(line).unwrap())
            .collect();
        let Some(Line::Page(end)) = parsed.last().cloned() else {
            panic!("{}", page.text);
        };
        lines.extend(parsed);
        if let Some(next) = end.next {
            after = next;
            continue;
        }
        assert_eq!((end.records, end.open), (5, true));
        let mut verifier = Verifier::new(&Chain::Ledger("acme".to_owned()));
        for line in &lines {
            let Line::Link(link) = line else { continue };
            verifier.follow(link).unwrap();
            let record: Value = serde_json::from_slice(&link.body).unwrap();
            let number = link.number as usize;
            assert_eq!(record["run"], json!(runs[number - 1]));
        }
        assert_eq!(verifier.head().hash.to_string(), end.root);
        break;
    }
    assert_eq!(client.get("/usage/ledger?day=2020-01-01").await.status, 404);
    let theirs = site.client("globex").get("/usage/ledger").await.text;
    assert!(
        theirs.contains("ledger/globex") && !theirs.contains("run_"),
        "{theirs}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_account_is_found_repaired_and_noted_and_the_ledger_stays_as_it_was() {
    let (site, _worker) = Site::with(true, vec![budgeted(10_000)]).await;
    for output in 1..=3 {
        finish(&site, output).await;
    }
    let ledger = site.client("acme").get("/usage/ledger").await.text;
    site.stop.cancel();
    let Site {
        gateway,
        serving,
        folder,
        ..
    } = site;
    serving.await.unwrap();
    gateway.stop().await;
    drop(gateway);
    let path = folder.path().join("store");
    wait_for("the store to be free", || {
        weir_store::testing::overwrite_account(
            &path,
            Engine::default(),
            "acme",
            &Account::default(),
        )
        .is_ok()
            && open(&path, Engine::default()).is_ok()
    })
    .await;

    let snapshot = snapshot(folder.path(), vec![budgeted(10_000)], &["w0"]);
    let site = Site::start(folder, snapshot, config()).await;
    let client = site.client("acme");
    let usage = client.get("/usage").await.body;
    assert_eq!(usage["consistent"], false, "{usage}");
    let differences = usage["differences"].as_array().unwrap();
    let of = |field: &str| {
        differences
            .iter()
            .find(|d| d["field"].as_str().unwrap().ends_with(field))
            .unwrap_or_else(|| panic!("no {field} in {usage}"))
    };
    assert_eq!(of("usedTokens")["found"], 0);
    assert_eq!(of("usedTokens")["ledger"], 3 * 5 + 6);
    assert_eq!(of("usedTokens")["run"], Value::Null);

    let repair = &site.gateway.admin_actions()["/usage/repair"];
    let order =
        |apply: bool| json!({"tenant": "acme", "apply": apply, "actor": "root"}).to_string();
    let dry: Value = serde_json::from_str(&admin(repair, &order(false)).await.unwrap()).unwrap();
    assert_eq!(dry["applied"], false, "{dry}");
    assert_eq!(client.get("/usage").await.body["consistent"], false);
    let done: Value = serde_json::from_str(&admin(repair, &order(true)).await.unwrap()).unwrap();
    assert_eq!(
        (&done["applied"], &done["changes"]),
        (&json!(true), &dry["changes"])
    );
    let usage = client.get("/usage").await.body;
    assert_eq!(usage["consistent"], true, "{usage}");
    assert_eq!(usage["windows"][0]["usedTokens"], 21);
    assert_eq!(client.get("/usage/ledger").await.text, ledger);
    let audit = &site.gateway.admin_queries()["/audit"].answer;
    let audit = admin(audit, "").await.unwrap();
    assert!(
        audit.contains("budgetRepaired") && audit.contains("\"name\":\"root\""),
        "{audit}"
    );
    let all = &site.gateway.admin_queries()["/usage"].answer;
    let all = admin(all, "tenant=acme&check=all").await.unwrap();
    assert!(all.contains("\"consistent\":true"), "{all}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_limit_price_or_key_is_noted_once_with_both_values_and_no_secret() {
    let folder = tempfile::tempdir().unwrap();
    let _worker = FakeWorker::start(folder.path(), "w0", DIGEST, true);
    let before = snapshot(folder.path(), vec![budgeted(10_000)], &["w0"]);
    let mut after = snapshot(folder.path(), vec![budgeted(20_000)], &["w0"]);
    let hash = after.tenants[0].keys[0].hash.clone();
    after.models[0].versions = vec![std::sync::Arc::new(weir_gateway::ServedVersion {
        price: weir_run::Price {
            output_micros_per_token: 9,
            ..before.models[0].versions[0].price
        },
        ..(*before.models[0].versions[0]).clone()
    })];
    let site = Site::start(folder, before.clone(), config()).await;
    let query = site.gateway.admin_queries()["/audit"].answer.clone();
    let lines = || async {
        let text = admin(&query, "").await.unwrap();
        let records = text
            .lines()
            .filter_map(|line| match parse_line(line).unwrap() {
                Line::Link(link) => Some(serde_json::from_slice::<Value>(&link.body).unwrap()),
                Line::Page(_) => None,
            });
        records.collect::<Vec<Value>>()
    };
    let until = |count: usize| {
        let lines = &lines;
        async move {
            for _ in 0..500 {
                let found = lines().await;
                if found.len() >= count {
                    return found;
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            panic!("waited in vain for {count} lines: {:#?}", lines().await);
        }
    };
    // Tenant, version, rollout and pool.
    let created = until(4).await;
    assert!(
        created.iter().all(|line| line["action"] == "created"),
        "{created:#?}"
    );
    site.gateway.apply(before.clone());
    site.gateway.apply(after.clone());
    let changed = until(6).await.split_off(4);
    let text = serde_json::to_string(&changed).unwrap();
    assert!(
        text.contains("{\"field\":\"windows.24h.tokens\",\"old\":10000,\"new\":20000}"),
        "{text}"
    );
    assert!(
        text.contains("{\"field\":\"price.outputMicrosPerToken\",\"old\":4,\"new\":9}"),
        "{text}"
    );
    assert!(!text.contains(&hash) && !text.contains("dev-key"), "{text}");
    // A tenant that is gone is noted; a version that is not loaded now is not gone.
    let mut without = after;
    without.models.clear();
    without.tenants = vec![tenant("globex")];
    site.gateway.apply(without);
    let rest = until(8).await.split_off(6);
    let told: Vec<(&Value, &Value)> = rest
        .iter()
        .map(|line| (&line["action"], &line["object"]))
        .collect();
    assert_eq!(
        told,
        [
            (&json!("created"), &json!("TenantQuota globex")),
            (&json!("removed"), &json!("TenantQuota acme"))
        ]
    );
}
