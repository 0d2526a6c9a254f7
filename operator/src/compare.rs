//! Whether an object is as it should be: everything that was asked for is there. What others added is theirs.

use serde_json::Value;

/// The first place where `live` lacks what `wanted` says, or says something else.
pub fn difference(wanted: &Value, live: &Value) -> Option<String> {
    differs(wanted, live, "")
}

fn differs(wanted: &Value, live: &Value, place: &str) -> Option<String> {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => wanted.iter().find_map(|(key, value)| {
            let place = format!("{place}.{key}");
            match live.get(key) {
                Some(live) => differs(value, live, &place),
                // An API server leaves out what is empty.
                None if is_empty(value) => None,
                None => Some(place),
            }
        }),
        (Value::Array(wanted), Value::Array(live)) => {
            let is_named = wanted.iter().all(|item| item.get("name").is_some());
            if !is_named && wanted.len() != live.len() {
                return Some(place.to_owned());
            }
            wanted.iter().enumerate().find_map(|(index, item)| {
                let name = item.get("name");
                let found = if is_named {
                    live.iter().find(|other| other.get("name") == name)
                } else {
                    live.get(index)
                };
                let place = match name.and_then(Value::as_str) {
                    Some(name) => format!("{place}[{name}]"),
                    None => format!("{place}[{index}]"),
                };
                found.map_or(Some(place.clone()), |other| differs(item, other, &place))
            })
        }
        (Value::String(wanted), Value::String(live)) => {
            let same = wanted == live || is_same_quantity(wanted, live);
            (!same).then(|| place.to_owned())
        }
        (wanted, live) => (wanted != live).then(|| place.to_owned()),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// `1000m` and `1` are one quantity: an API server writes each in its own way.
fn is_same_quantity(one: &str, other: &str) -> bool {
    match (milli(one), milli(other)) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    }
}

/// A quantity in thousandths.
fn milli(text: &str) -> Option<i128> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let scale: i128 = match suffix {
        "m" => 1,
        "" => 1000,
        "k" => 1_000_000,
        "M" => 1_000_000_000,
        "G" => 1_000_000_000_000,
        "T" => 1_000_000_000_000_000,
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        "Ti" => 1000 << 40,
        _ => return None,
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || part.len() > 9 {
        return None;
    }
    let power = 10_i128.pow(u32::try_from(part.len()).ok()?);
    let digits: i128 = format!("{whole}{part}").parse().ok()?;
    (digits.checked_mul(scale)? % power == 0).then(|| digits * scale / power)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_others_added_is_theirs_and_what_was_asked_for_must_be_there() {
        let wanted = json!({
            "spec": {"replicas": 2, "list": [{"name": "a", "image": "x"}], "args": ["1", "2"], "empty": {},
                     "memory": "1000m", "disk": "1024Mi"},
        });
        let as_read = |change: fn(&mut Value)| {
            let mut live = json!({
                "metadata": {"uid": "u"},
                "spec": {
                    "replicas": 2, "list": [{"name": "b"}, {"name": "a", "image": "x", "tty": false}],
                    "args": ["1", "2"], "memory": "1", "disk": "1Gi", "defaulted": true,
                },
            });
            change(&mut live);
            difference(&wanted, &live)
        };
        assert_eq!(as_read(|_| ()), None);
        assert_eq!(
            as_read(|live| live["spec"]["replicas"] = json!(3)),
            Some(".spec.replicas".to_owned())
        );
        assert_eq!(
            as_read(|live| live["spec"]["list"][1]["image"] = json!("y")),
            Some(".spec.list[a].image".to_owned())
        );
        assert_eq!(
            as_read(|live| live["spec"]["args"] = json!(["1"])),
            Some(".spec.args".to_owned())
        );
        assert_eq!(
            as_read(|live| drop(live["spec"].as_object_mut().unwrap().remove("list"))),
            Some(".spec.list".to_owned())
        );
        assert_eq!(
            as_read(|live| live["spec"]["disk"] = json!("1G")),
            Some(".spec.disk".to_owned())
        );
    }
}
