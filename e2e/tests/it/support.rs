//! The bundle for whoever helps: it has what they need, and nothing that is a secret or that a tenant wrote.

use std::io::Write as _;

use serde_json::{Value, json};
use weir_e2e::{RandomModel, Site, Tenant, weir_command};

const PROMPT: &str = "planted-prompt-tulip";
const LABEL: &str = "planted-label-orchid";
const REQUEST_KEY: &str = "planted-request-key-lilac";
const WEBHOOK_SECRET: &str = "Planted-Webhook-Secret-42";
const LOGGED_KEY: &str = "sk-planted-0123456789abcdef";
const PASSWORD: &str = "planted-password-rose";

#[test]
fn a_support_bundle_has_everything_but_secrets_and_what_tenants_wrote() {
    let site = Site::random(RandomModel::default(), &[Tenant::unlimited("acme")]).unwrap();
    site.write(
        "extra.yaml",
        &json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "extra"},
        "stringData": {"webhook": WEBHOOK_SECRET}}),
    )
    .unwrap();
    let manifests = site.manifests();
    let comment = format!("# the password is {PASSWORD}\n");
    let pool = std::fs::read_to_string(manifests.join("pool.yaml")).unwrap();
    std::fs::write(manifests.join("pool.yaml"), comment + &pool).unwrap();
    let secret = std::fs::read_to_string(manifests.join("secret-acme.yaml")).unwrap();
    let hash = secret.split("weir1$").nth(1).unwrap().trim();
    let weir = site.up().unwrap();
    let client = weir.client("acme-dev-key");
    let body = json!({"model": "random", "input": PROMPT, "maxOutputTokens": 12, "requestKey": REQUEST_KEY, "metadata": {"team": LABEL}});
    let run = client.post("/inference", &body).unwrap().run_id();
    let events = client.all_events(&run, 0).unwrap();
    let said: Vec<String> = events
        .iter()
        .map(|event| {
            event.json()["text"]
                .as_str()
                .unwrap_or_default()
                .trim()
                .to_owned()
        })
        .filter(|text| text.len() >= 6)
        .collect();

    let log = site.path().join("weir.log");
    let mut file = std::fs::File::create(&log).unwrap();
    writeln!(file, "first line, too old to be taken along").unwrap();
    writeln!(
        file,
        "WARN refused authorization: Bearer acme-dev-key of {LOGGED_KEY}"
    )
    .unwrap();
    writeln!(
        file,
        "INFO store postgres://weir:{PASSWORD}@db/weir is open"
    )
    .unwrap();
    let bundle = site.path().join("bundle.tar");
    let output = weir_command()
        .args(["support-bundle", "--admin", &weir.admin, "--log-lines", "2"])
        .arg("--output")
        .arg(&bundle)
        .arg("--manifests")
        .arg(&manifests)
        .arg("--log")
        .arg(&log)
        .env("WEIR_API_KEY", "acme-dev-key")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );

    let whole = String::from_utf8_lossy(&std::fs::read(&bundle).unwrap()).into_owned();
    for secret in [
        PROMPT,
        LABEL,
        REQUEST_KEY,
        WEBHOOK_SECRET,
        LOGGED_KEY,
        PASSWORD,
        "acme-dev-key",
        hash,
    ] {
        assert!(!whole.contains(secret), "{secret} is in the bundle");
    }
    for text in said {
        assert!(
            !whole.contains(&text),
            "an output is in the bundle: {text:?}"
        );
    }
    assert!(!whole.contains("too old"));

    // Any tar reads it.
    let folder = site.path().join("unpacked");
    std::fs::create_dir(&folder).unwrap();
    let unpacked = std::process::Command::new("tar")
        .arg("-xf")
        .arg(&bundle)
        .arg("-C")
        .arg(&folder)
        .status()
        .unwrap();
    assert!(unpacked.success());
    let part = |name: &str| std::fs::read_to_string(folder.join("bundle").join(name)).unwrap();
    assert!(part("metrics.txt").contains("weir_gateway_runs_total{tenant=\"acme\""));
    assert!(part("objects.json").contains("\"ModelVersion\""));
    assert!(part("state.json").contains("\"random\""));
    assert!(part("logs/0-weir.log").contains("store postgres://weir:[left out]@db/weir is open"));
    assert!(part("manifests/pool.yaml").contains("maxBatchTokens"));
    assert!(part("manifests/extra.yaml").contains("[left out]"));
    assert_eq!(part("readiness.txt"), "ready\n");
    let about: Value = serde_json::from_str(&part("bundle.json")).unwrap();
    // Not every kernel shows its pressure.
    let is_of_system = |missing: &Value| missing.as_str().unwrap().starts_with("system/");
    assert!(
        about["missing"]
            .as_array()
            .unwrap()
            .iter()
            .all(is_of_system),
        "{about}"
    );
    assert!(about["weir"].is_string() && about["files"]["system/kernel.txt"].is_number());
}
