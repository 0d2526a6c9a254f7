//! Places that models are fetched from, the real ones: a registry and an S3 server. Their programs are built once (`cargo xtask e2e --layer
//! places`); without them the tests that need them say so.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use weir_e2e::cluster::{self, Binaries, Layer};
use weir_e2e::wait_for;

/// Who may read.
pub(crate) const USER: &str = "access";
pub(crate) const SECRET: &str = "the-right-secret";
/// The same for the registry, which keeps bcrypt hashes.
const HTPASSWD: &str = "access:$2a$04$Q/mNuAuK7Js.QMgpliGhRuQZNIvlPI/h9J6SvBMq0b4hpWPhbGjpq\n";

/// The programs; `None` where they are not built.
pub(crate) fn programs(test: &str) -> Option<Binaries> {
    cluster::layer(Layer::Places, test).unwrap()
}

/// A server's process; killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill().and_then(|()| self.0.wait()));
    }
}

fn start(command: &mut Command, address: &str) -> Server {
    let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
    let server = Server(quiet.spawn().unwrap());
    let answers = || std::net::TcpStream::connect(address).ok();
    wait_for("the server listens", 60, answers).unwrap();
    server
}

/// An address that nobody listens at.
pub(crate) fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Every file of a folder.
pub(crate) fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let name = |entry: &fs::DirEntry| entry.file_name().into_string().unwrap();
    fs::read_dir(dir)
        .unwrap()
        .flatten()
        .map(|entry| (name(&entry), fs::read(entry.path()).unwrap()))
        .collect()
}

/// An S3 server whose buckets are folders.
pub(crate) struct Bucket {
    pub(crate) address: String,
    root: PathBuf,
    _server: Server,
}

impl Bucket {
    /// With one bucket, `models`.
    pub(crate) fn start(programs: &Binaries, root: &Path) -> Self {
        let address = free_address();
        fs::create_dir_all(root.join("models")).unwrap();
        let mut command = programs.command("versitygw").unwrap();
        command.args(["--port", &address, "--access", USER, "--secret", SECRET]);
        let server = start(command.arg("posix").arg(root), &address);
        Self {
            address,
            root: root.to_owned(),
            _server: server,
        }
    }

    /// Where the objects below a prefix are files.
    pub(crate) fn folder(&self, prefix: &str) -> PathBuf {
        self.root.join("models").join(prefix)
    }

    /// Puts a folder's files below a prefix; the URI.
    pub(crate) fn put(&self, prefix: &str, dir: &Path) -> String {
        let to = self.folder(prefix);
        fs::create_dir_all(&to).unwrap();
        for (name, bytes) in files(dir) {
            fs::write(to.join(name), bytes).unwrap();
        }
        format!("s3://models/{prefix}")
    }
}

/// What whoever reads from an S3 server at `address` needs in its environment.
pub(crate) fn s3_environment(address: &str, secret: &str) -> Vec<(&'static str, String)> {
    vec![
        ("AWS_ACCESS_KEY_ID", USER.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", secret.to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_ENDPOINT_URL", format!("http://{address}")),
    ]
}

/// A registry.
pub(crate) struct Registry {
    pub(crate) address: String,
    authorization: Option<String>,
    _server: Server,
}

impl Registry {
    /// One that everybody may read.
    pub(crate) fn open(programs: &Binaries, root: &Path) -> Self {
        Self::start(programs, root, None)
    }

    /// One that [`USER`] may read.
    pub(crate) fn closed(programs: &Binaries, root: &Path) -> Self {
        fs::create_dir_all(root).unwrap();
        let path = root.join("htpasswd");
        fs::write(&path, HTPASSWD).unwrap();
        Self::start(programs, root, Some(&path))
    }

    fn start(programs: &Binaries, root: &Path, users: Option<&Path>) -> Self {
        let address = free_address();
        fs::create_dir_all(root).unwrap();
        let mut settings = json!({
            "version": 0.1, "http": {"addr": address}, "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": root.join("blobs")}},
        });
        if let Some(users) = users {
            settings["auth"] = json!({"htpasswd": {"realm": "weir", "path": users}});
        }
        let path = root.join("registry.yml");
        fs::write(&path, serde_yaml::to_string(&settings).unwrap()).unwrap();
        let mut command = programs.command("registry").unwrap();
        command.env("OTEL_TRACES_EXPORTER", "none");
        let server = start(command.arg("serve").arg(&path), &address);
        Self {
            address,
            authorization: users.map(|_| format!("Basic {}", basic(SECRET))),
            _server: server,
        }
    }

    /// Puts a blob into a repository; what a manifest says of it.
    pub(crate) fn push(&self, media_type: &str, bytes: &[u8]) -> Value {
        let registry = &self.address;
        let mut request = ureq::post(format!("http://{registry}/v2/team/random/blobs/uploads/"));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let begun = request.send_empty().unwrap();
        let location = begun.headers()["location"].to_str().unwrap().to_owned();
        let location = if location.starts_with('/') {
            format!("http://{registry}{location}")
        } else {
            location
        };
        let mark = if location.contains('?') { '&' } else { '?' };
        let digest = format!("sha256:{}", hex::encode(Sha256::digest(bytes)));
        let mut request = ureq::put(format!("{location}{mark}digest={digest}"));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        request.send(bytes).unwrap();
        json!({"mediaType": media_type, "digest": digest, "size": bytes.len()})
    }

    /// Names layers.
    pub(crate) fn tag(&self, tag: &str, layers: &[Value]) {
        let config = self.push("application/vnd.cncf.model.config.v1+json", b"{}");
        let manifest = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "artifactType": "application/vnd.cncf.model.manifest.v1+json", "config": config, "layers": layers,
        });
        let address = &self.address;
        let mut request = ureq::put(format!("http://{address}/v2/team/random/manifests/{tag}"))
            .header("content-type", "application/vnd.oci.image.manifest.v1+json");
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        request.send(manifest.to_string()).unwrap();
    }

    /// A folder's files, each a layer, as `ModelPack`'s tools write raw layers, and plain tools single files.
    pub(crate) fn put(&self, tag: &str, dir: &Path) {
        let mut layers = Vec::new();
        for (name, bytes) in files(dir) {
            let mut layer = self.push("application/vnd.cncf.model.weight.v1.raw", &bytes);
            let key = if name == "model.sig" {
                "org.opencontainers.image.title"
            } else {
                "org.cncf.model.filepath"
            };
            layer["annotations"] = json!({key: name});
            layers.push(layer);
        }
        self.tag(tag, &layers);
    }
}

fn basic(secret: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(format!("{USER}:{secret}"))
}

/// A docker `config.json` with credentials for a registry.
pub(crate) fn docker_config(registry: &str, secret: &str) -> String {
    json!({"auths": {registry: {"auth": basic(secret)}}}).to_string()
}
