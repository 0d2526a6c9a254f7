//! Models that are elsewhere: `weir up` and `weir fetch` on a web server, and without any.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};
use weir_e2e::{Client, RandomModel, Site, Tenant, Weir, wait_for, weir_command};

/// A web server over a folder.
pub(crate) struct Files {
    pub(crate) host: String,
    is_away: Arc<AtomicBool>,
    asked: Arc<AtomicU64>,
}

impl Files {
    pub(crate) fn of(root: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let files = Self {
            host: listener.local_addr().unwrap().to_string(),
            is_away: Arc::default(),
            asked: Arc::default(),
        };
        let (root, is_away, asked) = (root.to_owned(), files.is_away.clone(), files.asked.clone());
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                asked.fetch_add(1, Ordering::Relaxed);
                let mut lines = BufReader::new(stream.try_clone().unwrap())
                    .lines()
                    .map_while(Result::ok);
                let path = lines.next().unwrap_or_default();
                let path = path
                    .split_whitespace()
                    .nth(1)
                    .unwrap_or_default()
                    .to_owned();
                while lines.next().is_some_and(|line| !line.is_empty()) {}
                let found = fs::read(root.join(path.trim_start_matches('/')));
                let (status, body) = match found {
                    _ if is_away.load(Ordering::Relaxed) => ("403 Forbidden", Vec::new()),
                    Ok(body) => ("200 OK", body),
                    Err(_) => ("404 Not Found", Vec::new()),
                };
                let head = format!(
                    "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                    body.len()
                );
                drop(
                    stream
                        .write_all(head.as_bytes())
                        .and_then(|()| stream.write_all(&body)),
                );
            }
        });
        files
    }
}

/// A version's object, with its files at the server.
fn move_away(site: &Site, files: &Files, version: u32) {
    let path = site
        .manifests()
        .join(format!("model-random-v{version}.yaml"));
    let mut object: Value = serde_yaml::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    object["spec"]["manifest"]["artifact"]["uri"] =
        json!(format!("https://{}/models/random-v{version}", files.host));
    fs::write(path, serde_yaml::to_string(&object).unwrap()).unwrap();
}

fn weir(files: &Files, cache: &Path) -> Command {
    let mut command = weir_command();
    command
        .env("WEIR_FETCH_PLAIN_HTTP", &files.host)
        .env("WEIR_MODEL_CACHE", cache);
    command
}

fn up(site: &Site, files: &Files, cache: &Path) -> Weir {
    Weir::spawn_as(
        weir(files, cache),
        &site.manifests(),
        &site.data(),
        "127.0.0.1:0",
        &[],
    )
    .unwrap()
}

fn ask(weir: &Weir) -> u16 {
    let body = json!({"model": "random", "input": "x", "maxOutputTokens": 1});
    weir.client("acme-dev-key")
        .post("/inference", &body)
        .unwrap()
        .status
}

fn condition(weir: &Weir, object: &str, kind: &str) -> Option<Value> {
    let objects = Client::new(&weir.admin, "").get("/objects").ok()?.body;
    let found = objects
        .as_array()?
        .iter()
        .find(|o| o["metadata"]["name"] == object)?
        .clone();
    found["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|c| c["type"] == kind)
        .cloned()
}

fn site() -> (Site, Files, PathBuf) {
    let site = Site::random(RandomModel::default(), &[Tenant::unlimited("acme")]).unwrap();
    let files = Files::of(site.path());
    move_away(&site, &files, 1);
    let cache = site.path().join("cache");
    (site, files, cache)
}

#[test]
fn a_version_that_is_elsewhere_is_fetched_and_one_that_does_not_come_changes_nothing_that_serves() {
    let (site, files, cache) = site();
    let mut weir = up(&site, &files, &cache);
    weir.wait_ready().unwrap();
    assert_eq!(ask(&weir), 202);
    let fetched = condition(&weir, "random-v1", "Fetched").unwrap();
    assert_eq!(
        (fetched["status"].as_str(), fetched["reason"].as_str()),
        (Some("True"), Some("InCache")),
        "{fetched}"
    );
    assert!(
        weir.printed
            .iter()
            .any(|line| line["event"] == "fetching" && line["doneBytes"] == line["totalBytes"])
    );

    files.is_away.store(true, Ordering::Relaxed);
    let shape = RandomModel {
        seed: 2,
        ..RandomModel::default()
    };
    site.add_changed_model("random", 2, shape, "Registered", |_| Ok(()))
        .unwrap();
    move_away(&site, &files, 2);
    let seen = wait_for("the second version is refused", 30, || {
        condition(&weir, "random-v2", "Fetched").filter(|c| c["reason"] == "ArtifactDenied")
    });
    let message = seen.unwrap()["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains(&files.host) && message.contains("403") && message.contains("credentials"),
        "{message}"
    );
    assert_eq!(ask(&weir), 202, "the first version serves on");
    // And comes by itself when the place is in order again.
    files.is_away.store(false, Ordering::Relaxed);
    wait_for("the second version comes", 60, || {
        condition(&weir, "random-v2", "Verified").filter(|c| c["status"] == "True")
    })
    .unwrap();
    drop(weir);

    // What is in the cache needs no network.
    files.is_away.store(true, Ordering::Relaxed);
    let asked = files.asked.load(Ordering::Relaxed);
    let mut weir = up(&site, &files, &cache);
    weir.wait_ready().unwrap();
    assert_eq!(
        files.asked.load(Ordering::Relaxed),
        asked,
        "nobody was asked"
    );
    assert_eq!(ask(&weir), 202);
    drop(weir);

    // A disk that lost a bit is found out before anything is served, and the file comes anew.
    files.is_away.store(false, Ordering::Relaxed);
    damage(&cache);
    let mut weir = up(&site, &files, &cache);
    weir.wait_ready().unwrap();
    assert_eq!(ask(&weir), 202);
    let again = files.asked.load(Ordering::Relaxed) - asked;
    assert!((1..=2).contains(&again), "{again} requests for one file");
}

/// Changes a bit of the largest file in a cache.
fn damage(cache: &Path) {
    let blobs = fs::read_dir(cache.join("blobs/sha256")).unwrap().flatten();
    let largest = blobs.max_by_key(|blob| blob.metadata().unwrap().len());
    let path = largest.unwrap().path();
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&path, bytes).unwrap();
}

#[test]
fn a_version_is_fetched_ahead_carried_by_hand_and_served_without_a_network() {
    let (site, files, cache) = site();
    let carried = site.path().join("carried.tar");
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let lines = String::from_utf8(output.stdout).unwrap();
        lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .collect::<Vec<_>>()
    };
    let lines = run(weir(&files, &cache)
        .args(["fetch", "-o", "json"])
        .arg(site.manifests())
        .arg("--export")
        .arg(&carried));
    let fetched = lines
        .iter()
        .find(|line| line["event"] == "fetched")
        .unwrap();
    assert_eq!(fetched["signature"], "checked", "{fetched}");
    assert_eq!(fetched["bytes"], fetched["receivedBytes"], "{fetched}");

    files.is_away.store(true, Ordering::Relaxed);
    let there = site.path().join("there");
    let lines = run(weir(&files, &there)
        .args(["fetch", "-o", "json", "--import"])
        .arg(&carried));
    assert_eq!(lines[0]["event"], "imported");
    let mut weir = up(&site, &files, &there);
    weir.wait_ready().unwrap();
    assert_eq!(ask(&weir), 202);
}

#[test]
fn a_command_that_cannot_fetch_says_why() {
    let (site, files, cache) = site();
    files.is_away.store(true, Ordering::Relaxed);
    let output = weir(&files, &cache)
        .arg("fetch")
        .arg(site.manifests().join("model-random-v1.yaml"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && said.contains("ArtifactDenied") && said.contains(&files.host),
        "{said}"
    );
}
