//! A Kubernetes cluster of a test's own, from programs that the repository pins (`xtask/cluster`) and builds once a version.
//!
//! Layers, each more real and slower than the one before:
//! [`ControlPlane`] is etcd and kube-apiserver on loopback, up in seconds, for everything that is about objects and their rules;
//! [`Node`] adds controllers, scheduler, kubelet, containerd, kube-proxy and `CoreDNS` in namespaces of their own, and runs real pods;
//! [`ArgoCd`] stands beside a node and follows a git repository;
//! [`Scale`] has controllers and scheduler too, and nodes and pods by the thousand that are only played.
//!
//! Beside them are the programs that charts are rendered and judged with, which need no cluster.
//!
//! A test asks for a layer with [`layer`] and says that it was skipped where there is none; `cargo xtask e2e` and `cargo xtask test` build
//! what is missing first and name the layers that must run in `WEIR_CLUSTER_LAYERS`, so that nothing is skipped in silence.

mod architecture;
mod argocd;
mod audit;
mod binaries;
mod certificates;
mod control_plane;
mod existing;
mod helm;
mod images;
mod kubectl;
mod node;
mod process;
mod scale;
mod tools;

use anyhow::Result;

pub use architecture::Architecture;
pub use argocd::ArgoCd;
pub use audit::{Audit, Call};
pub use binaries::{Binaries, Layer, MODULES, module_files};
pub use certificates::{Authority, Issued};
pub use control_plane::ControlPlane;
pub use existing::{EXISTING, Existing, TEST_LABEL, existing};
pub use helm::{Helm, objects};
pub use images::{Images, Measured, image_name, programs};
pub use kubectl::{Kubectl, Said};
pub use node::Node;
pub use process::Process;
pub use scale::Scale;
pub use tools::missing as missing_packages;

/// What `WEIR_CLUSTER_LAYERS` says where only an existing cluster is to be used.
pub const NO_LAYER: &str = "existing";

/// The programs of a layer; `None`, after a line that says so, where it cannot run on this machine and need not.
///
/// # Errors
/// `WEIR_CLUSTER_LAYERS` says that the layer must run, and it cannot.
pub fn layer(layer: Layer, test: &str) -> Result<Option<Binaries>> {
    let asked = std::env::var("WEIR_CLUSTER_LAYERS").ok();
    let named = |layers: &String| layers.split(',').any(|name| name == layer.name());
    let required = asked.as_ref().is_some_and(named);
    if asked.is_some() && !required {
        eprintln!(
            "{test}: SKIPPED: WEIR_CLUSTER_LAYERS does not name \"{}\"",
            layer.name()
        );
        return Ok(None);
    }
    match Binaries::find(layer).and_then(|found| layer.check().map(|()| found)) {
        Ok(binaries) => Ok(Some(binaries)),
        Err(error) if required => {
            Err(error.context(format!("{test} must run on layer \"{}\"", layer.name())))
        }
        Err(error) => {
            eprintln!("{test}: SKIPPED: {error:#}");
            Ok(None)
        }
    }
}
