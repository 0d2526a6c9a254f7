//! Files that change under a running `weir up`: manifests, trust, models.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use weir_e2e::{Client, RandomModel, Signal, Site, Tenant, Weir, send, wait_for};

fn site() -> Site {
    Site::random(RandomModel::default(), &[Tenant::unlimited("acme")]).unwrap()
}

/// Status and code of a small request.
fn ask(weir: &Weir) -> (u16, String) {
    let body = json!({"model": "random", "input": "x", "maxOutputTokens": 1});
    let reply = weir
        .client("acme-dev-key")
        .post("/inference", &body)
        .unwrap();
    (reply.status, reply.code().to_owned())
}

fn condition(weir: &Weir, object: &str, kind: &str) -> Option<Value> {
    let objects = Client::new(&weir.admin, "").get("/objects").ok()?.body;
    let mut objects = objects.as_array()?.iter();
    let found = objects.find(|o| o["metadata"]["name"] == object)?;
    let mut conditions = found["status"]["conditions"].as_array()?.iter();
    conditions.find(|c| c["type"] == kind).cloned()
}

#[test]
fn whatever_happens_to_the_pools_file_its_models_serve_on() {
    type Damage = fn(&Path);
    let cases: [(&str, Damage); 5] = [
        ("deleted", |path| fs::remove_file(path).unwrap()),
        ("emptied", |path| fs::write(path, "").unwrap()),
        ("a directory", |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
        ("a link to nowhere", |path| {
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("nowhere", path).unwrap();
        }),
        ("every file gone", |path| {
            let dir = path.parent().unwrap();
            fs::rename(dir, dir.with_extension("away")).unwrap();
            fs::create_dir(dir).unwrap();
        }),
    ];
    let site = site();
    let mut weir = site.up().unwrap();
    let workers = weir.worker_pids();
    let pool = site.manifests().join("pool.yaml");
    let good = fs::read_to_string(&pool).unwrap();
    for (name, damage) in cases {
        damage(&pool);
        weir.wait_line(name, 20, |line| line["event"] == "problem")
            .unwrap();
        assert_eq!(ask(&weir).0, 202, "{name}");
        let away = site.manifests().with_extension("away");
        if away.exists() {
            fs::remove_dir(site.manifests()).unwrap();
            fs::rename(away, site.manifests()).unwrap();
        }
        fs::remove_dir(&pool)
            .or_else(|_| fs::remove_file(&pool))
            .ok();
        fs::write(&pool, &good).unwrap();
        weir.wait_line("problemsSolved", 20, |line| {
            line["event"] == "problemsSolved"
        })
        .unwrap();
        assert_eq!(ask(&weir).0, 202, "{name}");
    }
    assert_eq!(weir.worker_pids(), workers, "no worker was started anew");
}

#[test]
fn a_revoked_key_serves_on_from_memory_and_loads_nothing_again() {
    let site = site();
    let weir = site.up().unwrap();
    let trust = site.manifests().join("trust.yaml");
    let good = fs::read_to_string(&trust).unwrap();
    let verified = |reason: &str| {
        wait_for(reason, 30, || {
            condition(&weir, "random-v1", "Verified").filter(|c| c["reason"] == reason)
        })
        .unwrap()
    };

    // A policy that cannot be read changes nothing.
    fs::write(&trust, good.replace("BEGIN", "BEGUN")).unwrap();
    assert_eq!(verified("SignatureValid")["status"], "True");

    fs::write(
        &trust,
        good.replace("- id: test", "- id: test\n      revoked: true"),
    )
    .unwrap();
    assert_eq!(verified("KeyRevoked")["status"], "False");
    assert_eq!(ask(&weir).0, 202, "what is in memory serves on");

    for pid in weir.worker_pids() {
        send(pid, Signal::KILL);
    }
    wait_for("the new worker to refuse", 30, || {
        let ready = condition(&weir, "random-v1", "Ready")?;
        (ready["status"] == "False" && ask(&weir).1 == "no_healthy_worker").then_some(())
    })
    .unwrap();

    fs::write(&trust, &good).unwrap();
    wait_for("a trusted key to serve again", 30, || {
        (ask(&weir).0 == 202).then_some(())
    })
    .unwrap();
    verified("SignatureValid");
}

/// The prompt template is one of the signed files: another one is another version, and one that was changed beside its manifest is none.
#[test]
fn a_prompt_template_belongs_to_its_signed_version() {
    let other_template = |dir: &Path| {
        let path = dir.join("tokenizer_config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path)?)?;
        config["chat_template"] =
            json!("{% for m in messages %}Q: {{ m.content }}\nA:{% endfor %}");
        fs::write(path, serde_json::to_vec(&config)?)?;
        Ok(())
    };
    let site = site();
    site.add_prepared_model(
        ("random", 2),
        &json!({"stage": "Registered"}),
        other_template,
    )
    .unwrap();
    site.add_changed_model(
        "random",
        3,
        RandomModel::default(),
        "Registered",
        other_template,
    )
    .unwrap();
    let weir = site.up().unwrap();
    let digest = |number: u32| {
        let yaml = site
            .manifests()
            .join(format!("model-random-v{number}.yaml"));
        let object: Value = serde_yaml::from_str(&fs::read_to_string(yaml).unwrap()).unwrap();
        let files = object["spec"]["manifest"]["files"]
            .as_array()
            .unwrap()
            .clone();
        let of = |path: &str| {
            let file = files.iter().find(|file| file["path"] == path).unwrap();
            file["sha256"].clone()
        };
        (
            of("tokenizer_config.json"),
            of("model.safetensors"),
            of("weir-manifest.json"),
        )
    };
    let ((template, weights, manifest), (other, same, another)) = (digest(1), digest(2));
    assert_eq!(weights, same, "only the template differs");
    assert!(template != other && manifest != another);
    let verified = |name: &str| wait_for(name, 20, || condition(&weir, name, "Verified")).unwrap();
    assert_eq!(verified("random-v2")["status"], "True");
    let refused = verified("random-v3");
    assert_eq!(refused["status"], "False", "{refused}");
    let said = refused["message"].as_str().unwrap();
    assert!(said.contains("tokenizer_config.json"), "{said}");
}
