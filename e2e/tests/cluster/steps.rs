//! What a test can do to a control plane: the other tests rest on it.

use std::time::Duration;

use serde_json::json;

use crate::plane::own;

#[test]
fn an_api_server_is_frozen_killed_and_comes_back_with_what_it_knew() {
    let Some(plane) = own("an_api_server_is_frozen_killed_and_comes_back") else {
        return;
    };
    let kubectl = plane.kubectl();
    let map = |value: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "seen", "namespace": "default"}, "data": {"value": value},
        })
    };
    let first = kubectl.apply("weir-test", &map("1")).unwrap();
    let quick = ["get", "configmap/seen", "--request-timeout=1s"];
    plane.apiserver().freeze().unwrap();
    assert!(!kubectl.say(&quick, None).unwrap().ok, "it answers frozen");
    plane.apiserver().thaw().unwrap();
    kubectl.run(&["get", "configmap/seen"]).unwrap();
    plane.apiserver().kill().unwrap();
    assert!(!kubectl.say(&quick, None).unwrap().ok, "it answers killed");
    plane.start_apiserver().unwrap();
    let again = kubectl.get(&["configmap/seen"]).unwrap();
    assert_eq!(again["metadata"]["uid"], first["metadata"]["uid"]);
    // Compacted away is what a watcher saw before: after a restart the API server says so.
    kubectl.apply("weir-test", &map("2")).unwrap();
    plane.compact().unwrap();
    plane.apiserver().stop().unwrap();
    plane.start_apiserver().unwrap();
    let version = first["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!(
        "/api/v1/namespaces/default/configmaps?watch=1&resourceVersion={version}&timeoutSeconds=5"
    );
    let said = kubectl.say(&["get", "--raw", &path], None).unwrap();
    assert!(
        format!("{}{}", said.out, said.err).contains("too old resource version"),
        "{said:?}"
    );
}

#[test]
fn the_audit_log_names_who_wrote_what() {
    let Some(plane) = own("the_audit_log_names_who_wrote_what") else {
        return;
    };
    let audit = plane.audit();
    let mark = audit.mark();
    let kubectl = plane.kubectl().as_user("somebody");
    let said = kubectl.say(&["create", "configmap", "mine"], None).unwrap();
    assert!(
        said.err.contains("Forbidden") || said.err.contains("forbidden"),
        "{said:?}"
    );
    let writes = audit.writes_since(mark, "somebody").unwrap();
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert_eq!((writes[0].verb.as_str(), writes[0].status), ("create", 403));
    assert_eq!(writes[0].resource, "configmaps");
    assert!(
        audit
            .writes_since(audit.mark(), "somebody")
            .unwrap()
            .is_empty()
    );
    // Nobody else writes behind a test's back for long: without controllers the server is quiet.
    weir_e2e::wait_for("a quiet second", 60, || {
        let mark = audit.mark();
        std::thread::sleep(Duration::from_secs(1));
        let calls = audit.since(mark).ok()?;
        calls
            .iter()
            .all(|call| !call.is_write() || call.resource == "leases")
            .then_some(())
    })
    .unwrap();
}
