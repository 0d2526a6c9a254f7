//! A worker that fetches what it is to load.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::process::{Artifact, artifact};

/// A web server with the files of a folder, for whoever has the token.
struct Web {
    address: String,
    asked: Arc<AtomicUsize>,
    /// Whether it sends everything.
    is_open: Arc<AtomicBool>,
}

const TOKEN: &str = "the-right-token";

impl Web {
    fn start(dir: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (asked, is_open) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(true)),
        );
        let (dir, counted, opened) = (dir.to_owned(), Arc::clone(&asked), Arc::clone(&is_open));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (dir, counted, opened) =
                    (dir.clone(), Arc::clone(&counted), Arc::clone(&opened));
                std::thread::spawn(move || {
                    counted.fetch_add(1, Ordering::Relaxed);
                    drop(answer(stream, &dir, &opened));
                });
            }
        });
        Self {
            address,
            asked,
            is_open,
        }
    }
}

fn answer(mut stream: TcpStream, dir: &Path, is_open: &AtomicBool) -> std::io::Result<()> {
    let mut asked = Vec::new();
    let mut piece = [0; 1024];
    while !asked.ends_with(b"\r\n\r\n") {
        let read = stream.read(&mut piece)?;
        if read == 0 {
            return Ok(());
        }
        asked.extend_from_slice(&piece[..read]);
    }
    let asked = String::from_utf8_lossy(&asked).to_lowercase();
    let path = asked.split(' ').nth(1).unwrap_or_default();
    if !asked.contains(&format!("authorization: bearer {TOKEN}")) {
        return stream.write_all(
            b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        );
    }
    let body = fs::read(dir.join(path.trim_start_matches("/tiny/")))?;
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    let is_large = body.len() > 8 << 10;
    if is_large {
        stream.write_all(&body[..body.len() / 2])?;
        while !is_open.load(Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        return stream.write_all(&body[body.len() / 2..]);
    }
    stream.write_all(&body)
}

fn secret(artifact: &Artifact, web: &Web, token: &str) -> PathBuf {
    let folder = artifact.dir.path().join("secret");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("tokens"), format!("{} {token}\n", web.address)).unwrap();
    fs::write(folder.join("WEIR_FETCH_PLAIN_HTTP"), &web.address).unwrap();
    folder
}

/// A plan without a folder, and with a place.
fn plan(artifact: &Artifact, web: &Web, secret: &Path) -> Value {
    let mut plan = artifact.plan();
    plan.as_object_mut().unwrap().remove("dir");
    plan["fetch"] = json!({
        "uri": format!("https://{}/tiny", web.address), "cache": artifact.dir.path().join("cache"),
        "cacheBytes": null, "bytesPerSecond": null, "secret": secret,
    });
    plan
}

/// What the worker says of its files.
fn files(admin: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(admin).ok()?;
    let asked = format!("GET /files HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
    stream.write_all(asked.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split("\r\n\r\n").nth(1)?).ok()
}

fn wait(admin: &str, what: impl Fn(&Value) -> bool) -> Value {
    let until = std::time::Instant::now() + std::time::Duration::from_mins(1);
    loop {
        let now = files(admin);
        if let Some(now) = now.as_ref().filter(|now| what(now)) {
            return now.clone();
        }
        assert!(std::time::Instant::now() < until, "{now:?}");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn admin() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

#[test]
fn files_are_fetched_with_what_the_secret_says_and_a_worker_that_has_them_asks_nobody() {
    let artifact = artifact();
    let web = Web::start(&artifact.plan.dir);
    let secret_of = secret(&artifact, &web, "a-wrong-token");
    let plan = plan(&artifact, &web, &secret_of);
    let admin = admin();
    web.is_open.store(false, Ordering::Relaxed);
    let mut worker = artifact.start_with(&["--admin", &admin], &plan);
    let failed = wait(&admin, |files| files["state"] == "failed");
    assert_eq!(failed["reason"], "ArtifactDenied", "{failed}");
    let told = failed["message"].as_str().unwrap();
    assert!(
        told.contains("403") && !told.contains("wrong-token"),
        "{told}"
    );
    // The Secret is corrected while the worker waits.
    secret(&artifact, &web, TOKEN);
    let going = wait(&admin, |files| {
        files["receivedBytes"].as_u64() > Some(8 << 10)
    });
    assert_eq!(going["state"], "fetching");
    assert!(going["doneBytes"].as_u64() < going["totalBytes"].as_u64());
    web.is_open.store(true, Ordering::Relaxed);
    let ready = worker.line("ready");
    assert_eq!(ready["digest"], artifact.plan.digest.to_string());
    let here = wait(&admin, |files| files["state"] == "fetched");
    assert_eq!(here["doneBytes"], here["totalBytes"]);
    drop(worker);
    let asked = web.asked.load(Ordering::Relaxed);
    let mut again = artifact.start_with(&["--admin", &admin], &plan);
    again.line("ready");
    assert_eq!(web.asked.load(Ordering::Relaxed), asked);
}

#[test]
fn a_place_that_is_corrected_while_a_worker_waits_is_the_one_it_asks_next() {
    let artifact = artifact();
    let web = Web::start(&artifact.plan.dir);
    let secret = secret(&artifact, &web, TOKEN);
    let right = plan(&artifact, &web, &secret);
    let mut wrong = right.clone();
    wrong["fetch"]["uri"] = json!(format!("https://{}/nowhere", web.address));
    let admin = admin();
    let mut worker = artifact.start_with(&["--admin", &admin], &wrong);
    wait(&admin, |files| files["state"] == "failed");
    // A plan of another version is none of its business.
    let path = artifact.dir.path().join("plan.json");
    let mut other = right.clone();
    other["digest"] = json!(format!("sha256:{}", "0".repeat(64)));
    fs::write(&path, other.to_string()).unwrap();
    let asked = web.asked.load(Ordering::Relaxed);
    wait(&admin, |_| web.asked.load(Ordering::Relaxed) > asked);
    fs::write(&path, right.to_string()).unwrap();
    let ready = worker.line("ready");
    assert_eq!(ready["digest"], artifact.plan.digest.to_string());
}
