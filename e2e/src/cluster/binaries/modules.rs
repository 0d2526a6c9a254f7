//! The Go modules and the programs that they pin.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Module;
use crate::repository;

/// What reports as its version what `go.mod` pins; a test holds the two together.
pub(super) const KUBERNETES_FLAGS: &str = "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 \
    -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36";

/// What Helm takes for the cluster's version where it has none to ask.
const HELM_FLAGS: &str = "-s -w \
    -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36 \
    -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor=36";

/// Everything that can be built, in the order in which it is worth building.
pub const MODULES: &[Module] = &[
    Module {
        folder: "etcd",
        ldflags: "-s -w",
        tags: "",
        programs: &[("etcd", "go.etcd.io/etcd/server/v3")],
    },
    Module {
        folder: "kubernetes",
        ldflags: KUBERNETES_FLAGS,
        tags: "",
        programs: &[
            ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
            ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
            (
                "kube-controller-manager",
                "k8s.io/kubernetes/cmd/kube-controller-manager",
            ),
            ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
            ("kubelet", "k8s.io/kubernetes/cmd/kubelet"),
            ("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy"),
        ],
    },
    Module {
        folder: "containerd",
        ldflags: "-s -w",
        tags: "no_btrfs,no_devmapper",
        programs: &[
            (
                "containerd",
                "github.com/containerd/containerd/v2/cmd/containerd",
            ),
            (
                "containerd-shim-runc-v2",
                "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            ),
            ("ctr", "github.com/containerd/containerd/v2/cmd/ctr"),
        ],
    },
    Module {
        folder: "coredns",
        ldflags: "-s -w",
        tags: "",
        programs: &[("coredns", "github.com/coredns/coredns")],
    },
    Module {
        folder: "kwok",
        ldflags: "-s -w",
        tags: "",
        programs: &[("kwok", "sigs.k8s.io/kwok/cmd/kwok")],
    },
    Module {
        folder: "charts",
        ldflags: HELM_FLAGS,
        tags: "",
        programs: &[
            ("helm", "helm.sh/helm/v4/cmd/helm"),
            ("helm3", "helm.sh/helm/v3/cmd/helm"),
            (
                "kubeconform",
                "github.com/yannh/kubeconform/cmd/kubeconform",
            ),
        ],
    },
    Module {
        folder: "argo-lua",
        ldflags: "-s -w",
        tags: "",
        programs: &[("argo-lua", "weir.dev/cluster/argo-lua")],
    },
    Module {
        folder: "kustomize",
        ldflags: "-s -w",
        tags: "",
        programs: &[("kustomize", "sigs.k8s.io/kustomize/kustomize/v5")],
    },
    Module {
        folder: "argocd",
        ldflags: "-s -w",
        tags: "",
        programs: &[("argocd", "github.com/argoproj/argo-cd/v3/cmd")],
    },
    Module {
        folder: "places",
        ldflags: "-s -w",
        tags: "",
        programs: &[
            (
                "registry",
                "github.com/distribution/distribution/v3/cmd/registry",
            ),
            ("versitygw", "github.com/versity/versitygw/cmd/versitygw"),
        ],
    },
    Module {
        folder: "kube-score",
        ldflags: "-s -w",
        tags: "",
        programs: &[("kube-score", "github.com/zegl/kube-score/cmd/kube-score")],
    },
];

/// Where the files are of a module that `xtask/cluster/FOLDER` pins; fetched once into Go's own cache.
///
/// # Errors
/// There is no Go, or the module cannot be fetched.
pub fn module_files(folder: &str, module: &str) -> Result<PathBuf> {
    let output = Command::new("go")
        .args(["mod", "download", "-json", module])
        .current_dir(repository().join("xtask/cluster").join(folder))
        .output()
        .context("Go 1.26 or newer is needed")?;
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let found = said["Dir"].as_str();
    let found = found.with_context(|| format!("go mod download {module} in {folder}: {said}"))?;
    Ok(found.into())
}
