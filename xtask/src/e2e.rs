//! `cargo xtask e2e`: builds a Kubernetes cluster from pinned programs, and runs the tests on it or holds it up for people.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use weir_e2e::cluster::{
    ArgoCd, Binaries, ControlPlane, EXISTING, Existing, Images, Layer, NO_LAYER, Node, Scale,
    image_name, missing_packages, programs,
};

use crate::test::{self, Extent};

/// What there is an image of.
const PARTS: [&str; 3] = ["operator", "gateway", "worker"];
const HELP: &str = "\
cargo xtask e2e                      run the tests of every layer that can run here
cargo xtask e2e --layer LAYER,…      run the tests that need nothing but these layers
cargo xtask e2e --kubeconfig FILE    run the tests that change only objects, on a cluster that exists already and has no Weir; its
                                     user must be an administrator, and what the tests made is removed afterwards
cargo xtask e2e up [--layer LAYER]   hold a cluster up, with the kinds installed, until Enter or Ctrl-C; the API server alone where no
                                     layer is named

  api     etcd and kube-apiserver (the default of `up`); needs Go
  argo    the interpreter of Argo CD; needs Go
  chart   Helm; needs Go
  chart-full   the older Helm, kubeconform and kube-score; needs Go
  places  a registry and an S3 server, that models are fetched from; needs Go
  scale   a thousand versions on nodes that kwok plays; needs Go
  node    real pods, from images made of the three Dockerfiles; needs Go, root and Debian (packages are installed)
  argocd  Argo CD beside a node, which follows a git repository; needs what the node needs
";

/// Runs the command.
pub(crate) fn run(options: &[&str]) -> Result<String> {
    match options {
        ["up"] => up(Layer::Api),
        ["up", "--layer", name] => up(named(name)?),
        [] => {
            let layers = ready(Extent::Full);
            test::cluster(&layers)
        }
        ["--layer", names] => {
            let layers = names.split(',').map(named).collect::<Result<Vec<_>>>()?;
            for layer in &layers {
                prepare(*layer)?;
            }
            test::cluster(&layers)
        }
        ["--kubeconfig", file] => on_existing(Path::new(file)),
        _ => bail!("{HELP}"),
    }
}

fn on_existing(kubeconfig: &Path) -> Result<String> {
    let kubeconfig = std::path::absolute(kubeconfig)?;
    let existing = Existing::at(&kubeconfig)?;
    let settings = [
        ("WEIR_CLUSTER_LAYERS", NO_LAYER),
        (EXISTING, &kubeconfig.display().to_string()),
    ];
    let tested = test::cluster_with(&settings);
    existing.clean()?;
    tested?;
    Ok(format!(
        "the tests on the cluster of {} passed",
        kubeconfig.display()
    ))
}

fn named(name: &str) -> Result<Layer> {
    let layer = Layer::named(name);
    layer.with_context(|| format!("no layer \"{name}\"\n{HELP}"))
}

/// Installs and builds what a layer needs.
fn prepare(layer: Layer) -> Result<Binaries> {
    packages(layer)?;
    layer.check()?;
    Binaries::build(layer)
}

/// Installs what a layer needs of Debian.
fn packages(layer: Layer) -> Result<()> {
    let missing = missing_packages(layer);
    if missing.is_empty() {
        return Ok(());
    }
    let install = format!(
        "apt-get install -y --no-install-recommends {}",
        missing.join(" ")
    );
    println!("== installing for layer \"{}\" ({install})", layer.name());
    let status = std::process::Command::new("sh")
        .args([
            "-c",
            &format!("{install} >/dev/null || (apt-get update >/dev/null && {install} >/dev/null)"),
        ])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()?;
    ensure!(status.success(), "as root run {install}");
    Ok(())
}

/// The layers that can run here, after building what they need; says why of the others.
pub(crate) fn ready(extent: Extent) -> Vec<Layer> {
    let can = |layer: &Layer| match prepare(*layer) {
        Ok(_) => {
            println!("== layer \"{}\" of the cluster is built", layer.name());
            true
        }
        Err(error) => {
            println!(
                "== SKIPPING every test on layer \"{}\" of the cluster: {error:#}",
                layer.name()
            );
            false
        }
    };
    // The programs of a node take more than six minutes to build on a cold machine.
    let layers: &[Layer] = match extent {
        // Where they were built before, the places cost seconds; building them takes minutes.
        Extent::Usual if Binaries::find(Layer::Places).is_ok() => {
            &[Layer::Api, Layer::Argo, Layer::Chart, Layer::Places]
        }
        Extent::Usual => &[Layer::Api, Layer::Argo, Layer::Chart],
        Extent::Full => &[
            Layer::Api,
            Layer::Argo,
            Layer::Chart,
            Layer::ChartFull,
            Layer::Places,
            Layer::Scale,
            Layer::Node,
            Layer::ArgoCd,
        ],
    };
    layers.iter().copied().filter(can).collect()
}

fn up(layer: Layer) -> Result<String> {
    let binaries = prepare(layer)?;
    if layer == Layer::Scale {
        let scale = Scale::start(&binaries, 20)?;
        return hold(&binaries, scale.plane());
    }
    if matches!(layer, Layer::Node | Layer::ArgoCd) {
        let images = weir_images()?;
        let node = Node::start(&binaries, &images)?;
        let argocd = (layer == Layer::ArgoCd).then(|| ArgoCd::start(&binaries, &node));
        let argocd = argocd.transpose()?;
        if argocd.is_some() {
            println!("# Argo CD's pages, without a password: {}", ArgoCd::PAGES);
        }
        println!("# Images: {}", PARTS.map(image_name).join(", "));
        let process = node.process().context("the cluster is gone")?;
        println!("# Its addresses are reached from a shell in its network:");
        println!("nsenter --net --target {process} \"$SHELL\"");
        return hold(&binaries, node.plane());
    }
    hold(&binaries, &ControlPlane::start(&binaries)?)
}

/// The images of operator, gateway and worker.
fn weir_images() -> Result<Images> {
    let programs = programs()?;
    let mut images = Images::new()?;
    for part in PARTS {
        images.weir(part, &programs)?;
    }
    Ok(images)
}

fn hold(binaries: &Binaries, plane: &ControlPlane) -> Result<String> {
    plane.apply_crds()?;
    let kubectl = binaries.path("kubectl")?;
    println!("export KUBECONFIG={}", plane.kubeconfig().display());
    println!(
        "export PATH={}:$PATH",
        kubectl
            .parent()
            .context("kubectl lies in a folder")?
            .display()
    );
    println!("# Enter or Ctrl-C ends the cluster and removes it.");
    std::io::stdin().read_line(&mut String::new())?;
    Ok("the cluster is gone".to_owned())
}
