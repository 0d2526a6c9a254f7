//! A registry that gives tokens, as the public ones do, and a system that trusts nobody.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;
use weir_fetch::{Cache, FetchError, Fetcher, Meter, Settings};
use weir_manifest::{Digest, FileEntry};

use crate::server::{Server, content, request, run};

const CHILD: &str = "WEIR_FETCH_TEST_TRUSTS_NOBODY";
/// `acme:secret`, as HTTP has it.
const USER: &str = "Basic YWNtZTpzZWNyZXQ=";
/// What the server of tokens has to be asked.
const QUERY: &str = "scope=repository%3Ateam%2Ftiny%3Apull&service=tiny%2Cregistry";

/// The registry; it serves until the test's process ends. A token is good for one question.
struct Registry {
    host: String,
    file: FileEntry,
    shared: Arc<Shared>,
}

struct Shared {
    host: String,
    bytes: Vec<u8>,
    /// How many were given.
    tokens: AtomicUsize,
    /// Whether the last was not yet used.
    is_good: AtomicBool,
}

struct Answer {
    status: &'static str,
    challenge: String,
    body: Vec<u8>,
}

impl Answer {
    fn new(status: &'static str, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            challenge: String::new(),
            body: body.into(),
        }
    }
}

impl Registry {
    fn start(bytes: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let file = FileEntry {
            path: "w".parse().unwrap(),
            sha256: Digest::of(&bytes),
            size: bytes.len() as u64,
        };
        let shared = Arc::new(Shared {
            host: host.clone(),
            bytes,
            tokens: AtomicUsize::new(0),
            is_good: AtomicBool::new(false),
        });
        let served = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                served.serve(stream);
            }
        });
        Self { host, file, shared }
    }

    fn tokens(&self) -> usize {
        self.shared.tokens.load(Ordering::SeqCst)
    }
}

impl Shared {
    fn serve(&self, mut stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let line = lines.next().unwrap().unwrap();
        let path = line.split(' ').nth(1).unwrap();
        let headers = lines.map_while(Result::ok);
        let mut told = String::new();
        for header in headers.take_while(|line| !line.is_empty()) {
            if let Some((name, value)) = header.split_once(": ")
                && name.eq_ignore_ascii_case("authorization")
            {
                value.clone_into(&mut told);
            }
        }
        let Answer {
            status,
            challenge,
            body,
        } = self.answer(path, &told);
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\n{challenge}content-length: {length}\r\nconnection: close\r\n\r\n"
        );
        let _ = stream.write_all(head.as_bytes());
        let _ = stream.write_all(&body);
    }

    fn answer(&self, path: &str, told: &str) -> Answer {
        if let Some(query) = path.strip_prefix("/token?") {
            let is_right = told == USER && query == QUERY;
            if !is_right {
                return Answer::new("401 Unauthorized", "who is that?");
            }
            let number = self.tokens.fetch_add(1, Ordering::SeqCst) + 1;
            self.is_good.store(true, Ordering::SeqCst);
            return Answer::new("200 OK", json!({"token": format!("t{number}")}).to_string());
        }
        let last = format!("Bearer t{}", self.tokens.load(Ordering::SeqCst));
        if told != last || !self.is_good.swap(false, Ordering::SeqCst) {
            let realm = format!("http://{}/token", self.host);
            let mut refusal = Answer::new("401 Unauthorized", "");
            refusal.challenge =
                format!("WWW-Authenticate: Bearer realm=\"{realm}\",service=\"tiny,registry\"\r\n");
            return refusal;
        }
        let digest = Digest::of(&self.bytes).to_string();
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": digest, "size": 2},
            "layers": [
                {"mediaType": "application/octet-stream", "digest": digest, "size": self.bytes.len()},
            ],
        });
        match path.strip_prefix("/v2/team/tiny/") {
            Some("manifests/1") => Answer::new("200 OK", manifest.to_string()),
            Some(blob) if blob == format!("blobs/{digest}") => {
                Answer::new("200 OK", self.bytes.clone())
            }
            _ => Answer::new("404 Not Found", ""),
        }
    }
}

fn fetch(host: &str, uri: &str, file: &FileEntry, secret: &str) -> Result<Vec<u8>, FetchError> {
    let root = tempfile::tempdir().unwrap();
    let auths = json!({"auths": {host: {"username": "acme", "password": secret}}});
    let settings = Settings {
        plain_http: vec![host.to_owned()],
        registries: Some(auths.to_string().into_bytes()),
        ..Settings::default()
    };
    let fetcher = Fetcher::new(Cache::open(root.path(), None).unwrap(), settings)?;
    let files = [file.clone()];
    let fetched = run(fetcher.fetch(&request(uri, &files), &Meter::default()))?;
    Ok(fs::read(fetched.dir.join("w")).unwrap())
}

#[test]
fn a_registry_is_given_a_token_of_the_server_it_names_and_another_when_that_ends() {
    let registry = Registry::start(content(5000));
    let uri = format!("oci://{}/team/tiny:1", registry.host);
    let error = fetch(&registry.host, &uri, &registry.file, "wrong").unwrap_err();
    assert_eq!(error.reason(), "ArtifactDenied", "{error}");
    assert!(error.message().contains("who is that?"), "{error}");
    let bytes = fetch(&registry.host, &uri, &registry.file, "secret").unwrap();
    assert!(bytes == content(5000));
    assert_eq!(
        registry.tokens(),
        2,
        "one for the manifest, one for the layer"
    );
}

/// Does nothing by itself: the next test starts it as a process.
#[test]
fn a_fetch_without_authorities() {
    let Ok(told) = std::env::var(CHILD) else {
        return;
    };
    let (host, uri, file): (String, String, FileEntry) = serde_json::from_str(&told).unwrap();
    fetch(&host, &uri, &file, "secret").unwrap();
}

#[test]
fn places_without_tls_are_fetched_from_where_a_system_has_no_authorities() {
    let server = Server::start();
    let file = server.put("w", content(700));
    let registry = Registry::start(content(700));
    let oci = format!("oci://{}/team/tiny:1", registry.host);
    for (host, uri) in [(&server.host, server.uri()), (&registry.host, oci)] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let name = "registries::a_fetch_without_authorities";
        command.args(["--exact", name, "--nocapture"]);
        command.env(CHILD, json!([host, uri, file]).to_string());
        command
            .env("SSL_CERT_FILE", "/nowhere")
            .env_remove("SSL_CERT_DIR");
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{uri}: {said}");
    }
}
