//! The examples of `docs/http-api.md`, run as they stand there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use serde_json::Value;
use weir_protocol::error::ErrorCode;

use crate::client::{Client, Reply};
use crate::site::{DIGEST, Site, config, snapshot, tenant, version};
use crate::worker::FakeWorker;

const DOCUMENT: &str = include_str!("../../../docs/http-api.md");

/// Values shown under a name.
type Names = BTreeMap<String, String>;

/// Fenced blocks: what stands behind the fence, and the text.
fn blocks() -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut lines = DOCUMENT.lines();
    while let Some(line) = lines.next() {
        if let Some(info) = line.strip_prefix("```") {
            let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            all.push((info.to_owned(), text.join("\n")));
        }
    }
    all
}

fn filled(text: &str, names: &Names) -> String {
    let fill =
        |text: String, (name, value): (&String, &String)| text.replace(&format!("<{name}>"), value);
    names.iter().fold(text.to_owned(), fill)
}

async fn ask(client: &Client, request: &str) -> Reply {
    let (head, body) = request.split_once("\n\n").unwrap_or((request, ""));
    let mut lines = head.lines();
    let (method, path) = lines.next().unwrap().split_once(' ').unwrap();
    let headers: Vec<(&str, &str)> = lines.map(|line| line.split_once(": ").unwrap()).collect();
    let is_form = headers
        .iter()
        .any(|(_, value)| value.starts_with("multipart/"));
    let body = if is_form {
        body.replace('\n', "\r\n")
    } else {
        body.to_owned()
    };
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    client.raw(method, path, &headers, body).await
}

/// Whether `got` is what `want` shows; names that are new are learned.
fn shows(want: &Value, got: &Value, names: &mut Names) -> Result<(), String> {
    match (want, got) {
        (Value::Object(want), Value::Object(got)) => want.iter().try_for_each(|(field, want)| {
            let got = got
                .get(field)
                .ok_or_else(|| format!("{field} is missing"))?;
            shows(want, got, names).map_err(|why| format!("{field}: {why}"))
        }),
        (Value::Array(want), Value::Array(got)) if want.len() == got.len() => want
            .iter()
            .zip(got)
            .try_for_each(|(want, got)| shows(want, got, names)),
        (Value::String(want), Value::String(got)) if matches(want, got, names) => Ok(()),
        (Value::String(any), _) if any == "…" && !got.is_null() => Ok(()),
        (want, got) if want == got => Ok(()),
        _ => Err(format!("{want} is shown, {got} came")),
    }
}

/// Whether a text is what a pattern shows.
fn matches(pattern: &str, text: &str, names: &mut Names) -> bool {
    let pattern = filled(pattern, names);
    let hole = pattern.char_indices().find_map(|(at, c)| match c {
        '…' => Some((at, at + c.len_utf8(), None)),
        '<' => {
            let end = pattern[at..].find('>')? + at;
            let name = &pattern[at + 1..end];
            let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase());
            is_name.then(|| (at, end + 1, Some(name.to_owned())))
        }
        _ => None,
    });
    let Some((from, to, name)) = hole else {
        return pattern == text;
    };
    let (Some(rest), after) = (text.strip_prefix(&pattern[..from]), &pattern[to..]) else {
        return false;
    };
    // Whatever comes before a place from where the rest of the pattern fits.
    let places = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
    for place in places {
        let mut learned = names.clone();
        if let Some(name) = &name {
            learned.insert(name.clone(), rest[..place].to_owned());
        }
        if matches(after, &rest[place..], &mut learned) {
            *names = learned;
            return true;
        }
    }
    false
}

fn check(info: &str, want: &str, got: &Reply, names: &mut Names) -> Result<(), String> {
    let (kind, status) = info.split_once(' ').ok_or("no status")?;
    if got.status.to_string() != status {
        return Err(format!("status {}", got.status));
    }
    if kind == "json" {
        let want = serde_json::from_str(want).map_err(|error| format!("no JSON: {error}"))?;
        return shows(&want, &got.body, names);
    }
    let lines: Vec<&str> = got
        .text
        .lines()
        .filter(|line| !line.starts_with(':'))
        .collect();
    let text = lines.join("\n");
    let (want, got): (Vec<&str>, Vec<&str>) =
        (want.trim().lines().collect(), text.trim().lines().collect());
    if want.len() != got.len() {
        return Err(format!(
            "{} lines are shown, {} came",
            want.len(),
            got.len()
        ));
    }
    for (want, got) in want.iter().zip(got) {
        if !matches(want, got, names) {
            return Err(format!("{want} is shown, {got} came"));
        }
    }
    Ok(())
}

async fn site() -> (Site, FakeWorker) {
    let folder = tempfile::tempdir().unwrap();
    let worker = FakeWorker::start(folder.path(), "w0", DIGEST, true);
    let mut acme = tenant("acme");
    "tiny-chat".clone_into(&mut acme.models[0].name);
    let mut snapshot = snapshot(folder.path(), vec![acme], &["w0"]);
    "tiny-chat".clone_into(&mut snapshot.models[0].name);
    snapshot.models[0].versions = vec![Arc::new(version("tiny-chat", 2, DIGEST))];
    let site = Site::start(folder, snapshot, config()).await;
    site.wait_served().await;
    (site, worker)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_example_of_the_document_is_true() {
    let (site, _worker) = site().await;
    let client = site.client("acme");
    let mut names = Names::new();
    let blocks = blocks();
    let mut count = 0;
    for (place, (info, request)) in blocks.iter().enumerate() {
        let Some(until) = info.strip_prefix("http") else {
            continue;
        };
        let request = filled(request, &names);
        let mut reply = ask(&client, &request).await;
        if let Some(status) = until.strip_prefix(" until status ") {
            for _ in 0..2000 {
                if reply.body["status"] == status {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
                reply = ask(&client, &request).await;
            }
        }
        let (info, want) = &blocks[place + 1];
        if let Err(why) = check(info, want, &reply, &mut names) {
            panic!(
                "{request}\nanswered {}\n{}\n{why}",
                reply.status, reply.text
            );
        }
        count += 1;
    }
    assert!(count > 25, "only {count} examples were found");
}

#[test]
fn the_table_of_errors_has_every_code_with_its_status_and_whether_to_retry() {
    for code in ErrorCode::ALL {
        let name = serde_json::to_value(code).unwrap();
        let retry = if code.is_retryable() { "yes" } else { "no" };
        let row = format!(
            "| `{}` | {} | {retry} |",
            name.as_str().unwrap(),
            code.status().as_u16()
        );
        assert!(DOCUMENT.contains(&row), "the table has no row {row}");
    }
}

#[test]
fn a_pattern_learns_its_names_and_tells_other_texts_apart() {
    let mut names = Names::new();
    assert!(matches("a<x>c…", "abc!", &mut names));
    assert_eq!(names["x"], "b");
    assert!(matches("<x>", "b", &mut names));
    assert!(!matches("<x>", "c", &mut names));
    assert!(!matches("…d", "abc", &mut names));
}
