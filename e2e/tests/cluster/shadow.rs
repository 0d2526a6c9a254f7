//! Versions in the shadow on a cluster: several gateways mirror and ask references, the operator decides by all of their counts.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};
use weir_e2e::cluster::{self, ControlPlane, Layer};
use weir_e2e::{reference_lines, write_other_weights};

use crate::load::Load;
use crate::stage::Stage;

fn plan() -> Value {
    json!({
        "steps": [{"weightPercent": 20, "bake": "1s"}, {"weightPercent": 50, "bake": "10m"}],
        "guardrails": {"errorRatePercent": 5, "minRequests": 10}, "promote": "NoBreach", "finalBake": "1s",
    })
}

#[test]
fn a_version_that_answers_its_references_wrong_gets_no_user_and_one_that_agrees_goes_on() {
    let Some(binaries) = cluster::layer(Layer::Api, "the shadow").unwrap() else {
        return;
    };
    let mut stage = Stage::new(ControlPlane::start(&binaries).unwrap()).unwrap();
    stage.start_gateway().unwrap();
    stage.start_operator("a").unwrap();
    stage.apply("model-random-v1.yaml").unwrap();
    stage.wait_ready(1, 60);
    stage.wait("an answer of each gateway", 30, || {
        let body = json!({"model": "random", "input": "hello", "maxOutputTokens": 1});
        let answers = |client: &weir_e2e::Client| {
            client
                .post("/inference", &body)
                .is_ok_and(|reply| reply.status == 202)
        };
        stage.clients().iter().all(answers)
    });
    let right = reference_lines(&stage.clients()[0], 24).unwrap();
    let load = Load::during(&stage, |_| {
        let other_weights = |dir: &Path| -> Result<()> {
            write_other_weights(dir)?;
            std::fs::write(dir.join("references.jsonl"), &right)?;
            Ok(())
        };
        stage
            .site
            .add_prepared_model(("random", 2), &json!({"rollout": plan()}), other_weights)
            .unwrap();
        stage.apply("model-random-v2.yaml").unwrap();
        stage.wait("version 2 is rejected", 60, || {
            stage.version(2)["status"]["rejected"]["reason"] == "ShadowRegression"
        });
        let rejected = &stage.version(2)["status"]["rejected"];
        assert_eq!(rejected["guardrail"], "references", "{rejected}");
        // The same weights as the version that serves, mirrored too: it passes, and takes its first share.
        let mut mirrored = plan();
        mirrored["shadow"] = json!({"percent": 100, "minRequests": 20, "agreementPercent": "90"});
        stage
            .site
            .add_prepared_model(("random", 3), &json!({"rollout": mirrored}), |dir| {
                Ok(std::fs::write(dir.join("references.jsonl"), &right)?)
            })
            .unwrap();
        stage.apply("model-random-v3.yaml").unwrap();
        stage.wait("version 3 takes its first share", 60, || {
            stage.version(3)["status"]["weightPercent"] == 20
        });
    });
    assert_eq!(load.failures(), Vec::<String>::new());
    assert!(!load.versions().contains(&2), "no user of version 2");
}
