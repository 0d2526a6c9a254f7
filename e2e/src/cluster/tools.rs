//! What the machine must have for a node, and for what stands beside one: its own programs, and being root.

use std::path::Path;

use anyhow::{Result, bail};

use super::Layer;

/// A program or folder, and the Debian package that has it.
const TOOLS: &[(&str, &str)] = &[
    ("/usr/sbin/runc", "runc"),
    ("/usr/lib/cni/bridge", "containernetworking-plugins"),
    ("/usr/sbin/nft", "nftables"),
    ("/usr/sbin/conntrack", "conntrack"),
    ("/usr/bin/buildah", "buildah"),
    ("/usr/bin/mmdebstrap", "mmdebstrap"),
    ("/usr/sbin/ip", "iproute2"),
    ("/usr/bin/strip", "binutils"),
];
/// What Argo CD needs beside them.
const ARGOCD: &[(&str, &str)] = &[
    ("/usr/bin/redis-server", "redis-server"),
    ("/usr/bin/git", "git"),
];

/// The packages that a layer needs and that are missing.
pub fn missing(layer: Layer) -> Vec<&'static str> {
    let more = match layer {
        Layer::Node => &[],
        Layer::ArgoCd => ARGOCD,
        _ => return Vec::new(),
    };
    TOOLS
        .iter()
        .chain(more)
        .filter(|(path, _)| {
            let bare = path.strip_prefix("/usr").unwrap_or(path);
            !Path::new(path).exists() && !Path::new(bare).exists()
        })
        .map(|(_, package)| *package)
        .collect()
}

/// Whether a layer with a node can run here.
///
/// # Errors
/// Why not.
pub(super) fn check(layer: Layer) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("a node needs root: it makes networks, mounts and cgroups of its own");
    }
    let missing = missing(layer);
    if !missing.is_empty() {
        bail!(
            "it needs packages: apt-get install -y --no-install-recommends {}",
            missing.join(" ")
        );
    }
    Ok(())
}
