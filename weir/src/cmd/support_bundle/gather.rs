//! Where each part comes from. Every text passes through [`redact`] on its way in, also those that should hold nothing to leave out.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Args;
use super::cluster;
use super::redact::{self, manifest};
use crate::client;
use crate::source::Source;

/// Longest file that is read of the system or of a log's end.
const MOST_BYTES: u64 = 8 << 20;

/// Pages of the admin port, and what they are called in the bundle. None of them holds text of a tenant.
const PAGES: &[(&str, &str)] = &[
    ("/readyz", "readiness.txt"),
    ("/metrics", "metrics.txt"),
    ("/objects", "objects.json"),
    ("/rollouts", "rollouts.json"),
    ("/console/rollouts", "rollouts-course.json"),
    ("/console/state", "state.json"),
];

/// Facts of the machine.
const SYSTEM: &[(&str, &str)] = &[
    ("/proc/version", "system/kernel.txt"),
    ("/etc/os-release", "system/os-release.txt"),
    ("/proc/meminfo", "system/meminfo.txt"),
    ("/proc/loadavg", "system/loadavg.txt"),
    ("/proc/pressure/cpu", "system/pressure-cpu.txt"),
    ("/proc/pressure/memory", "system/pressure-memory.txt"),
    ("/proc/pressure/io", "system/pressure-io.txt"),
];

/// What goes into a bundle.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// Contents by name.
    pub(super) files: BTreeMap<String, String>,
    /// What could not be had, and why.
    pub(super) missing: Vec<String>,
}

impl Gathered {
    pub(super) fn take(&mut self, name: &str, text: Result<String>) {
        match text {
            Ok(text) => {
                self.files.insert(name.to_owned(), redact::text(&text));
            }
            Err(error) => self
                .missing
                .push(redact::text(&format!("{name}: {error:#}"))),
        }
    }
}

pub(super) async fn gather(args: &Args) -> Result<Gathered> {
    let mut gathered = Gathered::default();
    let source = args.place.open().await?;
    match &source {
        Source::Admin(admin) => pages(admin, &mut gathered).await,
        Source::Cluster { .. } => cluster::gather(&source, args.log_lines, &mut gathered).await,
    }
    for (path, name) in SYSTEM {
        gathered.take(name, read(Path::new(path)));
    }
    if let Some(folder) = &args.manifests {
        manifests(folder, &mut gathered);
    }
    for (index, log) in args.log.iter().enumerate() {
        let name = log
            .file_name()
            .map_or_else(|| "log".into(), |name| name.to_string_lossy());
        let end = end_of(log, args.log_lines);
        gathered.take(&format!("logs/{index}-{name}"), end);
    }
    let about = about(&source, &gathered);
    gathered.take("bundle.json", Ok(about));
    Ok(gathered)
}

async fn pages(admin: &str, gathered: &mut Gathered) {
    for (path, name) in PAGES {
        let page = page(admin, path).await;
        let page = page.map(|text| {
            if *path == "/objects" {
                objects(&text)
            } else {
                text
            }
        });
        gathered.take(name, page);
    }
}

async fn page(admin: &str, path: &str) -> Result<String> {
    let answer = client::admin(admin).send("GET", path, None).await?;
    match client::text(answer).await {
        // What stands against readiness is what it is asked for.
        Err(error) if path.ends_with("/readyz") => Ok(format!("{error:#}\n")),
        text => text,
    }
}

/// Objects without what a kubectl or an Argo CD has noted in them: whole former versions.
pub(super) fn objects(text: &str) -> String {
    let Ok(mut objects) = serde_json::from_str::<Value>(text) else {
        return "[]".to_owned();
    };
    for object in objects.as_array_mut().into_iter().flatten() {
        manifest(object);
    }
    format!("{objects:#}")
}

fn read(path: &Path) -> Result<String> {
    let file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
    let mut text = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(file, MOST_BYTES), &mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn manifests(folder: &Path, gathered: &mut Gathered) {
    let files = match std::fs::read_dir(folder) {
        Ok(files) => files,
        Err(error) => {
            let missing = format!("manifests: {}: {error}", folder.display());
            return gathered.missing.push(missing);
        }
    };
    for path in files.flatten().map(|file| file.path()) {
        let is_yaml = path
            .extension()
            .is_some_and(|end| end == "yaml" || end == "yml");
        if !is_yaml {
            continue;
        }
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let written = read(&path).and_then(|text| documents(&text));
        gathered.take(&format!("manifests/{name}"), written);
    }
}

/// Every object of a file, written anew: comments may hold anything.
fn documents(text: &str) -> Result<String> {
    use serde::Deserialize as _;
    let mut written = String::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        let mut object = Value::deserialize(document).context(
            "left out whole: it is no YAML, so its secrets cannot be told from the rest",
        )?;
        manifest(&mut object);
        written.push_str("---\n");
        written.push_str(&serde_yaml::to_string(&object)?);
    }
    Ok(written)
}

/// The last lines of a file.
fn end_of(path: &Path, lines: usize) -> Result<String> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let mut file = std::fs::File::open(path).with_context(|| path.display().to_string())?;
    let length = file.metadata()?.len();
    let from = length.saturating_sub(MOST_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    // The first line may have begun before: half a secret would not be known as one.
    let whole = if from > 0 {
        text.split_once('\n').map_or("", |(_, rest)| rest)
    } else {
        &text
    };
    let all: Vec<&str> = whole.lines().collect();
    let last = &all[all.len().saturating_sub(lines)..];
    Ok(last.join("\n") + "\n")
}

fn about(source: &Source, gathered: &Gathered) -> String {
    let of = match source {
        Source::Admin(admin) => admin.clone(),
        Source::Cluster { namespace, .. } => format!("namespace {namespace}"),
    };
    let sizes: BTreeMap<&String, usize> = gathered
        .files
        .iter()
        .map(|(name, text)| (name, text.len()))
        .collect();
    let about = json!({
        "weir": env!("CARGO_PKG_VERSION"),
        "target": format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "writtenAt": jiff::Timestamp::now().to_string(),
        "of": of,
        "files": sizes,
        "missing": gathered.missing,
    });
    format!("{about:#}\n")
}
