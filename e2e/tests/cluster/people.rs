//! What people do with a cluster and what they are told.

use std::time::Duration;

use serde_json::json;
use weir_e2e::cluster::{self, ControlPlane, Layer};

use crate::stage::{NAMESPACE, Stage, condition};

fn stage(test: &str) -> Option<Stage> {
    let binaries = cluster::layer(Layer::Api, test).unwrap()?;
    let stage = Stage::new(ControlPlane::start(&binaries).unwrap()).unwrap();
    stage.start_operator("a").unwrap();
    Some(stage)
}

fn ask(stage: &Stage, times: usize) {
    let client = stage.client();
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

#[test]
fn a_pool_goes_to_sleep_and_the_first_run_wakes_it() {
    let Some(stage) = stage("a pool that sleeps") else {
        return;
    };
    let patch = json!({"spec": {"replicas": {"min": 0, "max": 2}, "scaling": {"scaleDownStabilization": "4s"}}}).to_string();
    stage
        .kubectl()
        .run(&[
            "patch",
            "gpupool",
            "small",
            "-n",
            NAMESPACE,
            "--type=merge",
            "-p",
            &patch,
        ])
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
