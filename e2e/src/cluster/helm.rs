//! Helm, as a person would use it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize as _;
use serde_json::Value;
use tempfile::TempDir;

use super::kubectl::Said;
use crate::repository;

/// One version of Helm, with folders of its own.
pub struct Helm {
    program: PathBuf,
    kubeconfig: Option<PathBuf>,
    folder: TempDir,
}

impl Helm {
    /// A Helm that has no cluster.
    ///
    /// # Errors
    /// No folder can be made.
    pub fn new(program: &Path) -> Result<Self> {
        Ok(Self {
            program: program.to_owned(),
            kubeconfig: None,
            folder: tempfile::Builder::new().prefix("weir-helm-").tempdir()?,
        })
    }

    /// The same for the cluster of a kubeconfig.
    #[must_use]
    pub fn on(mut self, kubeconfig: &Path) -> Self {
        self.kubeconfig = Some(kubeconfig.to_owned());
        self
    }

    /// Runs it, whatever comes of it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn say(&self, arguments: &[&str]) -> Result<Said> {
        let mut command = Command::new(&self.program);
        for (name, folder) in [
            ("HELM_CACHE_HOME", "cache"),
            ("HELM_CONFIG_HOME", "config"),
            ("HELM_DATA_HOME", "data"),
        ] {
            command.env(name, self.folder.path().join(folder));
        }
        let none = self.folder.path().join("no-kubeconfig");
        let output = command
            .env("KUBECONFIG", self.kubeconfig.as_ref().unwrap_or(&none))
            .args(arguments)
            .current_dir(repository())
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        Ok(Said::of(&output))
    }

    /// Runs it and wants it to succeed; what it printed.
    ///
    /// # Errors
    /// It fails.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        let said = self.say(arguments)?;
        if !said.ok {
            bail!("helm {arguments:?}: {}{}", said.out, said.err);
        }
        Ok(said.out)
    }

    /// What the chart renders in namespace `weir` with these further arguments.
    ///
    /// # Errors
    /// It renders nothing, or what is no YAML.
    pub fn render(&self, arguments: &[&str]) -> Result<Vec<Value>> {
        let fixed = ["template", "weir", "charts/weir", "--namespace", "weir"];
        objects(&self.run(&[&fixed[..], arguments].concat())?)
    }
}

/// The objects of a text with many documents.
///
/// # Errors
/// One is no YAML.
pub fn objects(text: &str) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        let object = Value::deserialize(document).context("what was rendered")?;
        if !object.is_null() {
            objects.push(object);
        }
    }
    Ok(objects)
}
