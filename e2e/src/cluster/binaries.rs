//! The programs a cluster is made of: pinned by Go modules in the repository, built once, kept by the hash of what pins them.

mod modules;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

pub use self::modules::{MODULES, module_files};
use super::tools;
use crate::repository;

/// A Go module under `xtask/cluster` that pins programs.
#[derive(Debug)]
pub struct Module {
    /// Its folder.
    pub folder: &'static str,
    /// Flags of the linker.
    ldflags: &'static str,
    /// Build tags.
    tags: &'static str,
    /// The programs, by name and Go package.
    programs: &'static [(&'static str, &'static str)],
}

/// How much of a cluster there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// etcd and kube-apiserver: objects and their rules.
    Api,
    /// A node that runs pods.
    Node,
    /// Nodes and pods that are only pretended, by the thousand.
    Scale,
    /// The interpreter of Argo CD: what its scripts mean, without a cluster.
    Argo,
    /// Argo CD itself, beside a node.
    ArgoCd,
    /// Helm: what charts mean, without a cluster.
    Chart,
    /// The older Helm, and what judges what a chart renders.
    ChartFull,
    /// A registry and an S3 server, that models are fetched from.
    Places,
}

impl Layer {
    /// All layers, the cheapest first.
    pub const ALL: [Self; 8] = [
        Self::Api,
        Self::Node,
        Self::Scale,
        Self::Argo,
        Self::Chart,
        Self::ChartFull,
        Self::Places,
        Self::ArgoCd,
    ];

    /// Its name in the command line and in `WEIR_CLUSTER_LAYERS`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Node => "node",
            Self::Scale => "scale",
            Self::Argo => "argo",
            Self::ArgoCd => "argocd",
            Self::Chart => "chart",
            Self::ChartFull => "chart-full",
            Self::Places => "places",
        }
    }

    /// The layer of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layer| layer.name() == name)
    }

    /// Whether the machine has what the layer needs beside its programs.
    ///
    /// # Errors
    /// What is missing.
    pub fn check(self) -> Result<()> {
        match self {
            Self::Node | Self::ArgoCd => tools::check(self),
            Self::Api | Self::Argo | Self::Chart | Self::ChartFull | Self::Places | Self::Scale => {
                Ok(())
            }
        }
    }

    /// The layer that it stands on, whose programs it needs too.
    const fn below(self) -> Option<Self> {
        match self {
            Self::ArgoCd => Some(Self::Node),
            _ => None,
        }
    }

    /// The programs it needs.
    fn programs(self) -> impl Iterator<Item = &'static str> {
        let below = self.below().map_or(&[][..], Self::own_programs);
        below.iter().chain(self.own_programs()).copied()
    }

    const fn own_programs(self) -> &'static [&'static str] {
        match self {
            Self::Api => &["etcd", "kube-apiserver", "kubectl"],
            Self::Node => &[
                "etcd",
                "kube-apiserver",
                "kubectl",
                "kube-controller-manager",
                "kube-scheduler",
                "kubelet",
                "kube-proxy",
                "containerd",
                "containerd-shim-runc-v2",
                "ctr",
                "coredns",
            ],
            Self::Scale => &[
                "etcd",
                "kube-apiserver",
                "kubectl",
                "kube-controller-manager",
                "kube-scheduler",
                "kwok",
            ],
            Self::Chart => &["helm"],
            Self::Argo => &["argo-lua"],
            Self::ArgoCd => &["argocd", "kustomize"],
            Self::ChartFull => &["helm", "helm3", "kubeconform", "kube-score"],
            Self::Places => &["registry", "versitygw"],
        }
    }
}

/// Where the programs of a layer are.
#[derive(Clone, Debug)]
pub struct Binaries {
    paths: BTreeMap<&'static str, PathBuf>,
}

impl Binaries {
    /// The programs of a layer, where all were built before.
    ///
    /// # Errors
    /// Some were not.
    pub fn find(layer: Layer) -> Result<Self> {
        let mut paths = BTreeMap::new();
        for program in layer.programs() {
            let path = module_of(program)?.0.cache()?.join(program);
            ensure!(
                path.is_file(),
                "\"{program}\" is not built; `cargo xtask e2e --layer {}` does it, and needs Go",
                layer.name()
            );
            paths.insert(program, path);
        }
        Ok(Self { paths })
    }

    /// The programs of a layer; builds what is missing and says so.
    ///
    /// # Errors
    /// There is no Go, or a program does not build.
    pub fn build(layer: Layer) -> Result<Self> {
        for program in layer.programs() {
            let (module, package) = module_of(program)?;
            module.build(program, package)?;
        }
        Self::find(layer)
    }

    /// Where a program is.
    ///
    /// # Errors
    /// The layer does not have it.
    pub fn path(&self, program: &str) -> Result<&Path> {
        self.paths
            .get(program)
            .map(PathBuf::as_path)
            .with_context(|| format!("the layer has no \"{program}\""))
    }

    /// A command of a program.
    ///
    /// # Errors
    /// As for [`Binaries::path`].
    pub fn command(&self, program: &str) -> Result<Command> {
        self.path(program).map(Command::new)
    }
}

fn module_of(program: &str) -> Result<(&'static Module, &'static str)> {
    MODULES
        .iter()
        .find_map(|module| {
            let found = module.programs.iter().find(|(name, _)| *name == program)?;
            Some((module, found.1))
        })
        .with_context(|| format!("no module pins \"{program}\""))
}

impl Module {
    fn path(&self) -> PathBuf {
        repository().join("xtask/cluster").join(self.folder)
    }

    /// The folder of what was built: named by everything that decides what is built, outside the checkout so that clones share it.
    fn cache(&self) -> Result<PathBuf> {
        let mut hash = Sha256::new();
        for path in self.sources()? {
            hash.update(
                std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?,
            );
        }
        hash.update(format!("{}\n{}\n", self.ldflags, self.tags));
        let name = format!("{}-{}", self.folder, hex::encode(&hash.finalize()[..6]));
        Ok(cache_root()?.join(name))
    }

    /// What decides what is built: `go.mod`, `go.sum`, and what names or is the programs.
    fn sources(&self) -> Result<Vec<PathBuf>> {
        let folder = self.path();
        let listed = std::fs::read_dir(&folder)
            .with_context(|| format!("reading {}", folder.display()))?
            .flatten();
        let mut code: Vec<PathBuf> = listed
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|end| end == "go"))
            .collect();
        code.sort();
        Ok([folder.join("go.mod"), folder.join("go.sum")]
            .into_iter()
            .chain(code)
            .collect())
    }

    fn build(&self, program: &str, package: &str) -> Result<()> {
        let folder = self.cache()?;
        let built = folder.join(program);
        if built.is_file() {
            return Ok(());
        }
        std::fs::create_dir_all(&folder)?;
        // Two checkouts that want the same program build it once.
        let lock = File::create(folder.join("lock"))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
        if built.is_file() {
            return Ok(());
        }
        eprintln!("building {program} into {}", folder.display());
        let start = Instant::now();
        let part = folder.join(format!("{program}.part"));
        let status = Command::new("go")
            .args(["build", "-trimpath", "-mod=readonly", "-tags", self.tags])
            .args(["-ldflags", self.ldflags, "-o"])
            .arg(&part)
            .arg(package)
            .current_dir(self.path())
            .env("CGO_ENABLED", "0")
            .status();
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => bail!(
                "go build {package} in {} ended with {status}",
                self.path().display()
            ),
            Err(error) => bail!("Go 1.26 or newer is needed to build \"{program}\": {error}"),
        }
        std::fs::rename(&part, &built)?;
        eprintln!("built {program} in {:.0} s", start.elapsed().as_secs_f64());
        Ok(())
    }
}

/// `WEIR_CLUSTER_CACHE`, else the user's cache folder.
pub(super) fn cache_root() -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os("WEIR_CLUSTER_CACHE") {
        return Ok(folder.into());
    }
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))
        .context("neither WEIR_CLUSTER_CACHE, XDG_CACHE_HOME nor HOME is set")?;
    Ok(cache.join("weir/cluster"))
}

#[cfg(test)]
mod tests {
    use super::modules::KUBERNETES_FLAGS;
    use super::*;

    #[test]
    fn every_program_of_every_layer_is_pinned() {
        for layer in Layer::ALL {
            for program in layer.programs() {
                let (module, package) = module_of(program).unwrap();
                let read = |name: &str| std::fs::read_to_string(module.path().join(name));
                let go_mod = read("go.mod").unwrap();
                if go_mod.starts_with(&format!("module {package}\n")) {
                    // Written here; what it is made of is pinned by the sums.
                    assert!(!read("go.sum").unwrap().is_empty(), "{package}");
                    continue;
                }
                let tools = read("tools.go").unwrap();
                assert!(tools.contains(&format!("\"{package}\"")), "{package}");
            }
        }
    }

    #[test]
    fn the_version_that_kubernetes_reports_is_the_one_that_is_pinned() {
        let module = &MODULES[1];
        let pinned = std::fs::read_to_string(module.path().join("go.mod")).unwrap();
        let version = pinned
            .lines()
            .find_map(|line| line.trim().strip_prefix("require k8s.io/kubernetes "))
            .unwrap();
        assert!(
            KUBERNETES_FLAGS.contains(&format!("gitVersion={version} ")),
            "{version}"
        );
    }

    #[test]
    fn a_changed_pin_has_a_folder_of_its_own() {
        let flags = Module {
            folder: "etcd",
            ldflags: "-w",
            tags: "",
            programs: &[],
        };
        assert_ne!(flags.cache().unwrap(), MODULES[0].cache().unwrap());
    }
}
