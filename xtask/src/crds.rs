//! `cargo xtask crds`: custom resource definitions as YAML, and what the chart has of them and of other files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{chart, repo};

/// Folders in which every file is generated.
const GENERATED: &[&str] = &["crds", chart::DEFINITIONS, chart::COPIES];

const HEADER: &str = "\
# Generated from crates/api by `cargo xtask crds`. Do not edit: change the Rust type and run it again.
";

/// Writes every definition.
pub(crate) fn write() -> Result<String> {
    let files = rendered()?;
    for (path, text) in &files {
        let path = repo::root().join(path);
        let folder = path.parent().expect("a definition lies in a folder");
        std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(&path, text))
            .with_context(|| format!("cannot write \"{}\"", path.display()))?;
    }
    Ok(format!("crds: wrote {} files", files.len()))
}

/// Compares every definition with what is committed.
pub(crate) fn check() -> Result<String> {
    let files = rendered()?;
    let findings = stale(&files);
    repo::verdict(&findings, format!("crds: {} files are fresh", files.len()))
}

/// Definitions that differ from their file, and files that no definition makes.
fn stale(files: &[(PathBuf, String)]) -> Vec<String> {
    let differs = |(path, text): &&(PathBuf, String)| {
        std::fs::read_to_string(repo::root().join(path))
            .ok()
            .as_ref()
            != Some(text)
    };
    let changed = files.iter().filter(differs);
    let mut findings: Vec<String> = changed
        .map(|(path, _)| format!("{}: not fresh, run `cargo xtask crds`", path.display()))
        .collect();
    for folder in GENERATED {
        let present = std::fs::read_dir(repo::root().join(folder));
        for entry in present.into_iter().flatten().flatten() {
            let path = Path::new(folder).join(entry.file_name());
            if !files.iter().any(|(known, _)| *known == path) {
                findings.push(format!("{}: nothing makes it, delete it", path.display()));
            }
        }
    }
    findings
}

/// Each generated file: a path and its text.
fn rendered() -> Result<Vec<(PathBuf, String)>> {
    let mut files = vec![chart::reference()?];
    files.extend(chart::copies()?);
    for crd in weir_api::crds() {
        let name = format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
        let mut value = serde_json::to_value(&crd).context("cannot write a definition as JSON")?;
        whole_numbers(&mut value);
        let yaml = serde_yaml::to_string(&value).context("cannot write a definition as YAML")?;
        files.push(chart::definition(&name, &mut value)?);
        files.push((Path::new("crds").join(name), format!("{HEADER}{yaml}")));
    }
    Ok(files)
}

/// The typed schema keeps bounds as floats; an API server and a person write 16, not 16.0.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let whole = number
                .as_f64()
                .filter(|float| float.fract() == 0.0 && float.abs() < 9e15);
            if let (Some(float), None) = (whole, number.as_i64()) {
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "whole and below 2^53, checked above"
                )]
                let integer = float as i64;
                *value = Value::from(integer);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_definitions_are_fresh() {
        check().unwrap();
    }

    #[test]
    fn a_definition_that_differs_is_found() {
        let mut files = rendered().unwrap();
        for file in &mut files {
            file.1.push_str("# drift\n");
        }
        assert_eq!(stale(&files).len(), files.len());
        let all = files.len();
        files.pop();
        assert_eq!(stale(&files).len(), all);
    }

    #[test]
    fn bounds_are_written_as_whole_numbers() {
        for (path, text) in rendered().unwrap() {
            if !path.starts_with("crds") {
                continue;
            }
            assert!(!text.contains(".0\n"), "{}", path.display());
        }
    }
}
