use std::collections::BTreeMap;

use serde_json::json;
use weir_api::{GpuPool, ModelVersion, Validate as _, parse};

use super::*;
use crate::model::claim::{claim, claimed_digest};
use crate::model::view::View;

fn version(uri: &str) -> ValidModelVersion {
    let object: ModelVersion = parse(&json!({
        "apiVersion": "weir.dev/v1alpha1", "kind": "ModelVersion", "metadata": {"name": "tiny-v2"},
        "spec": {
            "model": "tiny", "version": 2, "stage": "Production", "pool": "small",
            "manifest": {
                "artifact": {"uri": uri},
                "files": [{"path": "weir-manifest.json", "sha256": "a".repeat(64), "size": 1 << 20}],
                "architecture": "LlamaForCausalLM", "precision": "bf16", "contextTokens": 64, "requestSchema": 1,
            },
            "signature": {"file": "model.sig"},
            "price": {"outputMicrosPerToken": 4},
        },
    }))
    .unwrap();
    object.validate().unwrap()
}

fn pool(more: &Value) -> ValidGpuPool {
    let mut spec = json!({
        "accelerator": {"type": "cpu"}, "replicas": {"min": 1, "max": 1},
        "engine": {"kvMemory": "512Mi", "maxRunning": 8},
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let object: GpuPool = parse(&json!({
        "apiVersion": "weir.dev/v1alpha1", "kind": "GpuPool", "metadata": {"name": "small"}, "spec": spec,
    }))
    .unwrap();
    object.validate().unwrap()
}

/// The children of a version that has workers of its own.
#[derive(Debug)]
struct Made {
    plan: Value,
    policy: Value,
    deployment: Value,
}

fn made(uri: &str, more: &Value) -> Result<Made, Refused> {
    made_of(&version(uri), more, (None, false))
}

fn made_of(
    version: &ValidModelVersion,
    more: &Value,
    (node_cache, is_mutual): (Option<&str>, bool),
) -> Result<Made, Refused> {
    let children = children_of(version, more, (node_cache, is_mutual))?;
    let workers = children.workers.expect("workers of its own");
    Ok(Made {
        plan: children.plan,
        policy: workers.policy,
        deployment: workers.deployment,
    })
}

fn children_of(
    version: &ValidModelVersion,
    more: &Value,
    (node_cache, is_mutual): (Option<&str>, bool),
) -> Result<Children, Refused> {
    let (id, claim) = (
        VersionId::new(2, claimed_digest(version)),
        claim(version).unwrap(),
    );
    let shape = Shape {
        namespace: "ns".to_owned(),
        worker_image: "weir-worker:1".to_owned(),
        artifacts: "/artifacts".to_owned(),
        node_cache: node_cache.map(str::to_owned),
        is_mutual,
        drain_s: 300,
    };
    let trust = TrustPolicySpec::default();
    let signed = Signed {
        version,
        id: &id,
        claim: &claim,
        trust: &trust,
    };
    children(&shape, &signed, &pool(more))
}

#[test]
fn a_worker_keeps_to_the_restricted_profile() {
    let children = made("pvc://models/tiny/v2", &json!({})).unwrap();
    let pod = &children.deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(
        pod["securityContext"]["seccompProfile"],
        json!({"type": "RuntimeDefault"})
    );
    assert_eq!(
        container["securityContext"],
        json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}})
    );
    for volume in pod["volumes"].as_array().unwrap() {
        let kinds = ["configMap", "emptyDir", "persistentVolumeClaim", "image"];
        assert!(
            kinds.iter().any(|kind| volume.get(kind).is_some()),
            "{volume}"
        );
    }
    assert_eq!(pod["terminationGracePeriodSeconds"], 310);
}

#[test]
fn a_worker_asks_gateways_who_they_are_where_certificates_are_issued_and_else_says_that_it_does_not()
 {
    let of = |is_mutual| {
        made_of(
            &version("pvc://models/tiny/v2"),
            &json!({}),
            (None, is_mutual),
        )
        .unwrap()
    };
    let pod = |children: &Made| children.deployment["spec"]["template"]["spec"].clone();
    let (plain, mutual) = (pod(&of(false)), pod(&of(true)));
    let has = |pod: &Value, argument: &str| {
        let arguments = pod["containers"][0]["args"].as_array().unwrap();
        arguments.contains(&json!(argument))
    };
    let folder = "--workload-identity=/etc/weir-identity";
    assert!(has(&plain, "--plain-sessions") && !has(&plain, folder));
    assert!(has(&mutual, folder) && !has(&mutual, "--plain-sessions"));
    let mount = json!({"name": "identity", "mountPath": "/etc/weir-identity", "readOnly": true});
    let mounts = mutual["containers"][0]["volumeMounts"].as_array().unwrap();
    assert!(mounts.contains(&mount));
    let volumes = mutual["volumes"].as_array().unwrap();
    let volume = volumes
        .iter()
        .find(|one| one["name"] == "identity")
        .unwrap();
    let secret = &volume["secret"];
    assert_eq!(secret["secretName"], "weir-worker-identity");
    // Readable by the worker's group, and by nobody else; what is not issued yet is waited for.
    assert_eq!(secret["defaultMode"], 0o440);
    assert_eq!(secret["items"].as_array().unwrap().len(), 3);
    assert_eq!(
        plain["volumes"].as_array().unwrap().len() + 1,
        volumes.len()
    );
}

#[test]
fn a_worker_is_told_what_to_load_and_where_it_is() {
    let children = made("pvc://models/tiny/v2", &json!({})).unwrap();
    let plan: Value =
        serde_json::from_str(children.plan["data"]["plan.json"].as_str().unwrap()).unwrap();
    assert_eq!(plan["dir"], "/artifacts/models/tiny/v2");
    assert_eq!(plan["digest"], format!("sha256:{}", "a".repeat(64)));
    assert_eq!(plan["signature"], json!({"file": "model.sig"}));
    let served: Value =
        serde_json::from_str(children.plan["data"]["version.json"].as_str().unwrap()).unwrap();
    assert_eq!(served["price"]["outputMicrosPerToken"], 4);
    assert_eq!(served["dir"], plan["dir"]);
    let pod = &children.deployment["spec"]["template"]["spec"];
    let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap();
    assert!(mounts.contains(
        &json!({"name": "artifact", "mountPath": "/artifacts/models", "readOnly": true})
    ));
    let args = pod["containers"][0]["args"].as_array().unwrap();
    assert!(
        args.contains(&json!("--kv-bytes=536870912")) && args.contains(&json!("--max-running=8"))
    );
    assert_eq!(
        pod["containers"][0]["resources"]["requests"]["memory"],
        "769Mi"
    );
    assert_eq!(
        children.deployment["spec"].get("replicas"),
        None,
        "their number is the rollout's"
    );
}

/// The volume of this name, and where it is mounted.
fn volume(children: &Made, name: &str) -> Option<(Value, Value)> {
    let pod = &children.deployment["spec"]["template"]["spec"];
    let find = |list: &Value| {
        let mut list = list.as_array().unwrap().iter();
        list.find(|one| one["name"] == name).cloned()
    };
    find(&pod["volumes"]).zip(find(&pod["containers"][0]["volumeMounts"]))
}

#[test]
fn what_is_elsewhere_is_fetched_by_the_worker_into_a_cache_with_the_secret_of_the_place() {
    let mut version = version("s3://models/tiny/v2");
    version.manifest.artifact_secret = Some("models-s3".to_owned());
    let limits = json!({"fetch": {"bytesPerSecond": "100Mi", "cacheSize": "200Gi", "parallel": 2}});
    let children = made_of(&version, &limits, (None, false)).unwrap();
    let plan: Value =
        serde_json::from_str(children.plan["data"]["plan.json"].as_str().unwrap()).unwrap();
    assert_eq!(
        plan["fetch"],
        json!({
            "uri": "s3://models/tiny/v2", "cache": "/var/cache/weir/models", "cacheBytes": 200_u64 << 30,
            "bytesPerSecond": 100 << 20, "parallel": 2, "secret": "/etc/weir-artifact",
        })
    );
    let served: Value =
        serde_json::from_str(children.plan["data"]["version.json"].as_str().unwrap()).unwrap();
    assert_eq!(served["fetch"]["secret"], "models-s3");
    assert_eq!(served["fetch"]["files"][0]["path"], "weir-manifest.json");
    let (secret, mount) = volume(&children, "artifact-secret").unwrap();
    assert_eq!(secret["secret"]["secretName"], "models-s3");
    assert_eq!(
        (&mount["mountPath"], &mount["readOnly"]),
        (&json!("/etc/weir-artifact"), &json!(true))
    );
    assert_eq!(children.policy["spec"]["egress"], json!([{}]));
    // Without anything else the files are the pod's own, and take room of its node.
    let (cache, mount) = volume(&children, CACHE).unwrap();
    assert_eq!(cache["emptyDir"], json!({}));
    assert_eq!(mount["mountPath"], "/var/cache/weir/models");
    let requests = |children: &Made| {
        children.deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]
            .clone()
    };
    assert_eq!(requests(&children)["ephemeral-storage"], "1Mi");
    // A folder of the node, or the pool's claim, outlives it.
    let node = made_of(&version, &json!({}), (Some("/var/lib/weir/models"), false)).unwrap();
    let (cache, _) = volume(&node, CACHE).unwrap();
    assert_eq!(
        cache["hostPath"],
        json!({"path": "/var/lib/weir/models", "type": "Directory"})
    );
    assert_eq!(requests(&node).get("ephemeral-storage"), None);
    let plan: Value =
        serde_json::from_str(node.plan["data"]["plan.json"].as_str().unwrap()).unwrap();
    assert_eq!(plan["fetch"]["freePercent"], 20);
    let claim = json!({"fetch": {"cacheClaim": "models"}});
    let claim = made_of(&version, &claim, (Some("/var/lib/weir/models"), false)).unwrap();
    let (cache, _) = volume(&claim, CACHE).unwrap();
    assert_eq!(
        cache["persistentVolumeClaim"],
        json!({"claimName": "models"})
    );
}

#[test]
fn nothing_is_fetched_from_a_path_and_whoever_gives_one_mounts_it() {
    let local = made("file:/models/tiny", &json!({})).unwrap();
    let volumes = &local.deployment["spec"]["template"]["spec"]["volumes"];
    assert_eq!(volumes.as_array().unwrap().len(), 2);
    let plan = local.plan["data"]["plan.json"].as_str().unwrap();
    assert!(
        plan.contains("\"/models/tiny\"") && !plan.contains("fetch"),
        "{plan}"
    );
}

#[test]
fn keys_and_values_on_a_gpu_take_its_own_memory_and_all_that_is_left_of_it() {
    let worker = |more: &Value| {
        let children = made("pvc://m", more).unwrap();
        children.deployment["spec"]["template"]["spec"]["containers"][0].clone()
    };
    let says = |worker: &Value, what: &str| {
        let arguments = worker["args"].as_array().unwrap();
        arguments
            .iter()
            .any(|one| one.as_str().unwrap().contains(what))
    };
    let gpu = json!({"type": "gpu", "resourceName": "nvidia.com/gpu", "count": 1});
    let (cpu, gpu) = (
        worker(&json!({"engine": {"maxRunning": 8}})),
        worker(&json!({"accelerator": gpu, "engine": {"maxRunning": 8}})),
    );
    assert!(says(&cpu, "--kv-bytes=1073741824"), "{cpu}");
    assert!(!says(&gpu, "kv-bytes"), "{gpu}");
    assert!(says(&gpu, "--max-batch-tokens=8192"), "{gpu}");
    let memory = |worker: &Value| worker["resources"]["requests"]["memory"].clone();
    assert_ne!(memory(&cpu), memory(&gpu));
}

#[test]
fn accelerators_are_asked_for_by_resource_or_by_claim() {
    let gpu = json!({"accelerator": {"type": "gpu", "resourceName": "nvidia.com/gpu", "count": 2, "nodeSelector": {"gpu": "h200"}}});
    let children = made("pvc://m", &gpu).unwrap();
    let pod = &children.deployment["spec"]["template"]["spec"];
    assert_eq!(
        pod["containers"][0]["resources"]["limits"],
        json!({"nvidia.com/gpu": "2"})
    );
    assert_eq!(pod["nodeSelector"], json!({"gpu": "h200"}));
    let claim = json!({"accelerator": {"type": "claim", "claimTemplate": "h200"}});
    let children = made("pvc://m", &claim).unwrap();
    let pod = &children.deployment["spec"]["template"]["spec"];
    assert_eq!(
        pod["resourceClaims"],
        json!([{"name": "accelerator", "resourceClaimTemplateName": "h200"}])
    );
    assert_eq!(
        pod["containers"][0]["resources"]["claims"],
        json!([{"name": "accelerator"}])
    );
}

/// What the worker of a pool is told to compute on.
fn device(pool: &Value) -> Option<Value> {
    let children = made("pvc://m", pool).unwrap();
    let environment = &children.deployment["spec"]["template"]["spec"]["containers"][0]["env"];
    let environment = environment.as_array().unwrap();
    let named = |entry: &&Value| entry["name"] == "WEIR_DEVICE";
    let mut found = environment.iter().filter(named);
    let value = found.next().map(|entry| entry["value"].clone());
    assert_eq!(found.next(), None, "said once");
    value
}

#[test]
fn a_worker_takes_the_accelerator_of_its_pool_unless_the_template_says_otherwise() {
    let gpu = json!({"type": "gpu", "resourceName": "nvidia.com/gpu", "count": 1});
    let claim = json!({"type": "claim", "claimTemplate": "h200"});
    assert_eq!(device(&json!({})), None);
    assert_eq!(device(&json!({"accelerator": gpu})), Some(json!("cuda")));
    assert_eq!(device(&json!({"accelerator": claim})), Some(json!("cuda")));
    let template = json!({"spec": {"containers": [{
        "name": "worker", "env": [{"name": "WEIR_DEVICE", "value": "cpu"}],
    }]}});
    assert_eq!(
        device(&json!({"accelerator": gpu, "podTemplate": template})),
        Some(json!("cpu"))
    );
}

#[test]
fn only_gateways_may_talk_to_a_worker_and_a_worker_talks_to_nobody() {
    let spec = made("pvc://m", &json!({})).unwrap().policy["spec"].clone();
    assert_eq!(spec["policyTypes"], json!(["Ingress", "Egress"]));
    assert_eq!(spec.get("egress"), None);
    let sessions = &spec["ingress"][0];
    assert_eq!(
        sessions["from"],
        json!([{"podSelector": {"matchLabels": {"app.kubernetes.io/component": "gateway"}}}])
    );
    assert_eq!(
        sessions["ports"],
        json!([{"protocol": "TCP", "port": "session"}])
    );
}

#[test]
fn a_template_that_asks_for_too_much_makes_nothing() {
    let refused = made(
        "pvc://m",
        &json!({"podTemplate": {"spec": {"hostPID": true}}}),
    )
    .unwrap_err();
    assert_eq!(refused.0, "spec.hostPID");
}

#[test]
fn a_version_that_its_pools_workers_hold_has_none_of_its_own() {
    let of = |uri: &str, more: Value| children_of(&version(uri), &more, (None, false)).unwrap();
    let shared = of("pvc://models/tiny/v2", json!({"sharing": "Shared"}));
    assert_eq!(shared.workers, None);
    let served = shared.plan["data"]["version.json"].as_str().unwrap();
    assert!(served.contains(r#""claim":"models""#), "{served}");
    // What workers of several versions cannot do is done by workers of one.
    let gpu = json!({"sharing": "Shared", "accelerator": {"type": "gpu", "resourceName": "nvidia.com/gpu"}});
    assert!(of("pvc://models/tiny/v2", gpu).workers.is_some());
    let fetched = of("https://a.example/tiny", json!({"sharing": "Shared"}));
    assert!(fetched.workers.is_some());
}

#[test]
fn workers_of_a_shared_pool_hold_what_the_plans_in_its_folder_name() {
    let shape = Shape {
        namespace: "ns".to_owned(),
        worker_image: "weir-worker:1".to_owned(),
        artifacts: "/artifacts".to_owned(),
        node_cache: None,
        is_mutual: false,
        drain_s: 300,
    };
    let pool = pool(&json!({"sharing": "Shared", "maxVersions": 3}));
    let plans = |names: &[&str]| {
        names
            .iter()
            .map(|name| ((*name).to_owned(), "{}".to_owned()))
            .collect()
    };
    let claims = ["models".to_owned(), "more".to_owned()];
    let made = several(&shape, &pool, &plans(&["a.json"]), claims.clone().into()).unwrap();
    let name = made.plans["metadata"]["name"].clone();
    assert_eq!(made.plans["data"], json!({"a.json": "{}"}));
    let workers = &made.workers;
    for child in [
        &workers.policy,
        &workers.service,
        &workers.disruption,
        &workers.deployment,
    ] {
        assert_eq!(child["metadata"]["name"], name);
    }
    let template = &workers.deployment["spec"]["template"];
    let selected = &workers.deployment["spec"]["selector"]["matchLabels"];
    assert_eq!(selected, &workers.service["spec"]["selector"]);
    for (label, value) in selected.as_object().unwrap() {
        assert_eq!(&template["metadata"]["labels"][label], value);
    }
    let labels = template["metadata"]["labels"].as_object().unwrap();
    assert!(!labels.contains_key("weir.dev/version"), "{labels:?}");
    let container = &template["spec"]["containers"][0];
    let arguments = container["args"].to_string();
    assert!(arguments.contains(r#""--versions=/etc/weir""#));
    assert!(arguments.contains("--max-versions=3") && !arguments.contains("load-plan"));
    let volumes = template["spec"]["volumes"].to_string();
    assert!(
        volumes.contains(r#""claimName":"models""#) && volumes.contains(r#""claimName":"more""#)
    );
    let mounts = container["volumeMounts"].to_string();
    assert!(mounts.contains("/artifacts/models") && mounts.contains("/artifacts/more"));
    // Workers do not start anew because a version comes or goes.
    let two = plans(&["a.json", "b.json"]);
    let other = several(&shape, &pool, &two, claims.clone().into()).unwrap();
    assert_eq!(other.workers, made.workers);
    // What serves keeps its place though there are fewer now.
    let four = plans(&["a.json", "b.json", "c.json", "d.json"]);
    let fuller = several(&shape, &pool, &four, claims.into()).unwrap();
    let arguments =
        fuller.workers.deployment["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    assert!(arguments.contains("--max-versions=4"), "{arguments}");
}

#[test]
fn a_version_that_workers_of_a_pool_hold_stays_there_though_the_pool_is_gone_and_it_names_another_one()
 {
    use crate::model::child::ChildSeen;
    use crate::model::forms::{Form, Forms};
    let small = pool(&json!({}));
    let view = View {
        versions: Vec::new(),
        pools: [(small.name.clone(), small)].into(),
        children: BTreeMap::new(),
        forms: BTreeMap::new(),
        child_pools: BTreeMap::new(),
        log: Vec::new(),
        damaged: Vec::new(),
        gateways: Vec::new(),
    };
    let held = |desired, pool: &str| {
        let seen = ChildSeen {
            desired,
            ..ChildSeen::default()
        };
        let seats = Form {
            seen,
            ..Form::default()
        };
        Forms {
            seats: Some(seats),
            pool: pool.to_owned(),
            ..Forms::default()
        }
    };
    let version = version("pvc://models/tiny/v2");
    let pool_of = |forms: &Forms| {
        view.pool_of(&version, Some(forms))
            .map(|pool| pool.name.clone())
    };
    assert_eq!(pool_of(&held(1, "gone")), None);
    assert_eq!(pool_of(&held(0, "gone")).as_deref(), Some("small"));
    assert_eq!(pool_of(&held(1, "small")).as_deref(), Some("small"));
}
