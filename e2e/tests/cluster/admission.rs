//! The policies in `deploy/admission.yaml`.

use serde_json::json;
use weir_e2e::{repository, wait_for};

use crate::plane::{example, namespace, set_status, shared};

#[test]
fn the_only_version_that_serves_cannot_be_deleted_before_it_is_retired() {
    let Some(plane) = shared("the_only_version_that_serves_cannot_be_deleted") else {
        return;
    };
    let kubectl = plane.kubectl();
    namespace(kubectl, "sole");
    let mut object = example("model.yaml", "sole");
    kubectl.apply("weir-test", &object).unwrap();
    let policy = repository()
        .join("deploy/admission.yaml")
        .display()
        .to_string();
    kubectl
        .run(&["apply", "--server-side", "-f", &policy])
        .unwrap();
    set_status(
        kubectl,
        "mv/tiny-chat-v2",
        "sole",
        &json!({"soleServing": true}),
    );
    let delete = ["delete", "mv/tiny-chat-v2", "-n", "sole"];
    let dry = [&delete[..], &["--dry-run=server"]].concat();
    // A policy comes into force a moment after it was written.
    let refused = wait_for("the policy to be in force", 30, || {
        let said = kubectl.say(&dry, None).ok()?;
        (!said.ok).then_some(said.err)
    })
    .unwrap();
    assert!(
        refused.contains("version 2 is the only one that serves tiny-chat"),
        "{refused}"
    );
    // A version beside others may go.
    set_status(
        kubectl,
        "mv/tiny-chat-v2",
        "sole",
        &json!({"soleServing": false}),
    );
    kubectl.run(&dry).unwrap();
    set_status(
        kubectl,
        "mv/tiny-chat-v2",
        "sole",
        &json!({"soleServing": true}),
    );
    // The controller that empties a namespace is not held up.
    let controller = "system:serviceaccount:kube-system:namespace-controller";
    let said = kubectl.as_user(controller).say(&dry, None).unwrap();
    assert!(!said.err.contains("only one that serves"), "{}", said.err);
    // And so may one whose service is meant to end.
    object["spec"]["stage"] = json!("Retired");
    kubectl.apply("weir-test", &object).unwrap();
    kubectl.run(&delete).unwrap();
}
