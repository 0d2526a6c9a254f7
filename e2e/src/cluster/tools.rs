//! What the machine must have for a node: its own programs, and being root.

use std::path::Path;

use anyhow::{Result, bail};

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

/// The packages that are missing.
pub fn missing() -> Vec<&'static str> {
    TOOLS
        .iter()
        .filter(|(path, _)| {
            let bare = path.strip_prefix("/usr").unwrap_or(path);
            !Path::new(path).exists() && !Path::new(bare).exists()
        })
        .map(|(_, package)| *package)
        .collect()
}

/// Whether a node can run here.
///
/// # Errors
/// Why not.
pub(super) fn check() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("a node needs root: it makes networks, mounts and cgroups of its own");
    }
    let missing = missing();
    if !missing.is_empty() {
        bail!(
            "a node needs packages: apt-get install -y --no-install-recommends {}",
            missing.join(" ")
        );
    }
    Ok(())
}
