//! `cargo xtask sbom`: what an image's program is made of, as `CycloneDX` 1.6, from `Cargo.lock` and the manifests of its crates.
//!
//! The same sources give the same bytes: nothing in it is a time or a random number.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use weir_e2e::cluster::Architecture;

use crate::repo;

const HELP: &str = "\
cargo xtask sbom PART [--arch ARCH] [--out FILE]   what weir-PART is made of, as CycloneDX 1.6

  PART    operator, gateway, worker, or weir (the command itself)
  --arch  amd64 or arm64: what it is compiled for [default: amd64]
  --out   the file to write [default: weir-PART.ARCH.cdx.json]
";

/// Runs the command.
pub(crate) fn run(options: &[&str]) -> Result<String> {
    let [part, rest @ ..] = options else {
        bail!("{HELP}");
    };
    let program = program(part)?;
    let (mut architecture, mut out) = ("amd64", None);
    let mut rest = rest.iter();
    while let Some(option) = rest.next() {
        let value = rest
            .next()
            .with_context(|| format!("{option} needs a value\n{HELP}"))?;
        match *option {
            "--arch" => architecture = value,
            "--out" => out = Some((*value).to_owned()),
            _ => bail!("{HELP}"),
        }
    }
    let out = out.unwrap_or_else(|| format!("{program}.{architecture}.cdx.json"));
    let document = document(&program, architecture)?;
    let components = document["components"].as_array().map_or(0, Vec::len);
    let text = serde_json::to_string_pretty(&document)? + "\n";
    std::fs::write(&out, text).with_context(|| format!("cannot write {out}"))?;
    Ok(format!(
        "sbom: {out} names {components} components of {program}"
    ))
}

fn program(part: &str) -> Result<String> {
    match part {
        "operator" | "gateway" | "worker" => Ok(format!("weir-{part}")),
        "weir" => Ok(part.to_owned()),
        _ => bail!("there is no part {part:?}\n{HELP}"),
    }
}

fn document(program: &str, architecture: &str) -> Result<Value> {
    let metadata = repo::metadata(&[
        "--locked",
        "--filter-platform",
        Architecture::named(architecture)?.target(),
    ])?;
    let checksums = checksums(&repo::read(Path::new("Cargo.lock"))?);
    of(program, &metadata, &checksums)
}

/// SHA-256 of each crate's archive, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let field = |package: &str, name: &str| {
        let mut lines = package.lines();
        let quoted = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""))?;
        Some(quoted.trim_end_matches('"').to_owned())
    };
    let of = |package: &str| {
        let id = (field(package, "name")?, field(package, "version")?);
        Some((id, field(package, "checksum")?))
    };
    lock.split("[[package]]").filter_map(of).collect()
}

/// The crates that end up in a program: what it and its crates are built with, without their tests.
fn reached<'a>(root: &'a str, nodes: &BTreeMap<&'a str, Vec<&'a str>>) -> BTreeSet<&'a str> {
    let (mut seen, mut left) = (BTreeSet::new(), vec![root]);
    while let Some(id) = left.pop() {
        if seen.insert(id) {
            left.extend(nodes.get(id).into_iter().flatten());
        }
    }
    seen
}

/// What each crate is built with. Those of build scripts count: they write code.
fn edges(metadata: &Value) -> BTreeMap<&str, Vec<&str>> {
    let list = |value: &'static str, of: &'_ Value| of[value].as_array().cloned();
    let is_built_with = |dependency: &Value| {
        let kinds = list("dep_kinds", dependency).unwrap_or_default();
        kinds.iter().any(|kind| kind["kind"] != "dev")
    };
    let nodes = metadata["resolve"]["nodes"].as_array();
    nodes
        .into_iter()
        .flatten()
        .filter_map(|node| {
            let of = node["deps"].as_array()?;
            let built_with = of.iter().filter(|dependency| is_built_with(dependency));
            let ids = built_with.filter_map(|dependency| dependency["pkg"].as_str());
            Some((node["id"].as_str()?, ids.collect()))
        })
        .collect()
}

fn of(
    program: &str,
    metadata: &Value,
    checksums: &BTreeMap<(String, String), String>,
) -> Result<Value> {
    let packages: BTreeMap<&str, &Value> = metadata["packages"]
        .as_array()
        .context("no packages")?
        .iter()
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let root = packages
        .iter()
        .find(|(_, package)| package["name"] == program && package["source"].is_null());
    let root = *root.with_context(|| format!("no crate {program:?}"))?.0;
    let edges = edges(metadata);
    let all = reached(root, &edges);
    let reference = |id: &str| packages.get(id).map(|package| purl(package));
    let mut components = Vec::new();
    let mut dependencies = Vec::new();
    for id in &all {
        let package = packages
            .get(id)
            .with_context(|| format!("no package {id}"))?;
        if *id != root {
            components.push(component("library", package, checksums));
        }
        let mut on: Vec<String> = edges[id].iter().filter_map(|id| reference(id)).collect();
        on.sort();
        on.dedup();
        dependencies.push(json!({"ref": purl(package), "dependsOn": on}));
    }
    let by = |field: &'static str| move |value: &Value| value[field].as_str().map(str::to_owned);
    components.sort_by_key(by("bom-ref"));
    dependencies.sort_by_key(by("ref"));
    Ok(json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": component("application", packages[root], checksums)},
        "components": components,
        "dependencies": dependencies,
    }))
}

fn purl(package: &Value) -> String {
    let text = |field: &str| package[field].as_str().unwrap_or_default();
    format!("pkg:cargo/{}@{}", text("name"), text("version"))
}

fn component(kind: &str, package: &Value, checksums: &BTreeMap<(String, String), String>) -> Value {
    let text = |field: &str| package[field].as_str().unwrap_or_default().to_owned();
    let mut component = json!({
        "type": kind, "bom-ref": purl(package), "name": text("name"), "version": text("version"),
        "purl": purl(package),
    });
    if let Some(license) = package["license"].as_str() {
        // Crates of before 2018 wrote a choice with a stroke.
        let license = license.replace(" / ", " OR ").replace('/', " OR ");
        component["licenses"] = json!([{"expression": license}]);
    }
    if let Some(sum) = checksums.get(&(text("name"), text("version"))) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_crate_of_an_image_is_named_with_its_licence_and_digest_and_twice_alike() {
        let document = of_part("gateway", "amd64");
        let components = document["components"].as_array().unwrap();
        let find = |name: &str| components.iter().find(|one| one["name"] == name);
        for one in components {
            let is_own = one["name"].as_str().unwrap().starts_with("weir-");
            assert_eq!(one["hashes"].is_null(), is_own, "{one}");
            assert!(one["licenses"].is_array(), "{one}");
        }
        let tokio = find("tokio").unwrap();
        assert_eq!(tokio["purl"], tokio["bom-ref"]);
        assert!(find("weir-fetch").is_some());
        // What only tests are built with, and other programs, are not in it.
        for other in ["proptest", "weir-operator", "weir-e2e", "gateway"] {
            assert!(find(other).is_none(), "{other}");
        }
        let known: BTreeSet<&str> = components
            .iter()
            .chain([&document["metadata"]["component"]])
            .map(|one| one["bom-ref"].as_str().unwrap())
            .collect();
        for dependency in document["dependencies"].as_array().unwrap() {
            let of = [&dependency["ref"]];
            let on = dependency["dependsOn"].as_array().unwrap();
            for id in on.iter().chain(of) {
                assert!(known.contains(id.as_str().unwrap()), "{id}");
            }
        }
        assert_eq!(document, of_part("gateway", "amd64"));
    }

    #[test]
    fn what_there_is_no_image_of_is_refused_with_what_there_is() {
        let refused = |options: &[&str]| run(options).unwrap_err().to_string();
        assert!(refused(&["console"]).contains("operator, gateway, worker"));
        let out = ["gateway", "--arch", "riscv64", "--out", "/dev/null"];
        assert!(refused(&out).contains("only for amd64 and arm64"));
        assert!(refused(&["gateway", "--arch"]).contains("needs a value"));
    }

    fn of_part(part: &str, architecture: &str) -> Value {
        document(&program(part).unwrap(), architecture).unwrap()
    }
}
