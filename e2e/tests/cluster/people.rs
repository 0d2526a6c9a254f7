//! What people do with a cluster and what they are told.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use weir_e2e::cluster::{self, ControlPlane, Layer};
use weir_e2e::{Client, weir_command};

use crate::stage::{NAMESPACE, Stage, condition};

fn stage(test: &str) -> Option<Stage> {
    let binaries = cluster::layer(Layer::Api, test).unwrap()?;
    let stage = Stage::new(ControlPlane::start(&binaries).unwrap()).unwrap();
    stage.start_operator("a").unwrap();
    Some(stage)
}

/// `kubectl weir …`, as kubectl starts a plugin.
fn plugin(stage: &Stage, words: &[&str]) -> (bool, String) {
    let link = stage.site.path().join("kubectl-weir");
    if !link.exists() {
        let program = weir_command().get_program().to_owned();
        std::os::unix::fs::symlink(program, &link).unwrap();
    }
    let output = Command::new(link)
        .args(words)
        .env("KUBECONFIG", stage.plane.kubeconfig())
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.success(),
        text(&output.stdout) + &text(&output.stderr),
    )
}

fn ask(stage: &Stage, times: usize) {
    let client = stage.clients().remove(0);
    let body = json!({"model": "random", "input": "hello", "maxOutputTokens": 2});
    for _ in 0..times {
        let reply = client.post("/inference", &body).unwrap();
        assert_eq!(reply.status, 202, "{}", reply.body);
        let events = client.all_events(&reply.run_id(), 0).unwrap();
        assert_eq!(
            events.last().map(|end| end.kind.as_str()),
            Some("completed")
        );
    }
}

fn object(stage: &Stage, kind: &str, name: &str) -> Value {
    stage.kubectl().get(&[kind, name, "-n", NAMESPACE]).unwrap()
}

/// A version that waits for runs in its first step, since nobody asks.
pub(crate) fn in_its_first_step(stage: &Stage) {
    stage.apply("model-random-v1.yaml").unwrap();
    stage.wait_ready(1, 90);
    let plan = json!({"rollout": {
        "steps": [{"weightPercent": 20, "bake": "1s"}], "guardrails": {"minRequests": 10},
        "promote": "NoBreach", "finalBake": "1s",
    }});
    stage
        .site
        .add_prepared_model(("random", 2), &plan, |_| Ok(()))
        .unwrap();
    stage.apply("model-random-v2.yaml").unwrap();
    stage.wait("20 percent", 90, || {
        stage.version(2)["status"]["weightPercent"] == 20
    });
}

#[test]
fn people_steer_a_rollout_by_the_plugin_and_see_it_in_kubectl() {
    let Some(stage) = stage("steering by the plugin") else {
        return;
    };
    in_its_first_step(&stage);
    let wait = "--for=condition=Ready";
    stage
        .kubectl()
        .run(&["wait", "mv/random-v1", "-n", NAMESPACE, wait])
        .unwrap();
    let (shown, tree) = plugin(&stage, &["rollout", "status", "random"]);
    assert!(
        shown && tree.contains("step 1 of 1  attempt v2-1"),
        "{tree}"
    );
    let (paused, said) = plugin(&stage, &["rollout", "pause", "random"]);
    assert!(paused && stage.head()["paused"] == true, "{said}");
    let (resumed, said) = plugin(&stage, &["rollout", "resume", "random"]);
    assert!(resumed && stage.head()["paused"] == false, "{said}");
    let (promoted, said) = plugin(&stage, &["rollout", "promote", "random", "--full"]);
    assert!(promoted, "{said}");
    stage.wait("version 2 is stable", 90, || {
        stage.head()["stable"]["version"] == 2
    });
    let (refused, said) = plugin(&stage, &["rollout", "abort", "random"]);
    assert!(!refused, "there is no attempt: {said}");
    let (undone, said) = plugin(&stage, &["rollout", "undo", "random"]);
    assert!(undone, "{said}");
    stage.wait("version 1 is stable", 90, || {
        stage.head()["stable"]["version"] == 1
    });
    let (shown, history) = plugin(&stage, &["rollout", "history", "random"]);
    assert!(shown && history.contains("rejected v2"), "{history}");
    let (shown, top) = plugin(&stage, &["top"]);
    assert!(
        shown && top.contains("small") && top.contains("random"),
        "{top}"
    );
    // The statuses of both versions follow the head's.
    let get = ["get", "mv", "-n", NAMESPACE];
    stage.wait("kubectl get tells what became of both", 60, || {
        let table = stage.kubectl().run(&get).unwrap();
        table.contains("RolledBack") && table.contains("Serving")
    });
    let events = stage
        .kubectl()
        .run(&["get", "events", "-n", NAMESPACE])
        .unwrap();
    assert!(events.contains("Promoted"), "{events}");
    // Applied again, nothing differs.
    let file = stage.site.manifests().join("model-random-v1.yaml");
    let diff = [
        "diff",
        "--server-side",
        "--field-manager=people",
        "-n",
        NAMESPACE,
        "-f",
        file.to_str().unwrap(),
    ];
    let said = stage.kubectl().say(&diff, None).unwrap();
    assert!(said.ok, "{}", said.out);
}

#[test]
fn a_support_bundle_of_a_cluster_has_everything_but_secrets() {
    let Some(stage) = stage("a bundle of a cluster") else {
        return;
    };
    in_its_first_step(&stage);
    // Somebody has put a password where it does not belong.
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "odd", "namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": "weir"}},
        "spec": {"containers": [{"name": "one", "image": "img", "env": [{"name": "PGPASSWORD", "value": "hunter2"}], "args": ["--token=hunter3"]}]},
    });
    stage.kubectl().apply("people", &pod).unwrap();
    let path = stage.site.path().join("bundle.tar");
    let (written, said) = plugin(
        &stage,
        &["support-bundle", "--output", path.to_str().unwrap()],
    );
    assert!(written, "{said}");
    let text = |name: &str| {
        let output = Command::new("tar")
            .arg("-xOf")
            .arg(&path)
            .arg(format!("bundle/{name}"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{name}: {said}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(text("objects.json").contains("random-v2"));
    assert!(text("rollouts.json").contains("\"random\""));
    let deployments = text("cluster/deployments.json");
    assert!(deployments.contains("random"), "{deployments}");
    assert!(text("cluster/events.json").contains("RolloutStarted"));
    assert!(text("cluster/pods.json").contains("\"odd\""));
    assert!(text("cluster/version.json").contains("gitVersion"));
    let whole = std::fs::read(&path).unwrap();
    let whole = String::from_utf8_lossy(&whole);
    let secret = object(&stage, "secret", "acme-keys");
    let secret = secret["data"]["dev"].as_str().unwrap();
    for hidden in ["hunter2", "hunter3", secret] {
        assert!(!whole.contains(hidden), "{hidden} is in the bundle");
    }
}

#[test]
fn quotas_and_pools_tell_what_is_used_in_coarse_numbers() {
    let Some(stage) = stage("quotas and pools") else {
        return;
    };
    stage.apply("model-random-v1.yaml").unwrap();
    stage.wait_ready(1, 90);
    ask(&stage, 3);
    stage.wait("what was used", 30, || {
        object(&stage, "tenantquota", "acme")["status"]["windows"][0]["usedTokens"]
            .as_i64()
            .is_some_and(|used| used > 0)
    });
    let quota = object(&stage, "tenantquota", "acme");
    let window = &quota["status"]["windows"][0];
    let number = |field: &str| window[field].as_i64().unwrap();
    assert_eq!(
        number("limitTokens"),
        number("usedTokens") + number("reservedTokens") + number("availableTokens")
    );
    assert_eq!(
        condition(&quota, "Ready"),
        Some(("True".to_owned(), "Enforced".to_owned()))
    );
    // A limit below what is used takes nothing back, and lets nothing in.
    let patch = json!({"spec": {"windows": [{"period": "1h", "tokens": 1}]}});
    stage
        .kubectl()
        .merge("tenantquota/acme", NAMESPACE, &patch, &[])
        .unwrap();
    let body = json!({"model": "random", "input": "hello", "maxOutputTokens": 2});
    stage.wait("the lower limit acts", 20, || {
        let refused = |client: &Client| {
            let reply = client.post("/inference", &body);
            reply.is_ok_and(|reply| reply.code() == "budget_exceeded")
        };
        stage.clients().iter().all(refused)
    });
    stage.wait("what is left is negative", 30, || {
        object(&stage, "tenantquota", "acme")["status"]["windows"][0]["availableTokens"]
            .as_i64()
            .is_some_and(|left| left < 0)
    });
    let pool = object(&stage, "gpupool", "small");
    assert_eq!(pool["status"]["readyReplicas"], 1, "{pool:#}");
    assert_eq!(pool["status"]["models"][0]["stable"], 1);
    assert_eq!(pool["status"]["kvOccupancy"]["percent"], 0);
    let scale = stage
        .kubectl()
        .run(&[
            "get",
            "--raw",
            &format!("/apis/weir.dev/v1alpha1/namespaces/{NAMESPACE}/gpupools/small/scale"),
        ])
        .unwrap();
    assert!(scale.contains("weir.dev/pool=small"), "{scale}");
}

#[test]
fn a_pool_goes_to_sleep_and_the_first_run_wakes_it() {
    let Some(stage) = stage("a pool that sleeps") else {
        return;
    };
    let patch = json!({"spec": {"replicas": {"min": 0, "max": 2}, "scaling": {"scaleDownStabilization": "4s"}}});
    stage
        .kubectl()
        .merge("gpupool/small", NAMESPACE, &patch, &[])
        .unwrap();
    stage.apply("model-random-v1.yaml").unwrap();
    let replicas = || {
        stage
            .children("deployments")
            .first()
            .and_then(|one| one["spec"]["replicas"].as_i64())
    };
    stage.wait("it served", 90, || stage.head()["stable"]["version"] == 1);
    stage.wait("no worker", 60, || {
        replicas() == Some(0)
            && condition(&stage.version(1), "Ready")
                == Some(("True".to_owned(), "Asleep".to_owned()))
    });
    stage.wait("its worker has ended", 30, || {
        stage
            .kubectl()
            .get(&[
                "pods",
                "-n",
                NAMESPACE,
                "-l",
                "app.kubernetes.io/component=worker",
            ])
            .is_ok_and(|pods| pods["items"] == json!([]))
    });
    std::thread::sleep(Duration::from_secs(1));
    ask(&stage, 1);
    assert!(replicas().is_some_and(|replicas| replicas > 0));
}
