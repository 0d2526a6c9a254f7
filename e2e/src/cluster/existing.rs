//! A cluster that exists already: tests that need nothing but objects in namespaces of their own run on it too.
//!
//! It is named by a setting of its own and not by `KUBECONFIG`, so that nobody's cluster is taken for a test's because a shell knows it.
//! A cluster that Weir is installed on is refused: the definitions of its kinds would be replaced, and removed afterwards.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::{Binaries, Kubectl, Layer};

/// Names the kubeconfig of an existing cluster.
pub const EXISTING: &str = "WEIR_E2E_KUBECONFIG";
/// The label of namespaces that tests made.
pub const TEST_LABEL: &str = "weir.dev/e2e";
/// What a test makes outside namespaces.
const CLUSTER_WIDE: &str =
    "customresourcedefinitions,validatingadmissionpolicies,validatingadmissionpolicybindings";

/// A cluster that exists already.
pub struct Existing {
    kubectl: Kubectl,
    before: BTreeSet<String>,
    _cache: TempDir,
}

impl Existing {
    /// The cluster of a kubeconfig, whose user is an administrator.
    ///
    /// # Errors
    /// It does not answer, or Weir is installed there.
    pub fn at(kubeconfig: &Path) -> Result<Self> {
        let cache = tempfile::Builder::new()
            .prefix("weir-existing-")
            .tempdir()?;
        let kubectl = Kubectl::new(&program(), kubeconfig, cache.path());
        let before = cluster_wide(&kubectl)
            .with_context(|| format!("the cluster of {}", kubeconfig.display()))?;
        let installed = before.iter().find(|name| is_ours(name));
        ensure!(
            installed.is_none(),
            "the cluster of {} has {installed:?} already: take one that Weir is not installed on",
            kubeconfig.display()
        );
        Ok(Self {
            kubectl,
            before,
            _cache: cache,
        })
    }

    /// kubectl as the kubeconfig's user.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Removes what tests made since.
    ///
    /// # Errors
    /// Something cannot be removed.
    pub fn clean(&self) -> Result<()> {
        // Where no controller empties namespaces they stay behind, on their way out.
        let label = format!("{TEST_LABEL}=true");
        let spaces = ["delete", "namespaces", "--wait=false", "-l", &label];
        self.kubectl.run(&spaces)?;
        for name in cluster_wide(&self.kubectl)?.difference(&self.before) {
            if is_ours(name) {
                // A definition goes when its objects are gone: that is waited for.
                let gone = ["delete", "--ignore-not-found", "--timeout=2m", name];
                self.kubectl.run(&gone)?;
            }
        }
        Ok(())
    }
}

/// The existing cluster's kubectl, where the tests were given one. The kinds are installed there.
///
/// # Errors
/// It does not take the kinds.
pub fn existing() -> Result<Option<Kubectl>> {
    let Some(kubeconfig) = std::env::var_os(EXISTING) else {
        return Ok(None);
    };
    let cache = std::env::temp_dir().join(format!("weir-existing-{}", std::process::id()));
    let kubectl = Kubectl::new(&program(), Path::new(&kubeconfig), &cache);
    kubectl.apply_crds()?;
    Ok(Some(kubectl))
}

/// The kubectl that was built, else that of the machine.
fn program() -> PathBuf {
    let built = Binaries::find(Layer::Api).ok();
    let built = built.and_then(|built| Some(built.path("kubectl").ok()?.to_owned()));
    built.unwrap_or_else(|| "kubectl".into())
}

fn cluster_wide(kubectl: &Kubectl) -> Result<BTreeSet<String>> {
    let names = kubectl.run(&["get", CLUSTER_WIDE, "-o", "name"])?;
    Ok(names.lines().map(str::to_owned).collect())
}

/// Whether an object is one of Weir's, by `kind/name`.
fn is_ours(object: &str) -> bool {
    let name = object.rsplit('/').next().unwrap_or_default();
    name.ends_with(".weir.dev") || name.starts_with("weir-")
}
