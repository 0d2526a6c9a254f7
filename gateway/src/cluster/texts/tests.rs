//! Versions that are elsewhere: a server that is the API server and the place in one.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use base64::Engine as _;
use kube::{Client, Config};
use serde_json::json;
use weir_manifest::{ArtifactManifest, FileEntry, MANIFEST_FILE};

use super::*;

/// Answers each path with its bytes, everything else with 404; the paths that were asked for.
fn serve(listener: TcpListener, pages: BTreeMap<String, Vec<u8>>) -> Arc<Mutex<Vec<String>>> {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            drop(answer(stream, &pages, &noted));
        }
    });
    asked
}

fn answer(
    mut stream: TcpStream,
    pages: &BTreeMap<String, Vec<u8>>,
    asked: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte)? > 0 {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head);
    let path = head.split([' ', '?']).nth(1).unwrap_or_default();
    asked.lock().push(path.to_owned());
    let (status, body) = match pages.get(path) {
        Some(body) => ("200 OK", body.as_slice()),
        None => ("404 Not Found", &b"{}"[..]),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}

/// The files of a model of letters, by name, and its manifest's digest.
fn model() -> (BTreeMap<String, Vec<u8>>, String) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/model/tests/golden/qwen3");
    let vocab: serde_json::Map<_, _> = ('a'..='z')
        .chain("0123456789.,!?".chars())
        .enumerate()
        .map(|(id, letter)| (letter.to_string(), id.into()))
        .collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(golden.join(name), folder.path().join(name)).unwrap();
    }
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let key = weir_manifest::SigningKey::generate(weir_manifest::Algorithm::Ed25519).unwrap();
    let signed = weir_manifest::sign_directory(&weir_manifest::SignRequest {
        dir: folder.path(),
        identity: &weir_manifest::VersionIdentity {
            model: "letters".to_owned(),
            version: 1,
            context_tokens: Some(64),
            request_schema: 1,
            adapter_of: None,
        },
        key: &key,
        certificates: None,
        signature_file: &weir_manifest::SIGNATURE_FILE.parse().unwrap(),
        progress: None,
    })
    .unwrap();
    let files = std::fs::read_dir(folder.path()).unwrap().flatten();
    let files = files.map(|file| {
        let name = file.file_name().into_string().unwrap();
        (name, std::fs::read(file.path()).unwrap())
    });
    (files.collect(), signed.manifest_digest.to_string())
}

fn plan(digest: &str, uri: &str, files: &[FileEntry]) -> Served {
    serde_json::from_value(json!({
        "model": "letters", "version": 1, "digest": digest, "pool": "p", "tier": "standard",
        "price": {"promptMicrosPerToken": 0, "cachedMicrosPerToken": 0, "outputMicrosPerToken": 0},
        "contextTokens": 64, "fallback": [], "dir": "",
        "fetch": {"uri": uri, "secret": "place", "files": files},
    }))
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_elsewhere_is_read_without_its_weights_and_holds_nobody_up() {
    let (files, digest) = model();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let text = base64::engine::general_purpose::STANDARD.encode(&address);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "place"},
        "data": {"WEIR_FETCH_PLAIN_HTTP": text},
    });
    let mut pages: BTreeMap<String, Vec<u8>> = files
        .iter()
        .map(|(name, bytes)| (format!("/letters/{name}"), bytes.clone()))
        .collect();
    pages.insert(
        "/api/v1/namespaces/ns/secrets/place".to_owned(),
        secret.to_string().into_bytes(),
    );
    let asked = serve(listener, pages);
    let entries = |names: &BTreeMap<String, Vec<u8>>| -> Vec<FileEntry> {
        let manifest = ArtifactManifest::from_bytes(&names[MANIFEST_FILE]).unwrap();
        let own = FileEntry {
            path: MANIFEST_FILE.parse().unwrap(),
            sha256: Digest::of(&names[MANIFEST_FILE]),
            size: names[MANIFEST_FILE].len() as u64,
        };
        manifest.files.into_iter().chain([own]).collect()
    };
    let folder = tempfile::tempdir().unwrap();
    let changed = Arc::new(Notify::new());
    let place = Place {
        folder: folder.path().to_owned(),
        client: Client::try_from(Config::new(format!("http://{address}").parse().unwrap()))
            .unwrap(),
        namespace: "ns".to_owned(),
    };
    let texts = Texts::new(place, Arc::clone(&changed));
    let there = plan(
        &digest,
        &format!("https://{address}/letters"),
        &entries(&files),
    );
    assert!(texts.get(&there).is_none(), "it is on its way");
    changed.notified().await;
    let text = texts.get(&there).unwrap();
    assert!(texts.has(&digest) && !texts.has_failed());
    assert_eq!(text.model.config.vocab_size, 40);
    let weights = "/letters/model.safetensors".to_owned();
    assert!(!asked.lock().contains(&weights), "{asked:?}");
    // A place where it is not: tried again after a while, and nothing is served meanwhile.
    let other = format!("sha256:{}", "0".repeat(64));
    let mut gone = plan(&other, &format!("https://{address}/gone"), &entries(&files));
    gone.fetch.as_mut().unwrap().files[0].sha256 = Digest::of(b"other");
    assert!(texts.get(&gone).is_none());
    changed.notified().await;
    assert!(texts.has_failed() && texts.get(&gone).is_none());
}
