//! `weir get`: the objects of a running `weir up`, in kubectl's columns.

mod keys;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use serde_json::Value;

use crate::client::Admin;
use crate::columns::{Column, row, table};

/// Show model versions, pools and quotas of a running `weir up`, as kubectl shows them on a cluster; or its API keys.
#[derive(Debug, Parser)]
pub struct Args {
    /// Kinds by name, plural or short name, separated by commas (`mv`, `gp`, `tq`); all of them when absent. `keys` are the tenants' API
    /// keys: until when they count, when they were last used, and which of them can take each other's place.
    kinds: Option<String>,
    /// One object's name; of keys, the tenant's.
    name: Option<String>,
    /// Form of the output.
    #[arg(short, long, value_enum)]
    output: Option<Output>,
    #[command(flatten)]
    admin: Admin,
}

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// More columns.
    Wide,
    /// The whole objects.
    Json,
    /// The whole objects.
    Yaml,
    /// `kind/name` lines.
    Name,
}

/// A kind as its CRD declares it.
struct KindInfo {
    kind: String,
    plural: String,
    names: Vec<String>,
    columns: Vec<Column>,
}

/// Runs the command.
///
/// # Errors
/// `weir up` cannot be reached, or a kind or a name does not exist.
pub fn run(args: &Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    if args.kinds.as_deref().is_some_and(keys::is_named) {
        let all = runtime.block_on(args.admin.server().get("/keys"))?;
        print!("{}", keys::render(args, &all)?);
        return Ok(());
    }
    let objects = runtime.block_on(args.admin.server().get("/objects"))?;
    let objects = objects
        .as_array()
        .context("the answer is no list of objects; is --admin the admin port of `weir up`?")?;
    print!(
        "{}",
        render(args, objects, jiff::Timestamp::now().as_second())?
    );
    Ok(())
}

/// All kinds' tables, without the wide columns.
pub fn tables(objects: &[Value]) -> String {
    let args = Args {
        kinds: None,
        name: None,
        output: None,
        admin: Admin {
            admin: String::new(),
        },
    };
    render(&args, objects, jiff::Timestamp::now().as_second()).unwrap_or_default()
}

fn render(args: &Args, objects: &[Value], now_s: i64) -> Result<String> {
    let kinds = wanted_kinds(args.kinds.as_deref())?;
    let mut found: Vec<(&KindInfo, Vec<&Value>)> = Vec::new();
    for kind in &kinds {
        let of_kind = objects
            .iter()
            .filter(|object| object["kind"] == kind.kind.as_str())
            .filter(|object| {
                args.name
                    .as_ref()
                    .is_none_or(|name| object["metadata"]["name"] == name.as_str())
            });
        found.push((kind, of_kind.collect()));
    }
    if let Some(name) = args
        .name
        .as_ref()
        .filter(|_| found.iter().all(|(_, objects)| objects.is_empty()))
    {
        bail!(
            "there is no {} {name:?}",
            kinds
                .iter()
                .map(|k| k.kind.as_str())
                .collect::<Vec<_>>()
                .join(" or ")
        );
    }
    let all: Vec<&Value> = found
        .iter()
        .flat_map(|(_, objects)| objects.iter().copied())
        .collect();
    Ok(match args.output {
        Some(Output::Json) => format!("{:#}\n", whole(args, &all)),
        Some(Output::Yaml) => serde_yaml::to_string(&whole(args, &all))?,
        Some(Output::Name) => {
            let line = |(kind, object): (&KindInfo, &Value)| {
                format!(
                    "{}.{}/{}\n",
                    kind.kind.to_lowercase(),
                    weir_api::GROUP,
                    object["metadata"]["name"].as_str().unwrap_or("")
                )
            };
            found
                .iter()
                .flat_map(|(kind, objects)| objects.iter().map(move |object| line((kind, object))))
                .collect()
        }
        None | Some(Output::Wide) => {
            let is_wide = args.output == Some(Output::Wide);
            let tables = found.iter().filter(|(_, objects)| !objects.is_empty());
            let tables: Vec<String> = tables
                .map(|(kind, objects)| kind_table(kind, objects, is_wide, now_s))
                .collect();
            tables.join("\n")
        }
    })
}

/// One object as it is, several as a list.
fn whole(args: &Args, objects: &[&Value]) -> Value {
    match objects {
        [one] if args.name.is_some() => (*one).clone(),
        many => serde_json::json!({"apiVersion": "v1", "kind": "List", "items": many}),
    }
}

fn kind_table(kind: &KindInfo, objects: &[&Value], is_wide: bool, now_s: i64) -> String {
    let columns: Vec<Column> = kind
        .columns
        .iter()
        .filter(|c| is_wide || c.priority == 0)
        .cloned()
        .collect();
    let head: Vec<String> = std::iter::once("NAME".to_owned())
        .chain(columns.iter().map(|c| c.name.to_uppercase()))
        .collect();
    let rows: Vec<Vec<String>> = objects
        .iter()
        .map(|object| row(object, &columns, now_s))
        .collect();
    table(&head, &rows)
}

fn wanted_kinds(text: Option<&str>) -> Result<Vec<KindInfo>> {
    let all: Vec<KindInfo> = weir_api::crds().iter().map(kind_info).collect();
    let Some(text) = text.filter(|text| *text != "all" && *text != weir_api::CATEGORY) else {
        return Ok(all);
    };
    let mut wanted = Vec::new();
    for name in text.split(',') {
        let Some(kind) = all.iter().find(|kind| {
            kind.names
                .iter()
                .any(|known| known.eq_ignore_ascii_case(name))
        }) else {
            let known: Vec<&str> = all.iter().map(|kind| kind.plural.as_str()).collect();
            bail!("there is no kind {name:?}; there are {}", known.join(", "));
        };
        wanted.push(kind.kind.clone());
    }
    Ok(all
        .into_iter()
        .filter(|kind| wanted.contains(&kind.kind))
        .collect())
}

fn kind_info(crd: &weir_api::CustomResourceDefinition) -> KindInfo {
    let names = &crd.spec.names;
    let mut all = vec![names.kind.clone(), names.plural.clone()];
    all.extend(names.singular.clone());
    all.extend(names.short_names.clone().unwrap_or_default());
    let columns = crd.spec.versions[0]
        .additional_printer_columns
        .iter()
        .flatten();
    let columns = columns.map(|column| Column {
        name: column.name.clone(),
        path: column.json_path.clone(),
        kind: column.type_.clone(),
        priority: column.priority.unwrap_or(0),
    });
    KindInfo {
        kind: names.kind.clone(),
        plural: names.plural.clone(),
        names: all,
        columns: columns.collect(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(kinds: Option<&str>, name: Option<&str>, output: Option<Output>) -> Result<String> {
        let objects = [
            json!({"kind": "ModelVersion", "metadata": {"name": "m-v1", "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"model": "m", "version": 1, "stage": "Production", "pool": "small"},
                "status": {"stage": "Production", "weightPercent": 100,
                    "conditions": [{"type": "Ready", "status": "True", "reason": "Serving"}]}}),
            json!({"kind": "GpuPool", "metadata": {"name": "small"}, "spec": {}}),
        ];
        let now = "2026-01-01T00:05:00Z"
            .parse::<jiff::Timestamp>()?
            .as_second();
        let args = Args {
            kinds: kinds.map(str::to_owned),
            name: name.map(str::to_owned),
            output,
            admin: Admin {
                admin: String::new(),
            },
        };
        render(&args, &objects, now)
    }

    #[test]
    fn every_name_of_a_kind_finds_it() {
        for name in ["mv", "modelversion", "modelversions", "ModelVersion"] {
            let text = shown(Some(name), None, None).unwrap();
            assert!(
                text.starts_with("NAME   MODEL") && text.contains("m-v1"),
                "{name}: {text}"
            );
            assert!(text.trim_end().ends_with("5m"), "{text}");
        }
        assert!(
            shown(Some("pods"), None, None)
                .unwrap_err()
                .to_string()
                .contains("modelversions")
        );
    }

    #[test]
    fn what_is_not_there_is_an_error_by_name() {
        assert_eq!(
            shown(Some("gp"), Some("large"), None)
                .unwrap_err()
                .to_string(),
            "there is no GpuPool \"large\""
        );
    }

    #[test]
    fn names_and_whole_objects_come_out_too() {
        assert_eq!(
            shown(None, None, Some(Output::Name)).unwrap(),
            "gpupool.weir.dev/small\nmodelversion.weir.dev/m-v1\n"
        );
        assert!(
            shown(Some("mv"), Some("m-v1"), Some(Output::Yaml))
                .unwrap()
                .contains("weightPercent: 100")
        );
        let wide = shown(Some("mv"), None, Some(Output::Wide)).unwrap();
        assert!(
            wide.contains("POOL") && !shown(Some("mv"), None, None).unwrap().contains("POOL"),
            "{wide}"
        );
    }
}
