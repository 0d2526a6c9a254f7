//! A folder as a reader of the documents has it, and what runs in it.

use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};
use weir_e2e::documents::Shell;
use weir_e2e::{Weir, repository, weir_command};

use crate::fetching::Files;

/// Words in capitals stand for the reader's own names. Longer ones first: one may begin with another.
const NAMES: &[(&str, &str)] = &[
    ("tq NAME", "tq acme"),
    ("mv NAME", "mv tiny-chat-v2"),
    ("RELEASE.pub", "release.pub"),
    ("CERT.pem", "tls.crt"),
    ("DIRECTORY", "my-model"),
    ("TENANT", "acme"),
    ("MODEL", "tiny-chat"),
];

/// Commands that need nothing that runs.
const ALONE: &[&str] = &[
    "! weir verify",
    "cp ",
    "mkdir",
    "openssl",
    "printf",
    "sed ",
    "weir capacity",
    "weir fetch",
    "weir key",
    "weir keygen",
    "weir quantize",
    "weir sign",
    "weir verify",
];

/// Names and values of an environment.
type Settings = Vec<(String, String)>;

/// What works on a folder itself.
const CLOSED: &str = "--data .weir";

pub(super) struct Scene {
    folder: tempfile::TempDir,
    /// What the last `weir up` started.
    running: Option<Weir>,
    /// Where models are that are elsewhere.
    elsewhere: Option<Files>,
}

impl Scene {
    /// A folder with the examples, manifests, a model and keys of the reader's own, and a certificate.
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        let program = std::fs::canonicalize(weir_command().get_program()).unwrap();
        for bin in ["bin", "target/release"] {
            std::fs::create_dir_all(path.join(bin)).unwrap();
            symlink(&program, path.join(bin).join("weir")).unwrap();
        }
        symlink(repository().join("examples"), path.join("examples")).unwrap();
        copy(&path.join("examples/quickstart"), &path.join("manifests"));
        copy(
            &path.join("examples/models/tiny-chat-v2"),
            &path.join("my-model"),
        );
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let cert = params.self_signed(&key).unwrap();
        std::fs::write(path.join("tls.crt"), cert.pem()).unwrap();
        std::fs::write(path.join("tls.key"), key.serialize_pem()).unwrap();
        let scene = Self {
            folder,
            running: None,
            elsewhere: None,
        };
        scene.shell("weir keygen --out release");
        scene.shell("weir sign my-model --model tiny-chat --version 3 --key release.key");
        scene
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Does what a command says; a command that fails, or that a watcher has to end early, fails the test unless it watches.
    pub(super) fn play(&mut self, page: &str, written: &str) {
        self.prepare(page, written);
        let mut command = written.replace("cargo run --release --bin weir --", "weir");
        for (name, own) in NAMES {
            command = command.replace(name, own);
        }
        if let Some((settings, arguments)) = starts(&command) {
            self.start(&settings, &arguments);
            return;
        }
        let alone = ALONE.iter().any(|start| command.starts_with(start));
        if self.running.is_none() && !alone && !command.contains(CLOSED) {
            self.start(&[], &["manifests".to_owned()]);
        }
        eprintln!("{page}: {command}");
        self.shell(&self.here(&command));
    }

    /// What a page says in words before a command.
    fn prepare(&mut self, page: &str, command: &str) {
        let path = self.path().to_owned();
        match (page, command) {
            ("README.md", "mkdir manifests") => {
                std::fs::remove_dir_all(path.join("manifests")).unwrap();
            }
            ("README.md", "weir up manifests") => own_model(&path),
            ("README.md", "weir rollout status --watch") => {
                self.start(&[], &["examples/quickstart".to_owned()]);
            }
            ("README.md", "weir rollout promote tiny-chat --full") => self.next_version(),
            ("docs/tutorial.md", "weir rollout promote tiny-chat --full") => {
                self.until("weir rollout status", &["v2", "step 1"]);
            }
            ("docs/tutorial.md", "weir rollout abort tiny-chat") => {
                self.until("weir rollout status", &["v3", "ShadowDiffers"]);
            }
            ("docs/tutorial.md", command) if command.contains("tiny-chat-v3 --model") => {
                self.until("weir rollout history tiny-chat", &["serves v2"]);
            }
            ("docs/models.md", "weir fetch manifests") => self.move_away(),
            ("docs/models.md", "weir fetch --import models.tar") => {
                std::fs::remove_dir_all(path.join("cache")).unwrap();
            }
            ("docs/ledger.md", command) if command.contains("--export acme.ndjson") => {
                self.shell(&self.here(
                    "curl -fsS http://127.0.0.1:8080/usage/ledger -H 'Authorization: Bearer acme-dev-key' > acme.ndjson",
                ));
            }
            (_, command) if command.starts_with("weir keygen") => {
                for file in ["release.key", "release.pub"] {
                    std::fs::remove_file(path.join(file)).unwrap();
                }
            }
            // A folder is read when no gateway has it open.
            (_, command) if command.contains(CLOSED) => self.stop(),
            (_, command) if command.contains("--log weir.log") => {
                std::fs::write(path.join("weir.log"), "a line\n").unwrap();
            }
            _ => {}
        }
    }

    /// The model of the manifests is on a web server.
    fn move_away(&mut self) {
        let models = repository().join("examples/models");
        let files = Files::of(&models);
        let path = self.path().join("manifests/model.yaml");
        let text = std::fs::read_to_string(&path).unwrap();
        let here = format!("file:{}", models.display());
        std::fs::write(
            path,
            text.replace(&here, &format!("https://{}", files.host)),
        )
        .unwrap();
        self.elsewhere = Some(files);
    }

    /// The environment of a reader who keeps fetched files beside the rest.
    fn environment(&self) -> Vec<(&'static str, String)> {
        let cache = self.path().join("cache").display().to_string();
        let host = self.elsewhere.as_ref().map(|files| files.host.clone());
        let mut all = vec![("WEIR_MODEL_CACHE", cache)];
        all.extend(host.map(|host| ("WEIR_FETCH_PLAIN_HTTP", host)));
        all
    }

    /// A higher version beside the one that serves, in its first step.
    fn next_version(&mut self) {
        self.stop();
        let manifests = self.path().join("manifests");
        std::fs::remove_dir_all(&manifests).unwrap();
        copy(&self.path().join("examples/quickstart"), &manifests);
        self.start(&[], &["manifests".to_owned()]);
        self.shell(
            "weir sign my-model --model tiny-chat --version 3 --key release.key --emit-manifest manifests/next.yaml",
        );
        trust(self.path(), "tiny-chat");
        let next = manifests.join("next.yaml");
        let text = std::fs::read_to_string(&next).unwrap();
        let text = text.replace("stage: Registered", "stage: Production");
        std::fs::write(next, text).unwrap();
        self.until("weir rollout status", &["v3", "step"]);
    }

    /// What a reader sees before they go on.
    fn until(&self, command: &str, shows: &[&str]) {
        let mut text = String::new();
        let seen = weir_e2e::wait_for(command, 90, || {
            text = self.shell(command);
            shows.iter().all(|one| text.contains(one)).then_some(())
        });
        assert!(seen.is_ok(), "{seen:?}, {shows:?}: {text}");
    }

    fn stop(&mut self) {
        if let Some(before) = self.running.take() {
            before.stop(30).unwrap();
        }
    }

    /// Starts `weir up` in place of what ran before, on free ports, and has it serve something.
    fn start(&mut self, settings: &[(String, String)], arguments: &[String]) {
        self.stop();
        let mut command = weir_command();
        command.current_dir(self.path());
        command.envs(settings.iter().map(|(name, value)| (name, value)));
        command.envs(self.environment());
        let (manifests, data) = (self.path().join(&arguments[0]), self.path().join(".weir"));
        let more: Vec<&str> = arguments[1..].iter().map(String::as_str).collect();
        let mut weir = Weir::spawn_as(command, &manifests, &data, "127.0.0.1:0", &more).unwrap();
        weir.wait_ready().unwrap();
        if weir.listen.starts_with("http://") {
            let client = weir.client("acme-dev-key");
            let models = client.get("/v1/models").unwrap().body;
            let model = &models["data"][0]["id"];
            let asked = client.post("/inference", &question(model)).unwrap();
            let events = client.all_events(&asked.run_id(), 0).unwrap();
            assert!(events.last().is_some_and(weir_e2e::Event::is_terminal));
            // And something that is refused, to be counted.
            let mut much = question(model);
            much["maxOutputTokens"] = json!(1_000_000);
            let refused = client.post("/inference", &much).unwrap();
            assert!(refused.status >= 400, "{}", refused.body);
        }
        self.running = Some(weir);
    }

    /// What is written there is for the usual ports; a test takes free ones.
    fn here(&self, command: &str) -> String {
        let Some(weir) = &self.running else {
            return command.to_owned();
        };
        let port = |base: &str| base.rsplit(':').next().unwrap_or_default().to_owned();
        let (listen, admin) = (port(&weir.listen), port(&weir.admin));
        command
            .replace("localhost:8080", &format!("localhost:{listen}"))
            .replace("127.0.0.1:8080", &format!("127.0.0.1:{listen}"))
            .replace("127.0.0.1:9090", &format!("127.0.0.1:{admin}"))
    }

    /// Runs a command in a shell; it must succeed.
    fn shell(&self, command: &str) -> String {
        let mut environment = self.environment();
        if let Some(weir) = &self.running {
            environment.push(("WEIR_URL", weir.listen.clone()));
            environment.push(("WEIR_ADMIN", weir.admin.clone()));
        }
        let shell = Shell {
            folder: self.path().to_owned(),
            programs: self.path().join("bin"),
            environment,
        };
        shell.run(command).unwrap()
    }
}

/// Settings and arguments of `weir up`, where a command is that.
fn starts(command: &str) -> Option<(Settings, Vec<String>)> {
    let mut words = command.split_whitespace().peekable();
    let mut settings = Settings::new();
    while let Some((name, value)) = words.peek().and_then(|word| word.split_once('=')) {
        settings.push((name.to_owned(), value.to_owned()));
        words.next();
    }
    (words.next() == Some("weir") && words.next() == Some("up"))
        .then(|| (settings, words.map(str::to_owned).collect()))
}

fn question(model: &Value) -> Value {
    json!({"model": model, "input": "What is 12 plus 30?", "maxOutputTokens": 4})
}

/// A folder's files; artifacts are named from where a manifest lies.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    let models = repository().join("examples/models");
    for file in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(file.file_name());
        if file.path().extension().is_some_and(|kind| kind == "yaml") {
            let text = std::fs::read_to_string(file.path()).unwrap();
            let text = text.replace("file:../models", &format!("file:{}", models.display()));
            std::fs::write(target, text).unwrap();
        } else {
            std::fs::copy(file.path(), target).unwrap();
        }
    }
}

/// What README says of a model of one's own: two files of the quickstart with names changed, and the version is to serve.
fn own_model(folder: &Path) {
    let manifests = folder.join("manifests");
    let emitted = manifests.join("my-model-v1.yaml");
    let text = std::fs::read_to_string(&emitted).unwrap();
    let serving = text.replace("stage: Registered", "stage: Production");
    assert_ne!(text, serving, "the emitted version is registered only");
    std::fs::write(&emitted, serving).unwrap();
    for file in ["pool.yaml", "tenants.yaml"] {
        let text = std::fs::read_to_string(folder.join("examples/quickstart").join(file)).unwrap();
        std::fs::write(manifests.join(file), text.replace("tiny-chat", "my-model")).unwrap();
    }
}

/// The release key counts for a model.
fn trust(folder: &Path, model: &str) {
    let key = std::fs::read_to_string(folder.join("release.pub")).unwrap();
    let key = key.trim_end().replace('\n', "\n        ");
    let path = folder.join("manifests/trust.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    let more = format!(
        "    - id: release\n      models: [\"{model}\"]\n      publicKey: |\n        {key}\n"
    );
    std::fs::write(path, text + &more).unwrap();
}
