//! What is refused, and what is not, as an API server would.

mod cross_field;
mod fields;
mod schema;

use serde_json::Value;

use super::{Kind, check_update, parse};
use crate::samples::{Change, changed};

/// One row: changes of a good object, and a part of the only problem it then has; none if it stays good.
struct Case {
    name: &'static str,
    changes: Vec<Change>,
    want: Option<&'static str>,
}

fn refused(name: &'static str, changes: impl Into<Vec<Change>>, want: &'static str) -> Case {
    Case {
        name,
        changes: changes.into(),
        want: Some(want),
    }
}

fn accepted(name: &'static str, changes: impl Into<Vec<Change>>) -> Case {
    Case {
        name,
        changes: changes.into(),
        want: None,
    }
}

/// Runs every row as a creation and reports all that fail.
fn creations<K: Kind>(good: &Value, cases: Vec<Case>) {
    let outcome = |changes: &[Change]| parse::<K>(&changed(good.clone(), changes)).map(drop);
    run(cases, outcome);
}

/// Runs every row as an update of the good object. The new object on its own must be good, so that the row tests the transition.
fn updates<K: Kind>(good: &Value, cases: Vec<Case>) {
    let old: K = parse(good).unwrap();
    let outcome = |changes: &[Change]| {
        let new: K = parse(&changed(good.clone(), changes)).unwrap();
        check_update(&new, &old)
    };
    run(cases, outcome);
}

fn run(cases: Vec<Case>, outcome: impl Fn(&[Change]) -> Result<(), Vec<crate::FieldProblem>>) {
    let mut failures = Vec::new();
    for case in cases {
        let problems = outcome(&case.changes).err().unwrap_or_default();
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let as_wanted = match (case.want, texts.as_slice()) {
            (None, []) => true,
            (Some(want), [only]) => only.contains(want),
            _ => false,
        };
        if !as_wanted {
            failures.push(format!(
                "{}: want {:?}, got {texts:#?}",
                case.name, case.want
            ));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
