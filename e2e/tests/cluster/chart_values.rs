//! What single values change in what the chart renders.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::chart::{by_name, helm};

fn arguments(of: &BTreeMap<String, Value>, component: &str) -> Vec<String> {
    let deployment = &of[&format!("Deployment/weir-{component}")];
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let arguments = container["args"].as_array().unwrap();
    arguments
        .iter()
        .map(|one| one.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn workers_that_stay_when_the_release_goes_keep_what_a_new_pod_of_theirs_needs() {
    let Some(helm) = helm("what stays with workers") else {
        return;
    };
    let needed = [
        "Secret/weir-authority",
        "Secret/weir-gateway-identity",
        "Secret/weir-worker-identity",
    ];
    let kept = |sweep: &str| -> Vec<String> {
        let rendered = by_name(helm.render(&["--set", sweep]).unwrap());
        let keep = |object: &Value| {
            object["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
                && object["kind"] != "CustomResourceDefinition"
        };
        let kept = rendered.into_iter().filter(|(_, object)| keep(object));
        kept.map(|(name, _)| name).collect()
    };
    assert_eq!(kept("uninstall.sweep=false"), needed);
    // Where nothing of them stays, nothing is left over.
    assert_eq!(kept("uninstall.sweep=true"), Vec::<String>::new());
}

#[test]
fn workers_are_told_of_a_cache_of_their_node_where_there_is_one() {
    let Some(helm) = helm("a cache of the node") else {
        return;
    };
    let told = |set: &[&str]| {
        let rendered = by_name(helm.render(set).unwrap());
        let arguments = arguments(&rendered, "operator");
        arguments
            .into_iter()
            .find(|one| one.starts_with("--node-cache"))
    };
    assert_eq!(told(&[]), None);
    let set = ["--set", "artifacts.nodeCache=/var/cache/weir"];
    assert_eq!(told(&set).unwrap(), "--node-cache=/var/cache/weir");
}

#[test]
fn a_gateway_that_is_to_leave_at_once_does_not_sleep_first() {
    let Some(helm) = helm("how long a gateway leaves") else {
        return;
    };
    let pod = |set: &[&str]| {
        let mut rendered = by_name(helm.render(set).unwrap());
        let deployment = rendered.remove("Deployment/weir-gateway").unwrap();
        deployment["spec"]["template"]["spec"].clone()
    };
    let usual = pod(&[]);
    let sleep = json!({"preStop": {"sleep": {"seconds": 5}}});
    assert_eq!(usual["containers"][0]["lifecycle"], sleep);
    assert_eq!(usual["terminationGracePeriodSeconds"], 5 + 30 + 15);
    let at_once = pod(&["--set", "gateway.leaveSeconds=0"]);
    assert!(at_once["containers"][0].get("lifecycle").is_none());
    assert_eq!(at_once["terminationGracePeriodSeconds"], 30 + 15);
}
