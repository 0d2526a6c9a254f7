//! The commands in documents, run as they are written there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use weir_e2e::{Weir, repository, weir_command};

/// Commands that need what a test does not have: a cluster.
const ELSEWHERE: &[&str] = &["kubectl"];

/// Lines of console blocks that begin with a prompt, without it and without remarks.
fn commands(file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(repository().join("docs").join(file)).unwrap();
    let prompts = text.lines().filter_map(|line| line.strip_prefix("$ "));
    let bare = prompts.map(|line| line.split("  #").next().unwrap_or(line).trim().to_owned());
    bare.collect()
}

/// Words as a shell would split them: with quotes, and nothing else.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.extend((!word.is_empty()).then(|| std::mem::take(&mut word))),
            _ => word.push(c),
        }
    }
    words.extend((!word.is_empty()).then_some(word));
    words
}

/// A folder as the documents think of it: manifests, and a certificate of the reader's own.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let example = repository().join("examples/quickstart");
    let manifests = folder.path().join("manifests");
    std::fs::create_dir(&manifests).unwrap();
    for file in std::fs::read_dir(&example).unwrap().flatten() {
        let text = std::fs::read_to_string(file.path()).unwrap();
        // Artifacts are named from where a manifest lies.
        let models = repository().join("examples/models");
        let text = text.replace("file:../models", &format!("file:{}", models.display()));
        std::fs::write(manifests.join(file.file_name()), text).unwrap();
    }
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let cert = params.self_signed(&key).unwrap();
    std::fs::write(folder.path().join("tls.crt"), cert.pem()).unwrap();
    std::fs::write(folder.path().join("tls.key"), key.serialize_pem()).unwrap();
    folder
}

/// What is written there is for the usual ports; a test takes free ones.
fn here(mut words: Vec<String>, weir: Option<&Weir>) -> Vec<String> {
    if let Some(weir) = weir {
        for word in &mut words {
            if word.starts_with("https://localhost:") || word.starts_with("http://127.0.0.1:8080") {
                let port = weir.listen.rsplit(':').next().unwrap_or_default();
                let host = word.rsplit_once(':').map_or("", |(host, _)| host);
                *word = format!("{host}:{port}");
            }
        }
    }
    words
}

fn run(command: &mut Command, line: &str) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{line}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Starts what a line starts, in place of what ran before.
fn start(folder: &Path, words: &[String], data: &Path) -> Weir {
    let manifests: PathBuf = folder.join(&words[2]);
    let more: Vec<&str> = words[3..].iter().map(String::as_str).collect();
    let mut command = weir_command();
    command.current_dir(folder);
    let mut weir = Weir::spawn_as(command, &manifests, data, "127.0.0.1:0", &more).unwrap();
    weir.wait_ready().unwrap();
    weir
}

#[test]
fn the_commands_of_the_documents_do_what_they_say() {
    for file in ["identity.md", "safety.md", "rollouts.md"] {
        let folder = folder();
        // Where `weir up` keeps its state unless it is told otherwise.
        let data = folder.path().join(".weir");
        let mut weir: Option<Weir> = None;
        let mut count = BTreeMap::new();
        for line in commands(file) {
            let words = words(&line);
            if ELSEWHERE.contains(&words[0].as_str()) {
                continue;
            }
            assert_eq!(words[0], "weir", "{file}: {line}");
            *count.entry(words[1].clone()).or_insert(0) += 1;
            if words[1] == "up" {
                if let Some(before) = weir.take() {
                    before.stop(30).unwrap();
                }
                weir = Some(start(folder.path(), &words, &data));
                continue;
            }
            if weir.is_none() && words[1] != "key" {
                let plain = ["weir", "up", "manifests"].map(str::to_owned);
                weir = Some(start(folder.path(), &plain, &data));
            }
            let mut command = weir_command();
            command
                .args(&here(words, weir.as_ref())[1..])
                .current_dir(folder.path());
            if let Some(weir) = &weir {
                command
                    .env("WEIR_URL", &weir.listen)
                    .env("WEIR_ADMIN", &weir.admin);
            }
            run(&mut command, &line);
        }
        if file == "identity.md" {
            assert!(
                count["up"] >= 2 && count["key"] >= 1 && count["get"] >= 1,
                "{count:?}"
            );
        }
    }
}
