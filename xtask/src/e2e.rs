//! `cargo xtask e2e`: builds a Kubernetes cluster from pinned programs, and runs the tests on it or holds it up for people.

use anyhow::{Context, Result, bail};
use weir_e2e::cluster::{Binaries, ControlPlane, Layer};

use crate::test::{self, Extent};

const HELP: &str = "\
cargo xtask e2e [--layer LAYER]      run the tests on a cluster: of one layer, or of all that can run here
cargo xtask e2e up [--layer LAYER]   hold a cluster up, with the kinds installed, until Enter or Ctrl-C

  api     etcd and kube-apiserver (the default of `up`); needs Go
  chart   Helm and the interpreter of Argo CD; needs Go
  chart-full   the older Helm, kubeconform and kube-score; needs Go
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
        ["--layer", name] => {
            let layer = named(name)?;
            Binaries::build(layer)?;
            test::cluster(&[layer])
        }
        _ => bail!("{HELP}"),
    }
}

fn named(name: &str) -> Result<Layer> {
    Layer::named(name).with_context(|| format!("no layer \"{name}\"\n{HELP}"))
}

/// The layers that can run here, after building what they need; says why of the others.
pub(crate) fn ready(extent: Extent) -> Vec<Layer> {
    let can = |layer: &Layer| match Binaries::build(*layer) {
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
    let layers: &[Layer] = match extent {
        Extent::Usual => &[Layer::Api, Layer::Chart],
        Extent::Full => &[Layer::Api, Layer::Chart, Layer::ChartFull],
    };
    layers.iter().copied().filter(can).collect()
}

fn up(layer: Layer) -> Result<String> {
    let binaries = Binaries::build(layer)?;
    let plane = ControlPlane::start(&binaries)?;
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
