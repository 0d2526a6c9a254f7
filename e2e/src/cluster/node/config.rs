//! The configuration of a node's programs.

use std::path::Path;

use serde_json::{Value, json};

use super::{ADDRESS, PODS};
use crate::cluster::certificates::Issued;
use crate::cluster::images::image_name;

/// The name of the node.
pub(super) const NODE: &str = "node-0";
/// Namespaces, network, mounts: what the first process of a cluster does. `$1` is the folder, `$2` the name of its cgroup.
///
/// Whatever the programs write to places of the machine goes to the folder or to memory: `/run`, `/var/lib`, `/var/log`.
pub(super) const INIT: &str = r#"set -e
ip link set lo up
ip link add weir0 type bridge
ip addr add 198.18.0.1/24 dev weir0
ip link set weir0 up
# A program of the node itself needs a way to Services before kube-proxy may turn it elsewhere.
ip route add 198.19.0.0/24 dev weir0
echo 1 > /proc/sys/net/ipv4/ip_forward
mkdir -p "$1/varlib" "$1/varlib.work"
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/log
mount -t overlay overlay -o "lowerdir=/var/lib,upperdir=$1/varlib,workdir=$1/varlib.work" /var/lib
for it in /sys/fs/cgroup /sys/fs/cgroup/*; do
  [ -f "$it/cgroup.procs" ] || continue
  if [ -f "$it/cgroup.controllers" ]; then
    for on in cpu cpuset memory pids io hugetlb; do echo "+$on" > "$it/cgroup.subtree_control" || true; done
  fi
  mkdir -p "$it/$2"
  if [ "$it" = /sys/fs/cgroup ]; then break; fi
done
touch "$1/entered"
# The first process of its namespace takes in orphans; a shell that waits reaps them.
while :; do sleep 3600 & wait $!; done
"#;
/// Removes the cgroups; everything else that a cluster made went with its namespaces.
pub(super) const CLEANUP: &str = "#!/bin/sh
find /sys/fs/cgroup -maxdepth 2 -type d -name 'NAME' | while read -r it; do
  find \"$it\" -depth -type d -exec rmdir {} +
done 2>/dev/null
true
";

pub(super) fn cni(root: &Path) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "weir", "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
                "ipam": {
                    "type": "host-local", "dataDir": root.join("addresses"),
                    "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

pub(super) fn containerd(root: &Path) -> String {
    let root = root.display();
    let pause = image_name("pause");
    format!(
        r#"version = 3
root = "{root}/containerd/root"
state = "{root}/containerd/state"
[grpc]
  address = "{root}/containerd.sock"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  # Where CAP_SYS_RESOURCE is missing no score below the parent's can be set.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "{root}/cni"
"#
    )
}

pub(super) fn kubelet(root: &Path, authority: &Path, serving: &Issued, cgroup: &str) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "address": ADDRESS,
        "authentication": {
            "anonymous": {"enabled": false}, "webhook": {"enabled": true}, "x509": {"clientCAFile": authority},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": serving.certificate, "tlsPrivateKeyFile": serving.key,
        "clusterDomain": "cluster.local", "clusterDNS": [ADDRESS], "resolvConf": root.join("resolv.conf"),
        "failCgroupV1": false, "failSwapOn": false,
        "cgroupDriver": "cgroupfs", "cgroupRoot": format!("/{cgroup}"), "enforceNodeAllocatable": [],
        "containerRuntimeEndpoint": format!("unix://{}/containerd.sock", root.display()),
        "podLogsDir": root.join("pods"), "volumePluginDir": root.join("plugins"),
        "readOnlyPort": 0, "healthzPort": 0,
        // Images are loaded once and must stay, however full the machine's disk is.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%",
        },
        // A test waits for what these find out.
        "nodeStatusUpdateFrequency": "2s", "configMapAndSecretChangeDetectionStrategy": "Watch", "syncFrequency": "5s",
    })
}

pub(super) fn proxy(kubeconfig: &Path) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": "nftables", "clusterCIDR": PODS, "hostnameOverride": NODE,
        "clientConnection": {"kubeconfig": kubeconfig},
        // These are of the whole machine.
        "conntrack": {"maxPerCore": 0, "min": 0},
        "healthzBindAddress": "127.0.0.1:10256", "metricsBindAddress": "127.0.0.1:10249",
    })
}

pub(super) fn coredns(kubeconfig: &Path) -> String {
    format!(
        ".:53 {{\n  bind {ADDRESS}\n  errors\n  ready 127.0.0.1:8181\n  kubernetes cluster.local in-addr.arpa {{\n    \
         kubeconfig {}\n    ttl 2\n  }}\n}}\n",
        kubeconfig.display()
    )
}
