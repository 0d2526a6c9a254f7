//! Processes that die, and processes that want the same.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use weir_manifest::FileEntry;

use crate::server::{Server, content};

/// This test program, started again as a process of its own that does one fetch.
const CHILD: &str = "WEIR_FETCH_TEST_CHILD";

fn child(server: &Server, root: &Path, file: &FileEntry, bytes_per_second: u64) -> Child {
    let told = serde_json::json!([server.host, root, file, bytes_per_second]).to_string();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "processes::one_fetch_of_a_child", "--nocapture"])
        .env(CHILD, told);
    command.stdout(Stdio::null()).spawn().unwrap()
}

/// Does nothing by itself: the other tests start it as a process.
#[test]
fn one_fetch_of_a_child() {
    let Ok(told) = std::env::var(CHILD) else {
        return;
    };
    let (host, root, file, rate): (String, std::path::PathBuf, FileEntry, u64) =
        serde_json::from_str(&told).unwrap();
    let settings = weir_fetch::Settings {
        plain_http: vec![host.clone()],
        bytes_per_second: (rate > 0).then_some(rate),
        ..weir_fetch::Settings::default()
    };
    let fetcher =
        weir_fetch::Fetcher::new(weir_fetch::Cache::open(&root, None).unwrap(), settings).unwrap();
    let (uri, files) = (format!("https://{host}/model"), [file]);
    crate::server::run(fetcher.fetch(
        &crate::server::request(&uri, &files),
        &weir_fetch::Meter::default(),
    ))
    .unwrap();
}

fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_mins(1), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Another process ends what was begun, and what it ends with is right.
fn is_completed(server: &Server, root: &Path, file: &FileEntry, size: usize) {
    assert!(child(server, root, file, 0).wait().unwrap().success());
    assert_eq!(
        fs::read(root.join("models/model/w")).unwrap(),
        content(size)
    );
}

#[test]
fn a_process_that_is_killed_in_the_middle_is_continued_by_the_next() {
    const SIZE: usize = 8 << 20;
    let server = Server::start();
    let file = server.put("w", content(SIZE));
    let dir = tempfile::tempdir().unwrap();
    let partial = dir.path().join("partial").join(file.sha256.to_hex());
    let mut kept = 0;
    for turn in 1..=3 {
        // Slow enough to be killed on its way, whatever the machine.
        let mut killed = child(&server, dir.path(), &file, 2 << 20);
        wait("it writes", || {
            fs::metadata(&partial).is_ok_and(|meta| meta.len() > kept + (256 << 10))
        });
        killed.kill().unwrap();
        killed.wait().unwrap();
        let now = fs::metadata(&partial).unwrap().len();
        assert!(
            now > kept && now < SIZE as u64,
            "turn {turn}: {now} after {kept}"
        );
        kept = now;
    }
    is_completed(&server, dir.path(), &file, SIZE);
    let offsets: Vec<u64> = server
        .requests()
        .iter()
        .map(|asked| asked.rsplit(' ').next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(offsets.len(), 4, "{offsets:?}");
    assert!(
        offsets.is_sorted() && offsets[3] == kept,
        "{offsets:?}, {kept} were there"
    );
}

#[test]
fn what_a_killed_process_left_is_not_trusted() {
    let server = Server::start();
    let file = server.put("w", content(2 << 20));
    let dir = tempfile::tempdir().unwrap();
    let partial = dir.path().join("partial").join(file.sha256.to_hex());
    let mut killed = child(&server, dir.path(), &file, 1 << 20);
    wait("it writes", || {
        fs::metadata(&partial).is_ok_and(|meta| meta.len() > 256 << 10)
    });
    killed.kill().unwrap();
    killed.wait().unwrap();
    let mut bytes = fs::read(&partial).unwrap();
    bytes[1000] ^= 1;
    fs::write(&partial, bytes).unwrap();
    is_completed(&server, dir.path(), &file, 2 << 20);
}

#[test]
fn processes_that_want_one_file_fetch_it_once() {
    const SIZE: usize = 4 << 20;
    let server = Server::start();
    let file = server.put("w", content(SIZE));
    let dir = tempfile::tempdir().unwrap();
    let children: Vec<_> = (0..4)
        .map(|_| child(&server, dir.path(), &file, 8 << 20))
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    assert_eq!((server.requests().len(), server.sent()), (1, SIZE as u64));
}
