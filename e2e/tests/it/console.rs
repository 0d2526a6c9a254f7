//! The console in a real browser: what it shows, what it keeps to itself, and what it looks like.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use weir_e2e::browser::{MISSING, Page, is_installed};
use weir_e2e::{Client, RandomModel, Site, Tenant, Weir, repository, wait_for};

const SECRET: &str = "the-prompt-nobody-else-may-read";

fn site() -> Site {
    let acme = Tenant {
        name: "acme",
        spec: json!({"windows": [{"period": "24h", "tokens": 1_000_000, "costMicros": 5_000_000}]}),
    };
    Site::random(RandomModel::default(), &[acme, Tenant::unlimited("globex")]).unwrap()
}

fn pictures() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| repository().join("target"), PathBuf::from);
    target.join("console")
}

/// Clients that ask until the story is told.
fn under_load(weir: &Weir, story: impl FnOnce()) {
    let stop = AtomicBool::new(false);
    let ask = |key: &str| {
        let client = weir.client(key);
        let body = json!({"model": "random", "input": SECRET, "maxOutputTokens": 24});
        while !stop.load(Ordering::Relaxed) {
            let reply = client.post("/inference", &body).unwrap();
            if reply.status == 202 {
                client.all_events(&reply.run_id(), 0).unwrap();
            }
        }
    };
    std::thread::scope(|scope| {
        for key in ["acme-dev-key", "acme-dev-key", "globex-dev-key"] {
            scope.spawn(move || ask(key));
        }
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(story));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = told {
            std::panic::resume_unwind(panic);
        }
    });
}

/// A canary at 20 percent that stays there.
fn begin_rollout(site: &Site, weir: &Weir) {
    let rollout = json!({
        "steps": [{"weightPercent": 20, "bake": "600s"}],
        "guardrails": {"errorRatePercent": 5, "ttftP95Ms": 2000, "minRequests": 10},
    });
    site.add_prepared_model(("random", 2), &json!({"rollout": rollout}), |_| Ok(()))
        .unwrap();
    wait_for("20 percent", 60, || {
        let objects = Client::new(&weir.admin, "").get("/objects").ok()?.body;
        let mut all = objects.as_array()?.iter();
        all.find(|object| object["status"]["weightPercent"] == 20)
            .map(|_| ())
    })
    .unwrap();
}

fn shoot(page: &mut Page, name: &str) {
    for (scheme, is_dark) in [("light", false), ("dark", true)] {
        page.look((1280, 900), is_dark).unwrap();
        page.shoot(&pictures().join(format!("{name}-{scheme}.png")))
            .unwrap();
    }
    page.look((420, 900), false).unwrap();
    page.shoot(&pictures().join(format!("{name}-narrow.png")))
        .unwrap();
    let wide = page.eval("document.documentElement.scrollWidth").unwrap();
    assert!(
        wide.as_u64() <= Some(420),
        "{name} is {wide} wide on a narrow screen"
    );
    page.look((1280, 900), false).unwrap();
}

/// Whoever hears the page instead of seeing it is told what everything is.
fn every_part_has_a_name(page: &mut Page) {
    let tree = page
        .call("Accessibility.getFullAXTree", &json!({}))
        .unwrap();
    let nodes = tree["nodes"].as_array().unwrap();
    let needs_name = [
        "button",
        "link",
        "textbox",
        "combobox",
        "slider",
        "img",
        "image",
        "navigation",
    ];
    for node in nodes.iter().filter(|node| node["ignored"] != true) {
        let role = node["role"]["value"].as_str().unwrap_or_default();
        let name = node["name"]["value"].as_str().unwrap_or_default();
        assert!(
            !needs_name.contains(&role) || !name.trim().is_empty(),
            "no name: {node}"
        );
    }
    let has = |role: &str| nodes.iter().any(|node| node["role"]["value"] == role);
    assert!(has("main") && has("navigation") && has("heading"));
}

#[test]
fn the_console_shows_pools_rollouts_and_runs() {
    if !is_installed() {
        eprintln!("{MISSING}");
        return;
    }
    let site = site();
    let weir = site.up().unwrap();
    let mut page = Page::open().unwrap();
    page.look((1280, 900), false).unwrap();
    under_load(&weir, || {
        begin_rollout(&site, &weir);
        page.go(&format!("{}/console", weir.admin)).unwrap();
        pools(&mut page);
        rollouts(&mut page);
        runs(&mut page);
    });
    replay(&mut page);
    assert!(page.complaints.is_empty(), "{:#?}", page.complaints);
    let foreign: Vec<&String> = page
        .asked
        .iter()
        .filter(|url| !url.starts_with(&weir.admin) && !url.starts_with("data:"))
        .collect();
    assert!(foreign.is_empty(), "asked elsewhere: {foreign:?}");
    assert!(page.asked.iter().any(|url| url.ends_with("/console/state")));
}

fn pools(page: &mut Page) {
    page.wait(
        "document.querySelectorAll('article.card table').length === 2",
        20,
    )
    .unwrap();
    page.wait(
        "document.querySelector('#pulse').className.includes('live')",
        10,
    )
    .unwrap();
    // Two looks make a rate.
    page.wait("[...document.querySelectorAll('#figures dt')].some(dt => dt.textContent === 'Output' && parseFloat(dt.nextSibling.textContent) > 0)", 20)
        .unwrap();
    let said = page
        .eval("document.querySelector('#view').innerText")
        .unwrap();
    for want in [
        "small",
        "random@1",
        "random@2",
        "2 of 2 workers",
        "serving",
        "Interactive",
    ] {
        assert!(
            said.as_str().unwrap().contains(want),
            "no {want:?} in {said}"
        );
    }
    page.wait("parseFloat(document.querySelector('.b-used')?.style.width ?? 0) > 0 || document.querySelector('.b-cached')", 20)
        .unwrap();
    every_part_has_a_name(page);
    shoot(page, "pools");
}

fn rollouts(page: &mut Page) {
    page.eval("location.hash = '#/rollouts'").unwrap();
    page.wait("document.querySelectorAll('svg.plot').length === 4", 20)
        .unwrap();
    // Runs settle ten seconds after they began.
    page.wait("[...document.querySelectorAll('figcaption')].some(one => /^Error rate.*v1 0/.test(one.textContent))", 40)
        .unwrap();
    page.wait(
        "document.querySelectorAll('svg.plot .limit').length === 1",
        40,
    )
    .unwrap();
    let said = page
        .eval("document.querySelector('#view').innerText")
        .unwrap();
    for want in [
        "attempt v2-1, step 1",
        "v1 · 80 %",
        "v2 · 20 %",
        "Version 2 ",
        "Evidence against",
    ] {
        assert!(
            said.as_str().unwrap().contains(want),
            "no {want:?} in {said}"
        );
    }
    let width = page
        .eval("document.querySelector('.b-canary').style.width")
        .unwrap();
    assert_eq!(width, "20%");
    every_part_has_a_name(page);
    shoot(page, "rollouts");
}

fn runs(page: &mut Page) {
    page.eval("location.hash = '#/runs'").unwrap();
    page.wait("document.querySelectorAll('tr.pick').length > 5", 20)
        .unwrap();
    page.wait(
        "document.querySelector('.budgets')?.innerText.includes('tokens per 24h')",
        10,
    )
    .unwrap();
    every_part_has_a_name(page);
}

fn replay(page: &mut Page) {
    page.eval(
        "document.querySelector('tr.pick .tag.good').closest('tr').querySelector('button').click()",
    )
    .unwrap();
    page.wait(
        "document.querySelector('#said')?.textContent.includes('▪')",
        10,
    )
    .unwrap();
    let log = page
        .eval("document.querySelector('.log').innerText")
        .unwrap();
    assert!(log.as_str().unwrap().contains("completed"), "{log}");
    shoot(page, "runs");
    let whole = page.eval("document.documentElement.innerHTML").unwrap();
    assert!(!whole.as_str().unwrap().contains(SECRET));

    page.eval("document.querySelector('input[name=key]').value = 'globex-dev-key'; document.querySelector('aside form').requestSubmit()")
        .unwrap();
    page.wait(
        "document.querySelector('#detail').innerText.includes('no such run')",
        10,
    )
    .unwrap();
    // The refusal is meant; the browser notes it as an error.
    page.complaints
        .retain(|complaint| !complaint.contains("404"));
    page.eval(
        "document.querySelector('tr.pick .tag.good').closest('tr').querySelector('button').click()",
    )
    .unwrap();
    page.wait("document.querySelector('input[name=key]')", 10)
        .unwrap();
    page.eval("document.querySelector('input[name=key]').value = 'acme-dev-key'; document.querySelector('aside form').requestSubmit()")
        .unwrap();
    page.wait("document.querySelector('#said') && !document.querySelector('#said').textContent.includes('▪')", 10)
        .unwrap();
    // Played from the beginning it ends with the same words.
    let end = page
        .eval("document.querySelector('#said').textContent")
        .unwrap();
    assert!(!end.as_str().unwrap().is_empty());
    page.eval("document.querySelector('.controls button').click()")
        .unwrap();
    page.wait(
        "document.querySelector('.controls button').textContent === 'Pause'",
        5,
    )
    .unwrap();
    page.wait(
        "document.querySelector('.controls button').textContent === 'Replay'",
        20,
    )
    .unwrap();
    assert_eq!(
        page.eval("document.querySelector('#said').textContent")
            .unwrap(),
        end
    );
    shoot(page, "replay");
}

/// The answer to one GET by this name, head and body.
fn ask_as(weir: &Weir, host: &str, path: &str) -> String {
    let address = weir.admin.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_console_answers_on_the_admin_port_alone_and_keeps_text_to_its_tenant() {
    let site = site();
    let weir = site.up().unwrap();
    let client = weir.client("acme-dev-key");
    let body = json!({"model": "random", "input": SECRET, "maxOutputTokens": 8});
    let run = client.post("/inference", &body).unwrap().run_id();
    let events = client.all_events(&run, 0).unwrap();
    assert_eq!(client.get("/console").unwrap().status, 404);
    let anonymous = Client::new(&weir.listen, "").get("/console/state").unwrap();
    assert!([401, 404].contains(&anonymous.status));

    for path in ["/console", "/console/state", "/console/runs?tenant=acme"] {
        let by_name = ask_as(&weir, "rebound.example:9090", path);
        assert!(by_name.starts_with("HTTP/1.1 421 "), "{path}: {by_name}");
        let by_address = ask_as(&weir, "127.0.0.1:9090", path);
        assert!(
            by_address.starts_with("HTTP/1.1 200 "),
            "{path}: {by_address}"
        );
    }
    let head = ask_as(&weir, "localhost", "/console");
    let head = head.split("\r\n\r\n").next().unwrap().to_lowercase();
    for want in [
        "default-src 'none'",
        "script-src 'self'",
        "frame-ancestors 'none'",
        "nosniff",
        "no-store",
        "no-referrer",
    ] {
        assert!(head.contains(want), "no {want} in {head}");
    }
    for unsafe_word in ["unsafe", "http://", "https://"] {
        assert!(!head.contains(unsafe_word), "{unsafe_word} in {head}");
    }

    let path = format!("/console/events?tenant=acme&run={run}");
    let shown = |key: &str| Client::new(&weir.admin, key).get(&path).unwrap();
    let with_text = shown("acme-dev-key").body;
    assert_eq!(with_text["hasText"], true);
    let texts: Vec<Value> = events.iter().map(weir_e2e::Event::json).collect();
    for (event, shown) in texts.iter().zip(with_text["events"].as_array().unwrap()) {
        assert_eq!(
            shown["data"]["text"], event["text"],
            "replay is what was streamed"
        );
    }
    let anonymous = ask_as(&weir, "localhost", &path);
    assert!(anonymous.contains("\"hasText\":false"), "{anonymous}");
    assert!(!anonymous.contains("\"text\":"), "{anonymous}");
    assert_eq!(
        shown("globex-dev-key").status,
        404,
        "another tenant's key opens nothing"
    );
    let list = ask_as(&weir, "localhost", "/console/runs?tenant=acme");
    assert!(list.contains(&run) && !list.contains(SECRET), "{list}");
}
