//! kubectl, as a person would use it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::repository;

/// kubectl for one cluster, perhaps as another user.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    /// Where it keeps what it discovered; of the cluster's own, so that no other cluster's answers are believed.
    cache: PathBuf,
    user: Option<String>,
}

/// What a command said.
#[derive(Clone, Debug)]
pub struct Said {
    /// Whether it ended with 0.
    pub ok: bool,
    /// Its exit status, where it exited.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Said {
    pub(super) fn of(output: &std::process::Output) -> Self {
        Self {
            ok: output.status.success(),
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Kubectl {
    /// For the cluster of a kubeconfig.
    pub fn new(program: &Path, kubeconfig: &Path, cache: &Path) -> Self {
        Self {
            program: program.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            cache: cache.to_owned(),
            user: None,
        }
    }

    /// The same as another user, such as `system:serviceaccount:NAMESPACE:NAME`.
    #[must_use]
    pub fn as_user(&self, user: &str) -> Self {
        Self {
            user: Some(user.to_owned()),
            ..self.clone()
        }
    }

    /// A command with these arguments, to be started by the caller.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .arg("--cache-dir")
            .arg(&self.cache)
            .args(arguments)
            .stdin(Stdio::null());
        if let Some(user) = &self.user {
            command.arg("--as").arg(user);
        }
        command
    }

    /// Runs it, whatever comes of it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn say(&self, arguments: &[&str], input: Option<&str>) -> Result<Said> {
        let mut command = self.command(arguments);
        if input.is_some() {
            command.stdin(Stdio::piped());
        }
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
            // One that ends before it read everything says why itself.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output()?;
        Ok(Said::of(&output))
    }

    /// Runs it and gives what it printed.
    ///
    /// # Errors
    /// It fails: the text holds what it said.
    pub fn run(&self, arguments: &[&str]) -> Result<String> {
        checked(arguments, self.say(arguments, None)?)
    }

    /// Reads an object or a list as JSON.
    ///
    /// # Errors
    /// As for [`Kubectl::run`].
    pub fn get(&self, arguments: &[&str]) -> Result<Value> {
        let all = [&["get", "-o", "json"][..], arguments].concat();
        serde_json::from_str(&self.run(&all)?).context("what kubectl printed")
    }

    /// Applies an object, by server-side apply as `manager`.
    ///
    /// # Errors
    /// It is refused: the text holds why.
    pub fn apply(&self, manager: &str, object: &Value) -> Result<Value> {
        let manager = format!("--field-manager={manager}");
        let arguments = ["apply", "--server-side", &manager, "-o", "json", "-f", "-"];
        let said = self.say(&arguments, Some(&object.to_string()))?;
        serde_json::from_str(&checked(&arguments, said)?).context("what kubectl printed")
    }

    /// Changes fields of an object (`KIND/NAME`), with further options, such as `--subresource=status`.
    ///
    /// # Errors
    /// It is refused: the text holds why.
    pub fn merge(
        &self,
        object: &str,
        namespace: &str,
        patch: &Value,
        options: &[&str],
    ) -> Result<()> {
        let patch = patch.to_string();
        let of = [
            "patch",
            object,
            "-n",
            namespace,
            "--type=merge",
            "-p",
            &patch,
        ];
        self.run(&[&of[..], options].concat()).map(drop)
    }

    /// Applies `crds/` and waits until the kinds are served.
    ///
    /// # Errors
    /// A definition is refused.
    pub fn apply_crds(&self) -> Result<()> {
        let folder = repository().join("crds").display().to_string();
        let apply = [
            "apply",
            "--server-side",
            "--field-manager=weir-install",
            "-f",
        ];
        self.run(&[&apply[..], &[&folder]].concat())?;
        let wait = ["wait", "--for=condition=Established", "--timeout=60s", "-f"];
        self.run(&[&wait[..], &[&folder]].concat())?;
        Ok(())
    }

    /// Tries to apply an object without a trace, and gives the refusal; `None` where it would be taken.
    ///
    /// # Errors
    /// kubectl cannot be started.
    pub fn refusal(&self, object: &Value) -> Result<Option<String>> {
        let arguments = [
            "apply",
            "--server-side",
            "--dry-run=server",
            "--field-manager=weir-test",
            "-f",
            "-",
        ];
        let said = self.say(&arguments, Some(&object.to_string()))?;
        Ok((!said.ok).then_some(said.err))
    }
}

fn checked(arguments: &[&str], said: Said) -> Result<String> {
    if !said.ok {
        bail!("kubectl {}: {}", arguments.join(" "), said.err.trim());
    }
    Ok(said.out)
}
