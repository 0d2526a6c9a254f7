//! Metrics, the rules on them and the dashboard, against a real Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use weir_e2e::prometheus::{MISSING, Prometheus, free_address, is_installed, promtool};
use weir_e2e::scrape::{Scraped, metrics_of_query, scraped};
use weir_e2e::{Client, Weir, repository, wait_for, weir_command};

/// Panels without data on a quickstart where all is well, and why.
const EMPTY: &[(&str, &str)] = &[
    ("Policies", "the quickstart has no policies"),
    (
        "Evidence against a version on trial",
        "the quickstart has one version, and none is on trial",
    ),
];

/// Metrics that a quickstart under a little load does not show, and what brings them out.
const RARE: &[(&str, &str)] = &[
    ("weir_gateway_policy_decisions_total", "policies"),
    ("weir_gateway_tls_reloads_total", "a certificate"),
    (
        "weir_budget_threshold_crossed_total",
        "a budget that is used up",
    ),
    ("weir_webhook_deliveries_total", "a webhook"),
    ("weir_trace_spans_total", "a collector"),
];

fn quickstart() -> (Weir, tempfile::TempDir) {
    let data = tempfile::tempdir().unwrap();
    let weir = Weir::start(&repository().join("examples/quickstart"), data.path()).unwrap();
    (weir, data)
}

fn metrics(address: &str) -> String {
    let reply = Client::new(address, "").get("/metrics").unwrap();
    reply.body.as_str().unwrap().to_owned()
}

/// A run that completes, and a request that is refused.
fn ask(weir: &Weir) {
    let client = weir.client("acme-dev-key");
    let body = json!({"model": "tiny-chat", "input": "What is 2 plus 3?", "maxOutputTokens": 16});
    let reply = client.post("/inference", &body).unwrap();
    client.all_events(&reply.run_id(), 0).unwrap();
    let refused = json!({"model": "nothing", "input": "hello"});
    assert_eq!(client.post("/inference", &refused).unwrap().status, 403);
}

/// A worker whose metrics are shown, with the plan that `weir up` made for its own.
struct Worker {
    child: Child,
    admin: String,
}

impl Worker {
    fn start(weir: &Weir) -> Self {
        let files = std::fs::read_dir(weir.data.join("workers")).unwrap();
        let plan = files
            .map(|file| file.unwrap().path())
            .find(|path| path.extension().is_some_and(|end| end == "plan"))
            .unwrap();
        let admin = free_address().unwrap();
        let child = weir_command()
            .args(["worker", "--listen", "tcp:127.0.0.1:0", "--admin", &admin])
            .arg("--load-plan")
            .arg(plan)
            .args(["--kv-bytes", "16777216"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let worker = Self {
            child,
            admin: format!("http://{admin}"),
        };
        wait_for("the worker", 60, || {
            let reply = Client::new(&worker.admin, "").get("/readyz").ok()?;
            (reply.status == 200).then_some(())
        })
        .unwrap();
        worker
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A row of the reference.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    metric: Scraped,
    shown_by: BTreeSet<String>,
}

fn reference(text: &str) -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(
            cells.len(),
            5,
            "a row of the reference has five cells: {line}"
        );
        let [name, kind, labels, shown_by, help] = std::array::from_fn(|cell| cells[cell]);
        let words = |cell: &str| {
            let words = cell.split([',', ' ']).map(|word| word.trim_matches('`'));
            let words = words.filter(|word| !word.is_empty() && *word != "–");
            words.map(str::to_owned).collect::<BTreeSet<_>>()
        };
        let metric = Scraped {
            kind: kind.to_owned(),
            help: help.to_owned(),
            labels: words(labels),
        };
        let row = Row {
            metric,
            shown_by: words(shown_by),
        };
        let before = rows.insert(name.trim_matches('`').to_owned(), row);
        assert!(before.is_none(), "{name} stands twice in the reference");
    }
    rows
}

/// Takes the operator out of the reference: names of what it shows, and of it alone no rows.
fn of_operator(documented: &mut BTreeMap<String, Row>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    documented.retain(|name, row| {
        if row.shown_by.remove("operator") {
            names.insert(name.clone());
        }
        !row.shown_by.is_empty()
    });
    names
}

/// Set, the reference is written anew instead of compared: `WEIR_BLESS=1`.
fn bless(rows: &BTreeMap<String, Row>, path: &std::path::Path, text: &str) {
    let words = |words: &BTreeSet<String>| {
        let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
        if quoted.is_empty() {
            "–".to_owned()
        } else {
            quoted.join(", ")
        }
    };
    let begin = text.find("| metric |").unwrap_or(text.len());
    let mut out = text[..begin].to_owned();
    out.push_str("| metric | type | labels | shown by | meaning |\n|---|---|---|---|---|\n");
    for (name, Row { metric, shown_by }) in rows {
        let shown_by: Vec<&str> = shown_by.iter().map(String::as_str).collect();
        let line = format!(
            "| `{name}` | {} | {} | {} | {} |\n",
            metric.kind,
            words(&metric.labels),
            shown_by.join(", "),
            metric.help
        );
        out.push_str(&line);
    }
    std::fs::write(path, out).unwrap();
}

#[test]
fn every_metric_is_in_the_reference_as_it_is_scraped() {
    let (weir, _data) = quickstart();
    ask(&weir);
    let worker = Worker::start(&weir);
    let path = repository().join("docs/metrics.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut documented = reference(&text);
    // What the operator shows is compared on a cluster.
    let of_operator = of_operator(&mut documented);
    let mut seen: BTreeMap<String, Row> = BTreeMap::new();
    // Levels of budgets come with the next look at the accounts.
    wait_for("budgets", 10, || {
        metrics(&weir.admin)
            .contains("weir_budget_used")
            .then_some(())
    })
    .unwrap();
    for (process, address) in [("up", &weir.admin), ("worker", &worker.admin)] {
        for (name, metric) in scraped(&metrics(address)) {
            let row = seen.entry(name).or_insert_with(|| Row {
                metric: metric.clone(),
                shown_by: BTreeSet::new(),
            });
            row.metric.labels.extend(metric.labels);
            // The gateway alone shows what `weir up` does, but for objects and what workers show on a cluster.
            row.shown_by.insert(process.to_owned());
        }
    }
    for (name, row) in &mut seen {
        // A metric without a series shows no labels.
        if let Some(known) = documented.get(name)
            && row.metric.labels.is_empty()
        {
            row.metric.labels.clone_from(&known.metric.labels);
        }
    }
    if std::env::var_os("WEIR_BLESS").is_some() {
        for (name, mut row) in seen {
            if of_operator.contains(&name) {
                row.shown_by.insert("operator".to_owned());
            }
            documented.insert(name, row);
        }
        documented.extend(
            reference(&text)
                .into_iter()
                .filter(|(_, row)| row.shown_by.iter().eq(["operator"])),
        );
        bless(&documented, &path, &text);
        return;
    }
    let mut findings = Vec::new();
    for (name, row) in &seen {
        if documented.get(name) != Some(row) {
            findings.push(format!(
                "{name}: scraped as {row:?}, documented as {:?}",
                documented.get(name)
            ));
        }
    }
    for name in documented.keys() {
        let is_rare = RARE.iter().any(|(rare, _)| rare == name);
        if !is_rare && !seen.contains_key(name) {
            findings.push(format!("{name}: documented, and not in a scrape"));
        }
    }
    assert!(
        findings.is_empty(),
        "docs/metrics.md (WEIR_BLESS=1 writes it anew): {findings:#?}"
    );
}

#[test]
fn promtool_reads_both_scrapes_and_finds_only_what_is_meant_so() {
    if !is_installed() {
        eprintln!("{MISSING}");
        return;
    }
    let (weir, _data) = quickstart();
    ask(&weir);
    let worker = Worker::start(&weir);
    for address in [&weir.admin, &worker.admin] {
        let (_, said) = promtool(&["check", "metrics"], repository(), &metrics(address)).unwrap();
        let meant = |line: &&str| {
            // vLLM's own names, and one of ours that the benchmarks read.
            let of_vllm = line.starts_with("vllm:");
            of_vllm || line.starts_with("weir_worker_step_microseconds use base unit")
        };
        let findings: Vec<&str> = said
            .lines()
            .filter(|line| !line.is_empty() && !meant(line))
            .collect();
        assert!(findings.is_empty(), "{findings:#?}");
    }
}

fn observability(file: &str) -> String {
    std::fs::read_to_string(repository().join("observability").join(file)).unwrap()
}

fn rules() -> Vec<Value> {
    let rules: Value = serde_yaml::from_str(&observability("alerts.yaml")).unwrap();
    rules["groups"][0]["rules"].as_array().unwrap().clone()
}

#[test]
fn every_alert_fires_and_keeps_quiet_when_it_should_and_has_a_runbook() {
    let tests: Value = serde_yaml::from_str(&observability("alerts.test.yaml")).unwrap();
    let names: BTreeSet<&str> = tests["tests"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|test| test["name"].as_str())
        .collect();
    for rule in rules() {
        let name = rule["alert"].as_str().unwrap();
        for story in ["fires", "is quiet"] {
            assert!(
                names.contains(format!("{name} {story}").as_str()),
                "no test {name:?} {story:?}"
            );
        }
        let runbook = rule["annotations"]["runbook"].as_str().unwrap();
        let text = std::fs::read_to_string(repository().join(runbook)).unwrap();
        assert!(text.contains("\n$ "), "{runbook} has no command to run");
        // What the runbook shows is the rule.
        assert!(
            text.contains(rule["expr"].as_str().unwrap()),
            "{runbook} shows another rule"
        );
    }
    if !is_installed() {
        eprintln!("{MISSING}");
        return;
    }
    let folder = repository().join("observability");
    for arguments in [
        &["check", "rules", "alerts.yaml"],
        &["test", "rules", "alerts.test.yaml"],
    ] {
        let (passed, said) = promtool(arguments, &folder, "").unwrap();
        assert!(passed, "promtool {arguments:?}: {said}");
    }
}

/// Title and expression of every query of the dashboard.
fn queries() -> Vec<(String, String)> {
    let dashboard: Value = serde_json::from_str(&observability("dashboard.json")).unwrap();
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries.push((
                title.to_owned(),
                target["expr"].as_str().unwrap().to_owned(),
            ));
        }
    }
    queries
}

/// As Grafana would send it: everything chosen, and an interval of a few scrapes.
fn filled_in(query: &str) -> String {
    let all = ["$tenant", "$model", "$pool"];
    let filled = all
        .into_iter()
        .fold(query.to_owned(), |text, name| text.replace(name, ".*"));
    filled.replace("$__rate_interval", "4s")
}

#[test]
fn every_query_uses_metrics_of_the_reference() {
    let text = std::fs::read_to_string(repository().join("docs/metrics.md")).unwrap();
    let documented = reference(&text);
    let of_rules = rules().into_iter().map(|rule| {
        let text = |field: &str| rule[field].as_str().unwrap().to_owned();
        (text("alert"), text("expr"))
    });
    for (place, query) in queries().into_iter().chain(of_rules) {
        let metrics = metrics_of_query(&query);
        assert!(!metrics.is_empty(), "{place}: no metric in {query}");
        for metric in metrics {
            assert!(
                documented.contains_key(&metric),
                "{place}: no metric {metric} in docs/metrics.md"
            );
        }
    }
}

#[test]
fn every_query_of_the_dashboard_has_data_from_a_quickstart_under_load() {
    if !is_installed() {
        eprintln!("{MISSING}");
        return;
    }
    let (weir, _data) = quickstart();
    let prometheus = Prometheus::scraping(&[&weir.admin]).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                ask(&weir);
                // The quickstart's quota lets 600 requests a minute in.
                std::thread::sleep(Duration::from_millis(125));
            }
        });
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| look_at(&prometheus)));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = told {
            std::panic::resume_unwind(panic);
        }
    });
    // None of the rules minds a quickstart.
    for rule in rules() {
        let firing = prometheus.query(rule["expr"].as_str().unwrap()).unwrap();
        assert!(firing.is_empty(), "{}: {firing:?}", rule["alert"]);
    }
}

fn look_at(prometheus: &Prometheus) {
    for (title, query) in queries() {
        let query = filled_in(&query);
        if let Some((_, why)) = EMPTY.iter().find(|(empty, _)| *empty == title) {
            let found = prometheus.query(&query).unwrap();
            assert!(
                found.is_empty(),
                "{title}: has data, though {why}: {found:?}"
            );
            continue;
        }
        let is_number = |row: &Value| {
            let value = row["value"][1].as_str().unwrap_or("NaN");
            value.parse::<f64>().is_ok_and(f64::is_finite)
        };
        wait_for(&format!("data of {title:?}: {query}"), 20, || {
            let found = prometheus.query(&query).unwrap();
            found.iter().any(is_number).then_some(())
        })
        .unwrap();
    }
    let exemplars = wait_for("exemplars", 10, || {
        let found = prometheus.exemplars("weir_gateway_time_to_first_token_seconds_bucket");
        found.ok().filter(|found| !found.is_empty())
    })
    .unwrap();
    assert!(
        exemplars[0]["exemplars"][0]["labels"]["run_id"].is_string(),
        "{exemplars:?}"
    );
}

#[test]
fn alert_names_and_versions_of_the_tools_are_said() {
    let version = Command::new("prometheus").arg("--version").output();
    if let Ok(output) = version {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        eprintln!("tested with {}", text.lines().next().unwrap_or_default());
    }
    let names: BTreeSet<String> = rules()
        .iter()
        .map(|rule| rule["alert"].to_string())
        .collect();
    assert_eq!(names.len(), rules().len(), "two rules have one name");
}
