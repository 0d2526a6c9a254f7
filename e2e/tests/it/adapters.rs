//! Adapters as versions of their own: signed, served by their base's worker beside it, and never where they are not what was signed.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use weir_e2e::{Client, RandomModel, Signal, Site, Tenant, Weir, send, wait_for};

fn site() -> Site {
    let models: Vec<Value> = ["random", "random-a", "random-b", "random-c", "random-d"]
        .iter()
        .map(|name| json!({"name": name}))
        .collect();
    let acme = Tenant {
        name: "acme",
        spec: json!({"models": models}),
    };
    Site::random(RandomModel::default(), &[acme]).unwrap()
}

fn body(model: &str) -> Value {
    json!({"model": model, "input": "hello there", "maxOutputTokens": 16, "sampling": {"temperature": 0, "ignoreEos": true}})
}

/// What a model says, and the run's id; none while it is not served.
pub(crate) fn ask(weir: &Weir, model: &str) -> Option<(String, String)> {
    let client = weir.client("acme-dev-key");
    let reply = client.post("/inference", &body(model)).ok()?;
    if reply.status != 202 {
        return None;
    }
    let run = reply.run_id();
    let events = client.all_events(&run, 0).ok()?;
    let last = events.last()?;
    assert_eq!(last.kind, "completed", "{last:?}");
    let deltas = events.iter().filter(|event| event.kind == "delta");
    let text = deltas
        .map(|event| event.json()["text"].as_str().unwrap_or_default().to_owned())
        .collect();
    Some((text, run))
}

pub(crate) fn text(weir: &Weir, model: &str) -> String {
    let asked = wait_for(model, 60, || ask(weir, model));
    asked.unwrap().0
}

pub(crate) fn condition(weir: &Weir, object: &str, kind: &str, reason: &str) -> Value {
    let found = || {
        let objects = Client::new(&weir.admin, "").get("/objects").ok()?.body;
        let mut objects = objects.as_array()?.iter();
        let found = objects.find(|o| o["metadata"]["name"] == object)?;
        let mut conditions = found["status"]["conditions"].as_array()?.iter();
        conditions
            .find(|c| c["type"] == kind && c["reason"] == reason)
            .cloned()
    };
    wait_for(&format!("{object} to be {reason}"), 60, found).unwrap()
}

#[expect(clippy::unnecessary_wraps, reason = "a change, as the site takes it")]
pub(crate) fn nothing(_: &Path) -> anyhow::Result<()> {
    Ok(())
}

const BASE: (&str, u32) = ("random", 1);

/// Two adapters come while their base serves, answer as themselves, are billed as themselves, come back after the worker died, and go.
#[test]
fn adapters_serve_beside_their_base_in_its_one_worker() {
    let site = site();
    let weir = site.up().unwrap();
    let workers = weir.worker_pids();
    let plain = text(&weir, "random");

    let price =
        json!({"promptMicrosPerToken": 10, "cachedMicrosPerToken": 0, "outputMicrosPerToken": 40});
    site.add_adapter(
        ("random-a", 1),
        BASE,
        (7, &json!({"price": price})),
        nothing,
    )
    .unwrap();
    site.add_adapter(("random-b", 1), BASE, (8, &json!({})), nothing)
        .unwrap();
    let (a, b) = (text(&weir, "random-a"), text(&weir, "random-b"));
    assert!(a != plain && b != plain && a != b, "{plain:?} {a:?} {b:?}");
    for _ in 0..2 {
        assert_eq!(text(&weir, "random-a"), a);
        assert_eq!(text(&weir, "random"), plain);
        assert_eq!(text(&weir, "random-b"), b);
    }
    assert_eq!(weir.worker_pids(), workers, "one worker serves all three");
    assert_eq!(
        condition(&weir, "random-a-v1", "Ready", "Serving")["status"],
        "True"
    );

    // Its own version is pinned on the run, and its own price paid.
    let client = weir.client("acme-dev-key");
    let cost = |model: &str| {
        let run = ask(&weir, model).unwrap().1;
        let run = client.get(&format!("/runs/{run}")).unwrap().body;
        (
            run["manifestDigest"].clone(),
            run["costMicros"].as_u64().unwrap(),
            run,
        )
    };
    let (own, own_cost, run) = cost("random-a");
    let (base, base_cost, _) = cost("random");
    assert_ne!(own, base);
    assert_eq!(
        (&run["model"], &run["modelVersion"]),
        (&json!("random-a"), &json!(1))
    );
    assert!(own_cost >= base_cost * 9, "{own_cost} {base_cost}");
    let chat = json!({"model": "random-b", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 4});
    let chat = client.post("/v1/chat/completions", &chat).unwrap();
    assert_eq!(
        (chat.status, &chat.body["model"]),
        (200, &json!("random-b")),
        "{chat:?}"
    );

    for pid in weir.worker_pids() {
        send(pid, Signal::KILL);
    }
    assert_eq!(text(&weir, "random-a"), a);
    assert_eq!(text(&weir, "random"), plain);
    assert_eq!(text(&weir, "random-b"), b);

    // It leaves service; the rest goes on.
    let file = site.manifests().join("model-random-b-v1.yaml");
    let yaml = fs::read_to_string(&file).unwrap();
    fs::write(&file, yaml.replace("stage: Production", "stage: Retired")).unwrap();
    wait_for("the adapter to leave", 60, || {
        ask(&weir, "random-b").is_none().then_some(())
    })
    .unwrap();
    assert_eq!(text(&weir, "random-a"), a);
    assert_eq!(text(&weir, "random"), plain);
}

/// Nothing that is not what a trusted key signed, for this base, is ever applied; the base and the good adapter go on.
#[test]
fn an_adapter_that_is_not_what_was_signed_never_serves() {
    let site = site();
    site.add_adapter(("random-a", 1), BASE, (7, &json!({})), nothing)
        .unwrap();
    let flip = |dir: &Path| {
        let weights = dir.join("adapter_model.safetensors");
        let mut bytes = fs::read(&weights)?;
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(weights, bytes)?;
        Ok(())
    };
    site.add_adapter(("random-b", 1), BASE, (8, &json!({})), flip)
        .unwrap();
    let unsign = |dir: &Path| Ok(fs::remove_file(dir.join("model.sig"))?);
    site.add_adapter(("random-c", 1), BASE, (9, &json!({})), unsign)
        .unwrap();
    // Of a base that nobody has declared.
    site.add_model(
        "other",
        1,
        RandomModel {
            seed: 5,
            ..RandomModel::default()
        },
        "Registered",
    )
    .unwrap();
    site.add_adapter(("random-d", 1), ("other", 1), (9, &json!({})), nothing)
        .unwrap();
    fs::remove_file(site.manifests().join("model-other-v1.yaml")).unwrap();
    let weir = site.up().unwrap();
    let (plain, a) = (text(&weir, "random"), text(&weir, "random-a"));
    let tampered = condition(&weir, "random-b-v1", "Verified", "FileTampered");
    assert!(
        tampered["message"]
            .as_str()
            .unwrap()
            .contains("adapter_model.safetensors"),
        "{tampered}"
    );
    condition(&weir, "random-c-v1", "Verified", "SignatureMissing");
    let baseless = condition(&weir, "random-d-v1", "Verified", "BaseUnavailable");
    assert!(
        baseless["message"]
            .as_str()
            .unwrap()
            .contains("apply the base's object too"),
        "{baseless}"
    );
    for model in ["random-b", "random-c", "random-d"] {
        assert_eq!(ask(&weir, model), None, "{model}");
    }
    assert_eq!((text(&weir, "random"), text(&weir, "random-a")), (plain, a));
}
