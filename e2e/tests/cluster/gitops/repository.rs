//! A git repository that begins as `examples/gitops`.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

/// Where the manifests are in it.
const MANIFESTS: &str = "examples/gitops/manifests";

/// What Argo CD follows.
pub(super) struct Repository {
    folder: TempDir,
}

impl Repository {
    /// The example's manifests as its files, nothing committed.
    pub(super) fn of_the_example() -> Self {
        let folder = tempfile::Builder::new()
            .prefix("weir-git-")
            .tempdir()
            .unwrap();
        let repository = Self { folder };
        std::fs::create_dir_all(repository.path("")).unwrap();
        for entry in std::fs::read_dir(weir_e2e::repository().join(MANIFESTS)).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name();
            std::fs::copy(entry.path(), repository.path(name.to_str().unwrap())).unwrap();
        }
        repository.git(&["init", "--quiet", "--initial-branch=main"]);
        repository
    }

    /// Where it is cloned from.
    pub(super) fn url(&self) -> String {
        format!("file://{}", self.folder.path().display())
    }

    /// Writes a manifest and lists it.
    pub(super) fn write(&self, name: &str, object: &Value) {
        std::fs::write(self.path(name), serde_yaml::to_string(object).unwrap()).unwrap();
        self.replace("kustomization.yaml", |text| format!("{text}- {name}\n"));
    }

    /// Takes a manifest out.
    pub(super) fn remove(&self, name: &str) {
        std::fs::remove_file(self.path(name)).unwrap();
        let line = format!("- {name}\n");
        self.replace("kustomization.yaml", |text| text.replace(&line, ""));
    }

    /// Changes a file's text, which must change.
    pub(super) fn replace(&self, name: &str, change: impl FnOnce(&str) -> String) {
        let before = std::fs::read_to_string(self.path(name)).unwrap();
        let after = change(&before);
        assert_ne!(before, after, "{name}");
        std::fs::write(self.path(name), after).unwrap();
    }

    /// Commits everything.
    pub(super) fn commit(&self, message: &str) {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", message]);
    }

    /// Commits what undoes the last commit.
    pub(super) fn revert(&self) {
        self.git(&["revert", "--no-edit", "HEAD"]);
    }

    /// The newest commit.
    pub(super) fn head(&self) -> String {
        self.git(&["rev-parse", "HEAD"]).trim().to_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(MANIFESTS).join(name)
    }

    fn git(&self, arguments: &[&str]) -> String {
        let output = Command::new("git")
            .args([
                "-c",
                "user.name=People",
                "-c",
                "user.email=people@example.com",
            ])
            .args(arguments)
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "git {arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// A manifest as the example has it.
pub(super) fn example(name: &str) -> Value {
    let text = std::fs::read_to_string(weir_e2e::repository().join(MANIFESTS).join(name)).unwrap();
    serde_yaml::from_str(&text).unwrap()
}
