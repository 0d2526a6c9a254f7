//! A release on a real API server: installed, upgraded, swept and uninstalled. No node exists here, so no pod runs; the commands of hooks and
//! tests are run by hand, as the accounts that the chart gives them.

use serde_json::{Value, json};
use weir_e2e::cluster::{ControlPlane, Helm, Kubectl};

use crate::chart::helm;
use crate::plane::{example, own, set_status};

const SPACE: &str = "weir";

/// Runs what a hook's pod would, container after container.
fn play(kubectl: &Kubectl, account: &str, pod: &Value) {
    let user = format!("system:serviceaccount:{SPACE}:{account}");
    let kubectl = kubectl.as_user(&user);
    for list in ["initContainers", "containers"] {
        for container in pod[list].as_array().into_iter().flatten() {
            assert_eq!(container["command"], json!(["kubectl"]));
            let arguments: Vec<&str> = container["args"]
                .as_array()
                .unwrap()
                .iter()
                .map(|one| one.as_str().unwrap())
                .filter(|one| !one.starts_with("--cache-dir"))
                // The collector of garbage that foreground deletion waits for is a controller, of which there is none.
                .map(|one| {
                    if one == "--cascade=foreground" {
                        "--cascade=background"
                    } else {
                        one
                    }
                })
                .collect();
            kubectl.run(&arguments).unwrap();
        }
    }
}

fn exists(plane: &ControlPlane, object: &str) -> bool {
    let get = ["get", object, "-n", SPACE];
    plane.kubectl().say(&get, None).unwrap().ok
}

/// Something that the operator would have made.
fn child(kind: &str, version: &str, more: &Value) -> Value {
    let mut object = json!({
        "apiVersion": version, "kind": kind,
        "metadata": {"name": "weir-tiny-chat-v2-0", "namespace": SPACE, "labels": {"app.kubernetes.io/managed-by": "weir-operator"}},
    });
    for (key, value) in more.as_object().unwrap() {
        object[key] = value.clone();
    }
    object
}

/// What the operator would have made of a version.
fn make_children(kubectl: &Kubectl) {
    let selector = json!({"matchLabels": {"a": "b"}});
    let pod = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "w", "image": "w"}]}});
    for object in [
        child(
            "Deployment",
            "apps/v1",
            &json!({"spec": {"selector": selector, "template": pod}}),
        ),
        child("ConfigMap", "v1", &json!({})),
        // Who exchanges replicas in a pool.
        child(
            "Lease",
            "coordination.k8s.io/v1",
            &json!({"spec": {"holderIdentity": "a tiny-chat"}}),
        ),
        child(
            "Service",
            "v1",
            &json!({"spec": {"clusterIP": "None", "selector": {"a": "b"}}}),
        ),
        child(
            "NetworkPolicy",
            "networking.k8s.io/v1",
            &json!({"spec": {"podSelector": selector}}),
        ),
        child(
            "PodDisruptionBudget",
            "policy/v1",
            &json!({"spec": {"maxUnavailable": 1, "selector": selector}}),
        ),
    ] {
        kubectl.apply("weir-operator", &object).unwrap();
    }
}

fn install(helm: &Helm, kubectl: &Kubectl) {
    let release = ["weir", "charts/weir", "--namespace", SPACE];
    helm.run(
        &[
            &["install"],
            &release[..],
            &["--create-namespace", "--set", "postgresql.enabled=true"],
        ]
        .concat(),
    )
    .unwrap();
    for kind in ["modelversions", "gpupools", "tenantquotas"] {
        let name = format!("crd/{kind}.weir.dev");
        kubectl
            .run(&[
                "wait",
                "--for=condition=Established",
                "--timeout=60s",
                &name,
            ])
            .unwrap();
    }
}

#[test]
fn a_release_is_installed_upgraded_and_uninstalled_and_leaves_what_is_the_users() {
    let test = "a release on an API server";
    let (Some(helm), Some(plane)) = (helm(test), own(test)) else {
        return;
    };
    let helm = helm.on(&plane.kubeconfig());
    let kubectl = plane.kubectl();
    let release = ["weir", "charts/weir", "--namespace", SPACE];
    install(&helm, kubectl);
    // What people have.
    kubectl
        .apply("people", &example("model.yaml", SPACE))
        .unwrap();
    kubectl
        .apply("people", &example("pool.yaml", SPACE))
        .unwrap();
    set_status(
        kubectl,
        "mv/tiny-chat-v2",
        SPACE,
        &json!({"soleServing": true}),
    );
    let secret = || {
        kubectl
            .get(&["secret/weir-postgresql", "-n", SPACE])
            .unwrap()["data"]
            .clone()
    };
    let password = secret();
    // The same release with more: every kind that this API server has, and the password stays.
    let upgrade = [
        "--set",
        "postgresql.enabled=true,gateway.autoscaling.enabled=true,gateway.service.type=NodePort,monitoring.dashboard=true",
    ];
    helm.run(&[&["upgrade"], &release[..], &upgrade[..]].concat())
        .unwrap();
    assert_eq!(secret(), password, "another password than the volume's");
    assert!(exists(&plane, "hpa/weir-gateway") && exists(&plane, "configmap/weir-dashboard"));
    helm_test(kubectl, &helm.render(&[]).unwrap());
    make_children(kubectl);
    uninstall(&plane, &helm.render(&[]).unwrap());
    helm.run(&["uninstall", "weir", "--namespace", SPACE, "--no-hooks"])
        .unwrap();
    for gone in [
        "deployment/weir-operator",
        "deployment/weir-gateway",
        "role/weir-operator",
        "validatingadmissionpolicy/weir-sole-serving-version",
    ] {
        assert!(!exists(&plane, gone), "{gone} is still there");
    }
    for kept in [
        "mv/tiny-chat-v2",
        "gpupool/small",
        "secret/weir-postgresql",
        "crd/tenantquotas.weir.dev",
    ] {
        assert!(exists(&plane, kept), "{kept} is gone");
    }
    // A later release takes over what was kept.
    helm.run(
        &[
            &["install"],
            &release[..],
            &["--set", "postgresql.enabled=true"],
        ]
        .concat(),
    )
    .unwrap();
    assert_eq!(secret(), password);
}

/// `helm test`: its pod's commands do as its account, once both programs are there; before that they do not.
fn helm_test(kubectl: &Kubectl, rendered: &[Value]) {
    let hooks = rendered
        .iter()
        .filter(|object| object["metadata"]["annotations"]["helm.sh/hook"] == "test");
    let (pods, rights): (Vec<&Value>, Vec<&Value>) =
        hooks.partition(|object| object["kind"] == "Pod");
    for right in &rights {
        kubectl.apply("helm", right).unwrap();
    }
    let [pod] = pods[..] else {
        unreachable!("one pod tests")
    };
    // Helm would make it so.
    kubectl.apply("helm", pod).unwrap();
    let waits = pod["spec"]["initContainers"][0]["args"].as_array().unwrap();
    let waits: Vec<&str> = waits.iter().filter_map(Value::as_str).collect();
    let soon = waits.iter().map(|one| match *one {
        "--timeout=120s" => "--timeout=1s",
        other => other,
    });
    let user = format!("system:serviceaccount:{SPACE}:weir-test");
    let soon: Vec<&str> = soon.filter(|one| !one.starts_with("--cache-dir")).collect();
    let early = kubectl.as_user(&user).say(&soon, None).unwrap();
    assert!(
        !early.ok && early.err.contains("timed out"),
        "{}",
        early.err
    );
    for name in ["weir-operator", "weir-gateway"] {
        let deployment = kubectl
            .get(&[&format!("deployment/{name}"), "-n", SPACE])
            .unwrap();
        let replicas = deployment["spec"]["replicas"].as_u64().unwrap_or(1);
        let status = json!({
            "observedGeneration": deployment["metadata"]["generation"], "replicas": replicas, "updatedReplicas": replicas,
            "readyReplicas": replicas, "availableReplicas": replicas,
        });
        set_status(kubectl, &format!("deployment/{name}"), SPACE, &status);
    }
    play(kubectl, "weir-test", &pod["spec"]);
    let kinds = rights.into_iter().chain([pod]);
    for object in kinds {
        let (kind, name) = (&object["kind"], &object["metadata"]["name"]);
        let (kind, name) = (kind.as_str().unwrap(), name.as_str().unwrap());
        let delete = [
            "delete",
            kind,
            name,
            "-n",
            SPACE,
            "--grace-period=0",
            "--force",
        ];
        kubectl.run(&delete).unwrap();
    }
}

/// The hook: its rights are made, its pod's commands are run as its account, and nothing of the operator's is left.
fn uninstall(plane: &ControlPlane, rendered: &[Value]) {
    let kubectl = plane.kubectl();
    let hooks = rendered
        .iter()
        .filter(|object| object["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete");
    let (jobs, rights): (Vec<&Value>, Vec<&Value>) =
        hooks.partition(|object| object["kind"] == "Job");
    for right in &rights {
        kubectl.apply("helm", right).unwrap();
    }
    let [job] = jobs[..] else {
        unreachable!("one job sweeps")
    };
    kubectl.apply("helm", job).unwrap();
    play(kubectl, "weir-uninstall", &job["spec"]["template"]["spec"]);
    for kind in [
        "deployment",
        "configmap",
        "service",
        "networkpolicy",
        "poddisruptionbudget",
        "lease",
    ] {
        let name = format!("{kind}/weir-tiny-chat-v2-0");
        assert!(!exists(plane, &name), "{name} is still there");
    }
    assert!(!exists(plane, "deployment/weir-operator"));
    assert!(
        exists(plane, "configmap/weir-dashboard"),
        "what Helm made was swept"
    );
    let deleted = ["delete", "mv/tiny-chat-v2", "-n", SPACE, "--dry-run=server"];
    weir_e2e::wait_for("the policy to be lifted", 30, || {
        kubectl.say(&deleted, None).ok()?.ok.then_some(())
    })
    .unwrap();
    kubectl
        .run(&["delete", "job/weir-uninstall", "-n", SPACE])
        .unwrap();
    for right in rights {
        let name = right["metadata"]["name"].as_str().unwrap();
        let kind = right["kind"].as_str().unwrap();
        kubectl.run(&["delete", kind, name, "-n", SPACE]).unwrap();
    }
}
