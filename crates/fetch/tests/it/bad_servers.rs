//! One server, one process.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use weir_fetch::{FetchError, Meter};

use crate::server::{Fault, Server, content, request, run};

const SIZE: usize = 3 << 20;

#[test]
fn a_version_comes_once_and_is_there_without_a_network_then() {
    let server = Server::start();
    let files = [
        server.put("config.json", content(700)),
        server.put("sub/w 1.safetensors", content(SIZE)),
        server.put("empty", vec![]),
    ];
    // The name of this file needs escapes in a URL.
    let escaped = server.put("sub/w%201.safetensors", content(SIZE));
    assert_eq!(escaped.sha256, files[1].sha256);
    let dir = tempfile::tempdir().unwrap();
    let fetcher = server.fetcher(dir.path());
    let meter = Meter::default();
    let fetched = run(fetcher.fetch(&request(&server.uri(), &files), &meter)).unwrap();
    assert_eq!(
        fs::read(fetched.dir.join("sub/w 1.safetensors")).unwrap(),
        content(SIZE)
    );
    assert_eq!(fs::read(fetched.dir.join("empty")).unwrap(), b"");
    let reading = meter.read();
    assert_eq!(
        (reading.done, reading.total),
        (SIZE as u64 + 700, SIZE as u64 + 700)
    );
    assert_eq!(reading.received, reading.total);
    // The file is the blob, not a copy or a link out of the cache, and nobody may write to it.
    let meta = fs::symlink_metadata(fetched.dir.join("config.json")).unwrap();
    assert!(meta.is_file() && meta.nlink() == 2 && meta.mode() & 0o222 == 0);
    let before = server.requests().len();
    server.fail(Fault::Status(500), u32::MAX);
    server.fetch(&fetcher, &files).unwrap();
    assert_eq!(server.requests().len(), before, "nobody was asked");
}

#[test]
fn a_connection_that_is_cut_again_and_again_is_continued_where_it_ended() {
    let server = Server::start();
    let file = server.put("w", content(SIZE));
    server.fail(Fault::Cut(300 << 10), u32::MAX);
    let dir = tempfile::tempdir().unwrap();
    server.fetch(&server.fetcher(dir.path()), &[file]).unwrap();
    assert_eq!(
        server.sent(),
        SIZE as u64,
        "no byte came twice: {:?}",
        server.requests()
    );
    assert!(server.requests().len() > 8);
}

#[test]
fn a_server_that_ignores_ranges_is_read_from_its_beginning_and_what_is_here_is_skipped() {
    let server = Server::start();
    let files = [server.put("w", content(SIZE))];
    server.fail(Fault::Cut(1 << 20), 1);
    let dir = tempfile::tempdir().unwrap();
    let fetcher = server.fetcher(dir.path());
    let meter = Meter::default();
    let uri = server.uri();
    run(async {
        let ignoring = async {
            while server.requests().is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            server.fail(Fault::CutWithoutRanges(usize::MAX), 1);
        };
        let asked = crate::server::request(&uri, &files);
        let (fetched, ()) = tokio::join!(fetcher.fetch(&asked, &meter), ignoring);
        fetched.unwrap();
    });
    assert_eq!(meter.read().received, SIZE as u64);
}

#[test]
fn what_is_not_the_file_is_never_kept() {
    for (fault, answers, reason) in [
        (Fault::Longer(5), u32::MAX, "ArtifactMismatch"),
        (Fault::Overlong, u32::MAX, "ArtifactMismatch"),
        (Fault::Wrong(SIZE / 2), u32::MAX, "ArtifactMismatch"),
        (Fault::Status(401), u32::MAX, "ArtifactDenied"),
        (Fault::Status(403), u32::MAX, "ArtifactDenied"),
        (Fault::Status(404), u32::MAX, "ArtifactMissing"),
        (Fault::Status(400), u32::MAX, "ArtifactRefused"),
    ] {
        let server = Server::start();
        let file = server.put("w", content(SIZE));
        server.fail(fault, answers);
        let dir = tempfile::tempdir().unwrap();
        let fetcher = server.fetcher(dir.path());
        let error = server
            .fetch(&fetcher, std::slice::from_ref(&file))
            .unwrap_err();
        assert_eq!(error.reason(), reason, "{fault:?}: {error}");
        assert!(
            error
                .message()
                .contains(&format!("https://{}/model/w", server.host)),
            "{fault:?}: {}",
            error.message()
        );
        assert_eq!(
            fs::read_dir(dir.path().join("blobs/sha256"))
                .unwrap()
                .count(),
            0,
            "{fault:?}"
        );
        assert!(!dir.path().join("models/model").exists(), "{fault:?}");
        // The same place, put right.
        server.fail(Fault::None, 0);
        server.fetch(&fetcher, &[file]).unwrap();
    }
}

#[test]
fn a_server_without_time_is_asked_again_and_one_that_was_wrong_once_too() {
    for fault in [
        Fault::Status(503),
        Fault::Status(429),
        Fault::Cut(0),
        Fault::Wrong(7),
    ] {
        let server = Server::start();
        let file = server.put("w", content(5000));
        server.fail(fault, 1);
        let dir = tempfile::tempdir().unwrap();
        server.fetch(&server.fetcher(dir.path()), &[file]).unwrap();
        assert_eq!(server.requests().len(), 2, "{fault:?}");
    }
}

#[test]
fn a_host_that_is_not_there_is_named_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start();
    let file = server.put("w", content(10));
    // A port on which nobody listens.
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let mut settings = server.settings();
    settings.plain_http.push(free.to_string());
    let cache = weir_fetch::Cache::open(dir.path(), None).unwrap();
    let fetcher = weir_fetch::Fetcher::new(cache, settings).unwrap();
    let uri = format!("https://{free}/x");
    let (files, meter) = ([file], Meter::default());
    let result = run(async {
        let asked = request(&uri, &files);
        // It is being tried again, and says so.
        let fetch = fetcher.fetch(&asked, &meter);
        tokio::time::timeout(std::time::Duration::from_secs(2), fetch).await
    });
    assert!(result.is_err(), "it goes on trying");
    let trouble = meter.read().trouble.unwrap();
    assert!(
        trouble.contains(&uri) && trouble.contains("refused"),
        "{trouble}"
    );
}

#[test]
fn the_rate_is_kept_to_by_all_files_together() {
    let server = Server::start();
    let files: Vec<_> = (0..4)
        .map(|n| server.put(&format!("w{n}"), content(100_000 + n)))
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let mut settings = server.settings();
    settings.bytes_per_second = Some(400_000);
    let cache = weir_fetch::Cache::open(dir.path(), None).unwrap();
    let fetcher = weir_fetch::Fetcher::new(cache, settings).unwrap();
    let started = std::time::Instant::now();
    server.fetch(&fetcher, &files).unwrap();
    // 400 kB, less one burst and the debt of the last piece of each file: a lower bound, so that a slow machine passes too.
    assert!(
        started.elapsed().as_millis() >= 500,
        "{:?}",
        started.elapsed()
    );
}

#[test]
fn a_signature_beside_the_files_is_kept_only_when_it_is_accepted() {
    let server = Server::start();
    let files = [server.put("w", content(10))];
    server.put("model.sig", b"good".to_vec());
    let dir = tempfile::tempdir().unwrap();
    let fetcher = server.fetcher(dir.path());
    let uri = server.uri();
    let fetch = |accepted: &'static [u8]| {
        let accept = move |bytes: &[u8]| {
            if bytes == accepted {
                Ok(())
            } else {
                Err("another key's".to_owned())
            }
        };
        let asked = weir_fetch::Request {
            signature: Some(weir_fetch::Signature {
                path: "model.sig".parse().unwrap(),
                accept: &accept,
            }),
            ..request(&uri, &files)
        };
        run(fetcher.fetch(&asked, &Meter::default()))
    };
    let error = fetch(b"other").unwrap_err();
    assert!(
        matches!(&error, FetchError::Signature { cause, .. } if cause == "another key's"),
        "{error}"
    );
    assert_eq!(
        fs::read_dir(dir.path().join("blobs/sha256"))
            .unwrap()
            .count(),
        0
    );
    let fetched = fetch(b"good").unwrap();
    assert_eq!(fs::read(fetched.dir.join("model.sig")).unwrap(), b"good");
    // From then on nobody needs to be asked, until another one is needed.
    server.fail(Fault::Status(500), 1);
    fetch(b"good").unwrap();
    server.fail(Fault::None, 0);
    server.put("model.sig", b"new".to_vec());
    let fetched = fetch(b"new").unwrap();
    assert_eq!(fs::read(fetched.dir.join("model.sig")).unwrap(), b"new");
}
