//! The official `openai` packages, unmodified, against `weir up`.

use std::process::Command;

use weir_e2e::{Weir, repository};

fn run(mut command: Command) {
    let data = tempfile::tempdir().unwrap();
    let weir = Weir::start(&repository().join("examples/quickstart"), data.path()).unwrap();
    let output = command.env("WEIR_URL", &weir.listen).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    eprintln!("{text}");
}

#[test]
fn the_official_python_client_works_unmodified() {
    let Some(python) = std::env::var_os("WEIR_PYTHON") else {
        eprintln!(
            "skipped: WEIR_PYTHON names no Python with the openai package (cargo xtask test makes one)"
        );
        return;
    };
    let mut command = Command::new(python);
    command
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .arg(repository().join("e2e/python"));
    run(command);
}

#[test]
fn the_official_node_client_works_unmodified() {
    if std::env::var_os("WEIR_NODE").is_none_or(|folder| folder.is_empty()) {
        eprintln!(
            "skipped: WEIR_NODE names no folder with the openai package (cargo xtask test makes one where npm is)"
        );
        return;
    }
    let mut command = Command::new("node");
    command
        .arg("--test")
        .arg(repository().join("e2e/node/openai.test.mjs"));
    run(command);
}
