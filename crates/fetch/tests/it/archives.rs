//! Versions that are carried by hand.

use std::fs;

use weir_fetch::{Cache, export, import};

use crate::server::{Server, content, run};

#[test]
fn what_is_exported_is_imported_where_there_is_no_network() {
    let server = Server::start();
    let files = [
        server.put("config.json", content(700)),
        server.put("sub/w", content(1 << 20)),
    ];
    let dir = tempfile::tempdir().unwrap();
    let fetcher = server.fetcher(&dir.path().join("here"));
    server.fetch(&fetcher, &files).unwrap();
    for name in ["out", "out.tar"] {
        let out = dir.path().join(name);
        export(fetcher.cache(), "model", &out).unwrap();
        let there = Cache::open(&dir.path().join(format!("there-{name}")), None).unwrap();
        let imported = run(import(&there, &out)).unwrap();
        assert_eq!(imported[0].0, "model");
        assert_eq!(
            fs::read(there.model("model").join("sub/w")).unwrap(),
            content(1 << 20)
        );
        // And is there for whoever would have fetched it.
        let before = server.requests().len();
        let fetcher = weir_fetch::Fetcher::new(there, server.settings()).unwrap();
        server.fetch(&fetcher, &files).unwrap();
        assert_eq!(server.requests().len(), before);
    }
}

#[test]
fn an_archive_with_another_content_is_refused() {
    let server = Server::start();
    let files = [server.put("w", content(1 << 20))];
    let dir = tempfile::tempdir().unwrap();
    let fetcher = server.fetcher(&dir.path().join("here"));
    server.fetch(&fetcher, &files).unwrap();
    for name in ["out", "out.tar"] {
        let out = dir.path().join(name);
        export(fetcher.cache(), "model", &out).unwrap();
        let file = if name == "out" {
            out.join("blobs/sha256").join(files[0].sha256.to_hex())
        } else {
            out.clone()
        };
        let mut bytes = fs::read(&file).unwrap();
        let at = bytes.len() - 20_000;
        bytes[at] ^= 1;
        fs::remove_file(&file).unwrap();
        fs::write(&file, bytes).unwrap();
        let there = Cache::open(&dir.path().join(format!("there-{name}")), None).unwrap();
        let error = run(import(&there, &out)).unwrap_err();
        assert_eq!(error.reason(), "ArchiveInvalid", "{error}");
        assert!(!there.model("model").exists());
    }
}
