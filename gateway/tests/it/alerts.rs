//! Thresholds of budgets, and the webhook that fails at first.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use weir_budget::{Limits, WindowLimit};
use weir_gateway::{Alerts, Tenant, Webhook};

use crate::site::{Site, ask, tenant, wait_for};

/// Takes alerts once it has refused some.
struct Receiver {
    url: String,
    refused: Arc<AtomicUsize>,
    /// Head and body of what it took.
    taken: Arc<Mutex<Vec<(String, String)>>>,
}

impl Receiver {
    async fn start(refuse: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/alerts", listener.local_addr().unwrap());
        let refused = Arc::new(AtomicUsize::new(0));
        let taken: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
        let (counter, list) = (Arc::clone(&refused), Arc::clone(&taken));
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let (counter, list) = (Arc::clone(&counter), Arc::clone(&list));
                tokio::spawn(async move {
                    let mut bytes = Vec::new();
                    loop {
                        let mut part = [0; 4096];
                        let count = stream.read(&mut part).await.unwrap_or(0);
                        if count == 0 {
                            return;
                        }
                        bytes.extend_from_slice(&part[..count]);
                        let text = String::from_utf8(bytes.clone()).unwrap();
                        let Some((head, body)) = text.split_once("\r\n\r\n") else {
                            continue;
                        };
                        let length = head
                            .lines()
                            .find_map(|line| line.strip_prefix("content-length: "));
                        if body.len() < length.unwrap().parse::<usize>().unwrap() {
                            continue;
                        }
                        let is_refused = counter.fetch_add(1, Ordering::SeqCst) < refuse;
                        let answer = if is_refused {
                            "HTTP/1.1 503 Later\r\ncontent-length: 0\r\n\r\n"
                        } else {
                            list.lock().push((head.to_owned(), body.to_owned()));
                            "HTTP/1.1 204 Taken\r\ncontent-length: 0\r\n\r\n"
                        };
                        stream.write_all(answer.as_bytes()).await.unwrap();
                        bytes.clear();
                    }
                });
            }
        });
        Self {
            url,
            refused,
            taken,
        }
    }
}

fn budgeted(url: &str) -> Tenant {
    Tenant {
        limits: Limits {
            windows: vec![WindowLimit {
                period_s: 86_400,
                tokens: Some(100),
                micros: None,
            }],
            ..Limits::default()
        },
        alerts: Alerts {
            webhook: Some(Webhook {
                url: url.to_owned(),
                secret: "whsec".to_owned(),
            }),
            ..Alerts::default()
        },
        ..tenant("acme")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_threshold_is_told_once_signed_and_again_until_it_is_taken() {
    let receiver = Receiver::start(3).await;
    let (site, _worker) = Site::with(true, vec![budgeted(&receiver.url)]).await;
    let acme = site.client("acme");
    // 5 of prompt each: 45, 90, 100 of 100.
    for output in [40, 40, 5] {
        let run = acme.post("/inference", &ask(output)).await.run();
        acme.wait_status(&run, &["completed"]).await;
    }
    wait_for("all four alerts", || receiver.taken.lock().len() >= 4).await;
    assert!(
        receiver.refused.load(Ordering::SeqCst) >= 7,
        "three were refused first"
    );
    let mut by_id: BTreeMap<String, Value> = BTreeMap::new();
    for (head, body) in receiver.taken.lock().iter() {
        let header = |name: &str| {
            head.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
                .unwrap_or_else(|| panic!("no {name} in {head}"))
        };
        let alert: Value = serde_json::from_str(body).unwrap();
        assert_eq!(alert["id"], header("weir-delivery"));
        let (time, signature) = header("weir-signature").split_once(',').unwrap();
        let seconds: u64 = time.strip_prefix("t=").unwrap().parse().unwrap();
        assert_eq!(
            signature,
            format!("v1={}", hmac(b"whsec", &format!("{seconds}.{body}")))
        );
        by_id.insert(header("weir-delivery").to_owned(), alert);
    }
    let mut percents: Vec<u64> = by_id
        .values()
        .map(|alert| alert["thresholdPercent"].as_u64().unwrap())
        .collect();
    percents.sort_unstable();
    assert_eq!(percents, [50, 80, 95, 100]);
    let text = site.metrics.prometheus_text();
    for threshold in [50, 80, 95, 100] {
        let series = format!(
            "weir_budget_threshold_crossed_total{{tenant=\"acme\",period=\"24h\",unit=\"tokens\",threshold=\"{threshold}\"}} 1"
        );
        assert!(text.contains(&series), "no {series} in {text}");
    }
    assert!(
        text.contains("weir_budget_used{tenant=\"acme\",period=\"24h\",unit=\"tokens\"} 100"),
        "{text}"
    );
    let audit = site.gateway.admin_queries()["/audit"].answer.clone();
    let weir_telemetry::admin::Action(read) = audit;
    let lines = read(bytes::Bytes::new()).await.unwrap();
    assert_eq!(lines.matches("budgetThreshold").count(), 4, "{lines}");
    assert!(!lines.contains("whsec"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_lowered_below_what_is_held_is_negative_until_worked_off() {
    let (site, worker) = Site::with(false, vec![tenant_of(1000)]).await;
    let acme = site.client("acme");
    let run = acme.post("/inference", &ask(500)).await.run();
    wait_for("the run on the worker", || worker.held() == 1).await;
    let folder = site.folder.path().to_owned();
    site.gateway.apply(crate::site::snapshot(
        &folder,
        vec![tenant_of(100)],
        &["w0"],
    ));
    let window = acme.get("/usage").await.body["windows"][0].clone();
    assert_eq!(window["reservedTokens"], 505);
    assert_eq!(window["availableTokens"], 100 - 505);
    let refused = acme.post("/inference", &ask(1)).await;
    assert_eq!((refused.status, refused.code()), (429, "budget_exceeded"));
    acme.delete(&format!("/runs/{run}")).await;
    acme.wait_status(&run, &["cancelled"]).await;
    let window = acme.get("/usage").await.body["windows"][0].clone();
    assert_eq!(window["reservedTokens"], 0);
    assert!(window["availableTokens"].as_i64().unwrap() > 0, "{window}");
    let admitted = acme.post("/inference", &ask(1)).await;
    assert_eq!(admitted.status, 202, "{admitted:?}");
}

fn tenant_of(tokens: u64) -> Tenant {
    let mut tenant = budgeted("http://127.0.0.1:1/");
    tenant.limits.windows[0].tokens = Some(tokens);
    tenant.alerts = Alerts::default();
    tenant
}

/// RFC 2104 over the blocks of SHA-256, as a receiver without Weir's code would.
fn hmac(key: &[u8], text: &str) -> String {
    use sha2::{Digest, Sha256};
    let pad = |byte: u8| -> Vec<u8> {
        (0..64)
            .map(|at| key.get(at).copied().unwrap_or(0) ^ byte)
            .collect()
    };
    let inner = Sha256::digest([pad(0x36), text.as_bytes().to_vec()].concat());
    let outer = Sha256::digest([pad(0x5c), inner.to_vec()].concat());
    outer.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn secrets_do_not_show_in_debugging_output() {
    let shown = format!("{:?}", budgeted("http://127.0.0.1:1/"));
    assert!(!shown.contains("whsec"), "{shown}");
}
