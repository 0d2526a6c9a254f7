//! What goes when there is no room.

use std::fs;

use weir_fetch::{Cache, FetchError, Fetched, Fetcher, Meter, Request};
use weir_manifest::FileEntry;

use crate::server::{Server, content, run};

fn fetch(
    server: &Server,
    cache: &Cache,
    name: &str,
    files: &[FileEntry],
) -> Result<Fetched, FetchError> {
    let fetcher = Fetcher::new(cache.clone(), server.settings()).unwrap();
    let uri = server.uri();
    let request = Request {
        uri: &uri,
        name,
        files,
        signature: None,
    };
    run(fetcher.fetch(&request, &Meter::default()))
}

#[test]
fn the_least_recently_used_goes_and_what_is_in_use_stays() {
    let server = Server::start();
    let file = |n: usize| server.put(&format!("w{n}"), content(1000 + n));
    let files: Vec<_> = (0..4).map(file).collect();
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(dir.path(), Some(2100)).unwrap();
    let held = fetch(&server, &cache, "a", &files[..1]).unwrap();
    drop(fetch(&server, &cache, "b", &files[1..2]).unwrap());
    // Neither may go for what is too large in any case.
    let mut names = cache.names().unwrap();
    names.sort();
    assert_eq!(names, ["a", "b"]);
    let third = fetch(&server, &cache, "c", &files[2..3]).unwrap();
    assert!(!cache.model("b").exists() && cache.model("a").join("w0").exists());
    let error = fetch(&server, &cache, "d", &files[3..]).unwrap_err();
    assert!(
        matches!(error, FetchError::CacheFull { limit: 2100, .. }),
        "{error}"
    );
    assert!(
        error.message().contains("retire versions"),
        "{}",
        error.message()
    );
    drop(held);
    fetch(&server, &cache, "d", &files[3..]).unwrap();
    assert!(!cache.model("a").exists() && third.dir.join("w2").exists());
    let blobs = fs::read_dir(dir.path().join("blobs/sha256"))
        .unwrap()
        .count();
    assert_eq!(blobs, 2);
}

#[test]
fn a_file_that_is_damaged_where_it_lies_is_fetched_anew_and_the_others_are_not() {
    let server = Server::start();
    let files = [
        server.put("one", content(500)),
        server.put("two", content(900)),
    ];
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(dir.path(), None).unwrap();
    let held = fetch(&server, &cache, "a", &files).unwrap();
    assert!(!run(cache.mend("a")).unwrap());
    let path = held.dir.join("two");
    let inode =
        |path: &std::path::Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let before = inode(&held.dir.join("one"));
    let mut bytes = content(900);
    bytes[7] ^= 1;
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    fs::write(&path, &bytes).unwrap();
    // Of the right size, it is not noticed by who only looks.
    fetch(&server, &cache, "a", &files).unwrap();
    assert_eq!(fs::read(&path).unwrap(), bytes);
    assert!(run(cache.mend("a")).unwrap());
    fetch(&server, &cache, "a", &files).unwrap();
    assert_eq!(fs::read(&path).unwrap(), content(900));
    assert_eq!(
        inode(&held.dir.join("one")),
        before,
        "it was not fetched again"
    );
    // A file that was replaced under its name only is another one there, and the same where it is kept.
    fs::remove_file(&path).unwrap();
    fs::write(&path, &bytes).unwrap();
    assert!(run(cache.mend("a")).unwrap());
    fetch(&server, &cache, "a", &files).unwrap();
    assert_eq!(fs::read(&path).unwrap(), content(900));
    assert!(!run(cache.mend("nobody")).unwrap());
}

#[test]
fn what_is_to_be_left_free_of_the_volume_is_no_room_for_files() {
    let server = Server::start();
    let file = server.put("w", content(1000));
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(dir.path(), None).unwrap().leaving_free(100);
    let error = fetch(&server, &cache, "a", std::slice::from_ref(&file)).unwrap_err();
    assert!(matches!(error, FetchError::NoSpace { .. }), "{error}");
    let cache = Cache::open(dir.path(), None).unwrap().leaving_free(0);
    fetch(&server, &cache, "a", &[file]).unwrap();
}

#[test]
fn a_file_of_two_versions_lies_there_once() {
    let server = Server::start();
    let (one, shared) = (
        server.put("one", content(500)),
        server.put("shared", content(900)),
    );
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(dir.path(), None).unwrap();
    let first = fetch(&server, &cache, "a", &[one, shared.clone()]).unwrap();
    let second = fetch(&server, &cache, "b", &[shared]).unwrap();
    assert_eq!(server.requests().len(), 2);
    assert_eq!(
        fs::read(first.dir.join("shared")).unwrap(),
        fs::read(second.dir.join("shared")).unwrap()
    );
}

#[test]
fn a_folder_in_which_something_is_missing_or_too_much_is_made_anew() {
    let server = Server::start();
    let files = [server.put("x", content(500)), server.put("y", content(900))];
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(dir.path(), None).unwrap();
    let fetched = fetch(&server, &cache, "a", &files).unwrap();
    fs::remove_file(fetched.dir.join("x")).unwrap();
    fs::write(fetched.dir.join("z"), "z").unwrap();
    fetch(&server, &cache, "a", &files).unwrap();
    assert!(fetched.dir.join("x").exists() && !fetched.dir.join("z").exists());
    // The blob itself.
    fs::remove_file(fetched.dir.join("y")).unwrap();
    fs::remove_file(
        dir.path()
            .join("blobs/sha256")
            .join(files[1].sha256.to_hex()),
    )
    .unwrap();
    fetch(&server, &cache, "a", &files).unwrap();
    assert_eq!(fs::read(fetched.dir.join("y")).unwrap(), content(900));
}

#[test]
fn a_volume_without_room_is_named_before_a_byte_comes() {
    let server = Server::start();
    let mut file = server.put("w", content(10));
    file.size = 1 << 60;
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(dir.path(), None).unwrap();
    let error = fetch(&server, &cache, "a", &[file]).unwrap_err();
    assert!(
        matches!(
            error,
            FetchError::NoSpace {
                needed: 0x1000_0000_0000_0000,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(server.requests().len(), 0);
}
