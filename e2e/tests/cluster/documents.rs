//! The commands in documents that are for a cluster, run on one as they are written there.

use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::json;
use weir_e2e::cluster::{self, Binaries, ControlPlane, Layer};
use weir_e2e::documents::{Shell, commands, pages};
use weir_e2e::{repository, weir_command};

use crate::people::in_its_first_step;
use crate::stage::{NAMESPACE, Stage};

/// Commands that are not run here, each with the reason.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "helm ",
        "`release.rs` installs, upgrades and uninstalls the chart; its tests need pods that run",
    ),
    ("weir operator ", "every test here starts one"),
    ("weir gateway --cluster ", "every test here starts some"),
    (
        "kubectl apply -f examples/gitops/argocd.yaml",
        "is of a kind that Argo CD defines",
    ),
    (
        "kubectl delete namespace ",
        "waits for what deletes a namespace's objects, which needs a whole control plane",
    ),
];

/// Words in capitals stand for the reader's own names, and the examples' model for the one that is played here.
const NAMES: &[(&str, &str)] = &[
    ("tiny-chat-v2", "random-v1"),
    ("tiny-chat", "random"),
    ("POOL", "small"),
];

/// What is for a cluster, and not told to be elsewhere.
fn for_a_cluster(page: &str, excused: &mut Vec<&'static str>) -> Vec<String> {
    let mut all = vec![];
    for command in commands(page).unwrap() {
        let starts = |start: &&(&'static str, &str)| command.starts_with(start.0);
        if let Some((start, _)) = ELSEWHERE.iter().find(starts) {
            excused.push(start);
        } else if command.starts_with("kubectl ") {
            all.push(command);
        }
    }
    all
}

/// Whether a command makes or removes what Weir is installed as; others look at what runs.
fn installs(command: &str) -> bool {
    let verbs = [" create ", " apply ", " delete ", " patch "];
    verbs.iter().any(|verb| command.contains(verb))
}

fn shell(binaries: &Binaries, plane: &ControlPlane, namespace: &str, folder: &Path) -> Shell {
    let programs = plane.folder().join("programs");
    std::fs::create_dir(&programs).unwrap();
    symlink(binaries.path("kubectl").unwrap(), programs.join("kubectl")).unwrap();
    symlink(weir_command().get_program(), programs.join("kubectl-weir")).unwrap();
    let own = plane.folder().join("own.kubeconfig");
    std::fs::copy(plane.kubeconfig(), &own).unwrap();
    let shell = Shell {
        folder: folder.to_owned(),
        programs,
        environment: vec![
            ("KUBECONFIG", own.display().to_string()),
            ("HOME", plane.folder().display().to_string()),
        ],
    };
    let set = "kubectl config set-context --current --namespace";
    shell.run(&format!("{set} {namespace}")).unwrap();
    shell
}

#[test]
fn the_commands_of_the_documents_do_what_they_say_on_a_cluster() {
    let Some(binaries) = cluster::layer(Layer::Api, "commands of documents").unwrap() else {
        return;
    };
    let mut excused = vec![];
    let (mut before, mut while_it_runs) = (vec![], vec![]);
    for page in pages() {
        for command in for_a_cluster(&page, &mut excused) {
            let told = (page.clone(), command.clone());
            if installs(&command) {
                before.push(told);
            } else {
                while_it_runs.push(told);
            }
        }
    }
    let useless = ELSEWHERE
        .iter()
        .filter(|(start, _)| !excused.contains(start));
    assert_eq!(useless.count(), 0, "of {ELSEWHERE:?}, used: {excused:?}");
    assert!(before.len() >= 6 && while_it_runs.len() >= 8);

    let plane = ControlPlane::start(&binaries).unwrap();
    let bare = shell(&binaries, &plane, "default", repository());
    // What Argo CD's own installation has made.
    for object in [
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "argocd"}}),
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "argocd-cm", "namespace": "argocd"}}),
    ] {
        plane.kubectl().apply("people", &object).unwrap();
    }
    for (page, command) in &before {
        eprintln!("{page}: {command}");
        bare.run(command).unwrap();
    }
    drop(plane);

    let stage = Stage::new(ControlPlane::start(&binaries).unwrap()).unwrap();
    stage.start_operator("a").unwrap();
    in_its_first_step(&stage);
    let people = shell(&binaries, &stage.plane, NAMESPACE, stage.plane.folder());
    for (page, command) in &while_it_runs {
        let here = NAMES.iter().fold(command.clone(), |command, (name, own)| {
            command.replace(name, own)
        });
        eprintln!("{page}: {here}");
        people.run(&here).unwrap();
    }
}
