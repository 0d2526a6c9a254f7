//! Objects as kubectl prints them: the printer columns of the kind, evaluated here.

use serde_json::Value;

/// A column as a CRD declares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Head of the column.
    pub name: String,
    /// Kubernetes' JSONPath, without braces.
    pub path: String,
    /// `string`, `integer`, `date`, …
    pub kind: String,
    /// Above 0: only with `-o wide`.
    pub priority: i32,
}

/// A table with aligned columns: three blanks between them, none at the end of a line, as kubectl does.
pub fn table(head: &[String], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .chain([head[column].chars().count()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for row in std::iter::once(head).chain(rows.iter().map(Vec::as_slice)) {
        let line: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        text.push_str(line.join("   ").trim_end());
        text.push('\n');
    }
    text
}

/// One row: the object's name, then its columns.
pub fn row(object: &Value, columns: &[Column], now_s: i64) -> Vec<String> {
    let name = object["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    std::iter::once(name)
        .chain(columns.iter().map(|column| cell(object, column, now_s)))
        .collect()
}

fn cell(object: &Value, column: &Column, now_s: i64) -> String {
    let text = match lookup(object, &column.path) {
        None | Some(Value::Null) => return String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    if column.kind == "date" {
        return text
            .parse::<jiff::Timestamp>()
            .map_or(text, |then| age(now_s - then.as_second()));
    }
    text
}

/// The part of JSONPath that printer columns use: `.a.b`, `.a[0]`, `.a[?(@.key=="value")].b`, `.a['dotted.key']`.
fn lookup<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let mut value = object;
    let mut rest = path.trim();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("[?(@.") {
            let (test, after) = after.split_once(")]")?;
            let (key, wanted) = test.split_once("==")?;
            let wanted = wanted.trim().trim_matches(['"', '\'']);
            value = value
                .as_array()?
                .iter()
                .find(|item| item[key.trim()] == wanted)?;
            rest = after;
        } else if let Some(after) = rest.strip_prefix('[') {
            let (index, after) = after.split_once(']')?;
            value = match index.parse::<usize>() {
                Ok(index) => value.get(index)?,
                Err(_) => value.get(index.trim_matches(['"', '\'']))?,
            };
            rest = after;
        } else {
            let after = rest.strip_prefix('.')?;
            let end = after.find(['.', '[']).unwrap_or(after.len());
            value = value.get(&after[..end])?;
            rest = &after[end..];
        }
    }
    Some(value)
}

/// A duration as kubectl writes ages: two units where the larger is small, else one.
pub fn age(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |large: i64, unit: char, small: i64, small_unit: char| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{small_unit}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, 'm', seconds % 60, 's'),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, 'h', minutes % 60, 'm'),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, 'd', hours % 24, 'h'),
        _ => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_find_what_kubectl_finds() {
        let object = json!({
            "spec": {"model": "m", "steps": [{"weight": 5}], "app.kubernetes.io/x": "dotted"},
            "status": {"conditions": [{"type": "Verified", "status": "True"}, {"type": "Ready", "status": "False", "reason": "Starting"}]},
        });
        for (path, want) in [
            (".spec.model", Some(json!("m"))),
            (".spec.steps[0].weight", Some(json!(5))),
            (".spec['app.kubernetes.io/x']", Some(json!("dotted"))),
            (
                ".status.conditions[?(@.type==\"Ready\")].reason",
                Some(json!("Starting")),
            ),
            (".status.conditions[?(@.type=='Gone')].reason", None),
            (".status.nothing.there", None),
            ("spec", None),
        ] {
            assert_eq!(lookup(&object, path).cloned(), want, "{path}");
        }
    }

    #[test]
    fn ages_read_as_in_kubectl() {
        for (seconds, want) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (150, "2m30s"),
            (600, "10m"),
            (7_260, "121m"),
            (10_800, "3h"),
            (11_700, "3h15m"),
            (90_000, "25h"),
            (180_000, "2d2h"),
            (864_000, "10d"),
        ] {
            assert_eq!(age(seconds), want, "{seconds}");
        }
    }

    #[test]
    fn columns_are_aligned_and_lines_end_without_blanks() {
        let column = |name: &str, path: &str, kind: &str| Column {
            name: name.to_owned(),
            path: path.to_owned(),
            kind: kind.to_owned(),
            priority: 0,
        };
        let columns = [
            column("Model", ".spec.model", "string"),
            column("Age", ".metadata.creationTimestamp", "date"),
        ];
        let object = json!({"metadata": {"name": "long-name", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": {}});
        let then = "2026-01-01T00:01:00Z"
            .parse::<jiff::Timestamp>()
            .unwrap()
            .as_second();
        let head = ["NAME", "MODEL", "AGE"].map(str::to_owned);
        assert_eq!(
            table(&head, &[row(&object, &columns, then)]),
            "NAME        MODEL   AGE\nlong-name           60s\n"
        );
    }
}
