//! `weir get keys`: what people who rotate API keys want to see.

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::{Args, Output};
use crate::columns::table;

/// Whether the kinds asked for are the keys.
pub(super) fn is_named(kinds: &str) -> bool {
    matches!(kinds, "key" | "keys")
}

/// The keys as they were asked for.
pub(super) fn render(args: &Args, all: &Value) -> Result<String> {
    let keys = all
        .as_array()
        .context("the answer is no list of keys; is --admin the admin port of a gateway?")?;
    let is_wanted = |key: &&Value| {
        let wanted = args.name.as_ref();
        wanted.is_none_or(|tenant| key["tenant"] == tenant.as_str())
    };
    let keys: Vec<&Value> = keys.iter().filter(is_wanted).collect();
    if let (Some(tenant), true) = (&args.name, keys.is_empty()) {
        bail!("tenant {tenant:?} has no key in force or to come");
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(match args.output {
        Some(Output::Json) => format!("{:#}\n", serde_json::json!(keys)),
        Some(Output::Yaml) => serde_yaml::to_string(&keys)?,
        Some(Output::Name) => {
            let line = |key: &&Value| format!("{}/{}\n", text(&key["tenant"]), text(&key["name"]));
            keys.iter().map(line).collect()
        }
        None | Some(Output::Wide) => {
            let or = |value: &Value, absent: &str| match value.as_str() {
                Some(text) => text.to_owned(),
                None => absent.to_owned(),
            };
            let row = |key: &&Value| {
                let others = key["overlaps"].as_array().into_iter().flatten();
                let others: Vec<String> = others.map(text).collect();
                vec![
                    text(&key["tenant"]),
                    text(&key["name"]),
                    text(&key["state"]),
                    or(&key["notBefore"], "-"),
                    or(&key["notAfter"], "never"),
                    or(&key["lastUsedAt"], "never"),
                    if others.is_empty() {
                        "-".to_owned()
                    } else {
                        others.join(",")
                    },
                ]
            };
            let head = [
                "TENANT",
                "KEY",
                "STATE",
                "FROM",
                "UNTIL",
                "LAST USED",
                "OVERLAPS WITH",
            ];
            table(
                &head.map(str::to_owned),
                &keys.iter().map(row).collect::<Vec<_>>(),
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::client::Admin;

    #[test]
    fn keys_are_shown_by_tenant_with_what_they_can_be_exchanged_for() {
        let all = json!([
            {"tenant": "acme", "name": "old", "state": "inForce", "notBefore": null, "notAfter": "2027-01-31T00:00:00.000Z",
             "lastUsedAt": "2026-11-30T01:00:00.000Z", "overlaps": ["new"]},
            {"tenant": "globex", "name": "dev", "state": "inForce", "notBefore": null, "notAfter": null, "lastUsedAt": null, "overlaps": []},
        ]);
        let args = |name: Option<&str>, output| Args {
            kinds: Some("keys".to_owned()),
            name: name.map(str::to_owned),
            output,
            admin: Admin {
                admin: String::new(),
            },
        };
        let shown = render(&args(None, None), &all).unwrap();
        assert!(shown.starts_with("TENANT   KEY   STATE"), "{shown}");
        assert!(
            shown.contains("2027-01-31") && shown.contains("new"),
            "{shown}"
        );
        let one = render(&args(Some("globex"), None), &all).unwrap();
        assert!(one.contains("never") && !one.contains("acme"), "{one}");
        assert_eq!(
            render(&args(None, Some(Output::Name)), &all).unwrap(),
            "acme/old\nglobex/dev\n"
        );
        assert!(render(&args(Some("nobody"), None), &all).is_err());
    }
}
