//! The definitions of the kinds as an API server and kubectl take them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weir_e2e::cluster::Kubectl;
use weir_e2e::repository;

use crate::plane::{example, namespace, set_status, shared};

#[test]
fn the_definitions_are_taken_without_a_complaint() {
    let Some(plane) = shared("the_definitions_are_taken_without_a_complaint") else {
        return;
    };
    let definitions = plane.kubectl().get(&["customresourcedefinitions"]).unwrap();
    let is_ours = |definition: &&Value| definition["spec"]["group"] == "weir.dev";
    let definitions = definitions["items"].as_array().unwrap().iter();
    let definitions: Vec<&Value> = definitions.filter(is_ours).collect();
    assert_eq!(definitions.len(), 3);
    for definition in definitions {
        let conditions: Vec<(&str, &str)> = definition["status"]["conditions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| (it["type"].as_str().unwrap(), it["status"].as_str().unwrap()))
            .collect();
        // NonStructuralSchema, or a name that another kind has, would stand here.
        let name = &definition["metadata"]["name"];
        assert_eq!(
            conditions,
            [("NamesAccepted", "True"), ("Established", "True")],
            "{name}"
        );
    }
}

/// The fields of a schema that say nothing, by path.
fn silent(schema: &Value, path: &str, found: &mut Vec<String>, count: &mut u32) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let place = format!("{path}.{name}");
        *count += 1;
        // What Kubernetes itself describes stands behind a reference.
        let described = field["description"]
            .as_str()
            .is_some_and(|it| !it.is_empty());
        if !described && field.get("$ref").is_none() && field.get("allOf").is_none() {
            found.push(place.clone());
        }
        silent(field, &place, found, count);
        silent(&field["items"], &format!("{place}[]"), found, count);
        silent(
            &field["additionalProperties"],
            &format!("{place}{{}}"),
            found,
            count,
        );
    }
}

/// A server publishes new definitions some moments after it takes their objects.
fn published(kubectl: &Kubectl, arguments: &[&str]) -> String {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match kubectl.run(arguments) {
            Ok(said) => return said,
            Err(error) => assert!(Instant::now() < until, "{error:#}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn kubectl_explain_has_text_for_every_field() {
    let Some(plane) = shared("kubectl_explain_has_text_for_every_field") else {
        return;
    };
    let path = "/openapi/v3/apis/weir.dev/v1alpha1";
    let served: Value =
        serde_json::from_str(&published(plane.kubectl(), &["get", "--raw", path])).unwrap();
    let (mut found, mut count) = (Vec::new(), 0);
    for kind in ["ModelVersion", "GpuPool", "TenantQuota"] {
        let schema = &served["components"]["schemas"][format!("dev.weir.v1alpha1.{kind}")];
        assert!(schema["description"].is_string(), "{kind}");
        silent(schema, kind, &mut found, &mut count);
    }
    assert!(count > 150, "only {count} fields were looked at");
    assert!(found.is_empty(), "no text: {found:#?}");
    let said = published(plane.kubectl(), &["explain", "mv.spec.rollout.guardrails"]);
    assert!(said.contains("What a version must keep to"), "{said}");
}

#[test]
fn the_same_manifests_again_change_nothing() {
    let Some(plane) = shared("the_same_manifests_again_change_nothing") else {
        return;
    };
    // The quickstart as files, and the folder that GitOps tools render with Kustomize.
    for (space, how, folder) in [
        ("again", "-f", "examples/quickstart"),
        ("gitops", "-k", "examples/gitops/manifests"),
    ] {
        namespace(plane.kubectl(), space);
        let folder = repository().join(folder).display().to_string();
        applied_again(plane.kubectl(), space, &[how, &folder]);
    }
}

fn applied_again(kubectl: &Kubectl, space: &str, manifests: &[&str]) {
    let apply = [&["apply", "--server-side", "-n", space][..], manifests].concat();
    kubectl.run(&apply).unwrap();
    let versions = || {
        let kinds = "mv,gp,tq,secrets,configmaps";
        let all = kubectl.get(&[kinds, "-n", space]).unwrap();
        let items = all["items"].as_array().unwrap();
        items
            .iter()
            .map(|it| it["metadata"]["resourceVersion"].clone())
            .collect::<Vec<Value>>()
    };
    let before = versions();
    // One of each kind, the root's own ConfigMap aside.
    assert!(before.len() >= 5, "{space}: {}", before.len());
    kubectl.run(&apply).unwrap();
    assert_eq!(versions(), before, "a write that changed nothing");
    // Server-side, and the three-way merge of a client, as kubectl and GitOps tools make it.
    for how in ["--server-side=true", "--server-side=false"] {
        let diff = [&["diff", how, "-n", space][..], manifests].concat();
        let said = kubectl.say(&diff, None).unwrap();
        assert_eq!(
            (said.code, said.out.as_str()),
            (Some(0), ""),
            "{space} {how}: {}",
            said.err
        );
    }
}

#[test]
fn kubectl_get_tells_the_story_of_a_rollout_at_a_glance() {
    let Some(plane) = shared("kubectl_get_tells_the_story_of_a_rollout_at_a_glance") else {
        return;
    };
    let kubectl = plane.kubectl();
    namespace(kubectl, "glance");
    kubectl
        .apply("weir-test", &example("model.yaml", "glance"))
        .unwrap();
    let status = json!({
        "observedGeneration": 1, "stage": "Canary", "weightPercent": 25, "step": 2, "steps": 3, "readyReplicas": 1,
        "rollbackTo": {"version": 1, "digest": format!("sha256:{}", "ab".repeat(32))},
        "conditions": [{
            "type": "Ready", "status": "False", "reason": "Baking", "message": "step 2 of 3 bakes for 40 s more",
            "lastTransitionTime": "2026-01-02T03:04:05Z", "observedGeneration": 1,
        }],
    });
    set_status(kubectl, "mv/tiny-chat-v2", "glance", &status);
    let table = kubectl.run(&["get", "mv", "-n", "glance"]).unwrap();
    let mut lines = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert_eq!(
        lines.next().unwrap().join(" "),
        "NAME MODEL VERSION READY STAGE GOAL WEIGHT STEP REPLICAS ROLLBACK-TO REASON AGE"
    );
    let row = lines.next().unwrap();
    assert_eq!(
        row[..11].join(" "),
        "tiny-chat-v2 tiny-chat 2 False Canary Production 25 2 1 1 Baking"
    );
    // And a script can wait for it.
    let wait = [
        "wait",
        "mv/tiny-chat-v2",
        "-n",
        "glance",
        "--for=condition=Ready",
    ];
    let early = kubectl
        .say(&[&wait[..], &["--timeout=0"]].concat(), None)
        .unwrap();
    assert!(!early.ok, "{early:?}");
    let ready = json!({"conditions": [{
        "type": "Ready", "status": "True", "reason": "Serving", "message": "serves all new runs",
        "lastTransitionTime": "2026-01-02T03:05:05Z", "observedGeneration": 1,
    }]});
    set_status(kubectl, "mv/tiny-chat-v2", "glance", &ready);
    kubectl
        .run(&[&wait[..], &["--timeout=30s"]].concat())
        .unwrap();
    // The category names all kinds at once.
    let all = kubectl
        .run(&["get", "weir", "-n", "glance", "-o", "name"])
        .unwrap();
    assert_eq!(all.trim(), "modelversion.weir.dev/tiny-chat-v2");
}

#[test]
fn a_status_is_written_only_through_its_subresource() {
    let Some(plane) = shared("a_status_is_written_only_through_its_subresource") else {
        return;
    };
    let kubectl = plane.kubectl();
    namespace(kubectl, "status");
    for file in ["model.yaml", "pool.yaml", "tenants.yaml"] {
        let mut object = example(file, "status");
        object["status"] = json!({"observedGeneration": 7});
        let created = kubectl.apply("weir-test", &object).unwrap();
        assert_eq!(created.get("status"), None, "{file}");
    }
    // Who changes the status changes nothing else, and raises no generation.
    let patch = json!({"spec": {"stage": "Retired"}, "status": {"observedGeneration": 1}});
    let to_status = ["--subresource=status"];
    kubectl
        .merge("mv/tiny-chat-v2", "status", &patch, &to_status)
        .unwrap();
    let now = kubectl.get(&["mv/tiny-chat-v2", "-n", "status"]).unwrap();
    assert_eq!(now["spec"]["stage"], "Production");
    assert_eq!(now["metadata"]["generation"], 1);
    assert_eq!(now["status"]["observedGeneration"], 1);
}
