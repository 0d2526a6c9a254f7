//! The official `openai` packages, unmodified, against `weir up`.

use std::process::Command;

use weir_e2e::{Weir, repository, weir_command};

fn run(command: Command) {
    let data = tempfile::tempdir().unwrap();
    let weir = Weir::start(&repository().join("examples/quickstart"), data.path()).unwrap();
    run_against(&weir, command);
}

fn run_against(weir: &Weir, mut command: Command) {
    if let Some(ca) = &weir.ca {
        command.env("SSL_CERT_FILE", ca);
    }
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

/// `weir up --tls-self-signed`: the commands trust it by `--ca`, the official client by what it has in its place, over HTTP/2 too.
#[test]
fn a_gateway_with_its_own_certificate_answers_the_commands_and_the_official_client() {
    let data = tempfile::tempdir().unwrap();
    let manifests = repository().join("examples/quickstart");
    let listen = "127.0.0.1:0";
    let mut weir = Weir::spawn(&manifests, data.path(), listen, &["--tls-self-signed"]).unwrap();
    weir.wait_ready().unwrap();
    let ca = weir.ca.clone().unwrap();
    let command = |arguments: &[&str]| {
        let mut command = weir_command();
        command.args(arguments).env("WEIR_URL", &weir.listen);
        command
    };
    let answered = command(&["chat", "What is 12 plus 30?", "--ca"])
        .arg(&ca)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&answered.stdout).into_owned();
    assert!(
        answered.status.success() && text.contains("42"),
        "{answered:?}"
    );
    let usage = command(&["usage", "--ca"]).arg(&ca).output().unwrap();
    assert!(usage.status.success(), "{usage:?}");
    let stranger = command(&["usage"]).output().unwrap();
    let said = String::from_utf8_lossy(&stranger.stderr).into_owned();
    assert!(
        !stranger.status.success() && said.contains("--ca"),
        "{said}"
    );
    let keys = command(&["get", "keys", "--admin", &weir.admin])
        .output()
        .unwrap();
    let keys = String::from_utf8_lossy(&keys.stdout).into_owned();
    let of = |tenant: &str| {
        keys.lines()
            .find(|line| line.starts_with(tenant))
            .unwrap()
            .to_owned()
    };
    // Columns: tenant, key, state, from, until, last used, overlaps.
    let used = |line: String| line.split_whitespace().nth(5).unwrap().to_owned();
    assert!(used(of("acme")).starts_with("20"), "{keys}");
    assert_eq!(used(of("globex")), "never", "{keys}");
    let Some(python) = std::env::var_os("WEIR_PYTHON") else {
        eprintln!(
            "the official client is left out: WEIR_PYTHON names no Python with the openai package"
        );
        return;
    };
    let mut command = Command::new(python);
    let files =
        ["test_https.py", "test_openai.py"].map(|file| repository().join("e2e/python").join(file));
    command
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .args(files);
    run_against(&weir, command);
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
