//! The official `openai` package, unmodified, against `weir up`.

use std::process::Command;

use weir_e2e::{Weir, repository};

#[test]
fn the_official_python_client_works_unmodified() {
    let Some(python) = std::env::var_os("WEIR_PYTHON") else {
        eprintln!(
            "skipped: WEIR_PYTHON names no Python with the openai package (cargo xtask test makes one)"
        );
        return;
    };
    let data = tempfile::tempdir().unwrap();
    let weir = Weir::start(&repository().join("examples/quickstart"), data.path()).unwrap();
    let output = Command::new(python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .arg(repository().join("e2e/python"))
        .env("WEIR_URL", &weir.listen)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    eprintln!("{text}");
}
