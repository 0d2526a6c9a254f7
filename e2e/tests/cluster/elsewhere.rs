//! The tests on a cluster that exists already, which here is another control plane of ours.

use std::process::Command;

use weir_e2e::cluster::{EXISTING, Existing, NO_LAYER};

use crate::plane::own;

#[test]
fn on_an_existing_cluster_tests_run_without_one_of_their_own_and_leave_nothing() {
    let Some(plane) = own("tests on an existing cluster") else {
        return;
    };
    let existing = Existing::at(&plane.kubeconfig()).unwrap();
    let tests = ["rules::", "definitions::the_definitions_are_taken"];
    let told = Command::new(std::env::current_exe().unwrap())
        .args(tests)
        .arg("--nocapture")
        .env(EXISTING, plane.kubeconfig())
        .env("WEIR_CLUSTER_LAYERS", NO_LAYER)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&told.stdout) + String::from_utf8_lossy(&told.stderr);
    assert!(told.status.success(), "{said}");
    assert!(said.contains("4 passed"), "{said}");
    assert!(!said.contains("SKIPPED"), "{said}");
    let spaces = ["namespaces", "-l", "weir.dev/e2e=true"];
    let made = plane.kubectl().get(&spaces).unwrap();
    assert!(!made["items"].as_array().unwrap().is_empty(), "{said}");
    // Only one that Weir is not installed on is taken.
    assert!(Existing::at(&plane.kubeconfig()).is_err());
    existing.clean().unwrap();
    let kinds = plane.kubectl().run(&["get", "crd", "-o", "name"]).unwrap();
    assert_eq!(kinds, "");
    for space in plane.kubectl().get(&spaces).unwrap()["items"]
        .as_array()
        .unwrap()
    {
        // Nobody empties namespaces without controllers.
        assert!(
            space["metadata"]["deletionTimestamp"].is_string(),
            "{space}"
        );
    }
}
