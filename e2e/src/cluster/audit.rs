//! What the API server was asked to do: its audit log, read from a mark on.

use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::wait_for;

/// How long the operator may keep back numbers that merely moved, and a little more.
const TOLD_LATE: Duration = Duration::from_secs(12);

/// The audit log of an API server.
#[derive(Clone, Debug)]
pub struct Audit {
    path: PathBuf,
}

/// One call to the API server.
#[derive(Clone, Debug)]
pub struct Call {
    /// `create`, `update`, `patch`, `delete`, `get`, `list`, `watch`, …
    pub verb: String,
    /// Who called.
    pub user: String,
    /// Which client, as it names itself.
    pub agent: String,
    /// The resource, with a subresource after `/`.
    pub resource: String,
    /// Namespace and name.
    pub object: String,
    /// The status of the answer.
    pub status: u64,
    /// Whether it only asked what would come of it.
    pub is_dry_run: bool,
}

impl Call {
    /// Whether it asks for a change.
    pub fn is_write(&self) -> bool {
        let changes = matches!(
            self.verb.as_str(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        );
        changes && !self.is_dry_run
    }
}

impl Audit {
    pub(crate) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Where the log ends now.
    pub fn mark(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len())
    }

    /// The calls that were answered since a mark. A watch is listed when it ends.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn since(&self, mark: u64) -> Result<Vec<Call>> {
        let mut file = std::fs::File::open(&self.path)
            .with_context(|| format!("opening {}", self.path.display()))?;
        file.seek(SeekFrom::Start(mark))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        // The last line may be half written.
        let whole = text
            .rsplit_once('\n')
            .map_or(String::new(), |it| it.0.to_owned());
        whole.lines().map(parse).collect()
    }

    /// The writes of a user since a mark, but for Leases, which a leader renews all the time, and events.
    ///
    /// # Errors
    /// As for [`Audit::since`].
    pub fn writes_since(&self, mark: u64, user: &str) -> Result<Vec<Call>> {
        let calls = self.since(mark)?;
        Ok(calls
            .into_iter()
            .filter(|call| call.is_write() && call.user == user)
            .filter(|call| call.resource != "leases" && call.resource != "events")
            .collect())
    }

    /// Waits until a user has told everything: it wrote nothing for longer than numbers that moved before may be kept back.
    ///
    /// # Errors
    /// It wrote on and on, or as for [`Audit::since`].
    pub fn wait_until_told(&self, user: &str) -> Result<()> {
        wait_for("an end of the writes", 120, || {
            let mark = self.mark();
            std::thread::sleep(TOLD_LATE);
            self.writes_since(mark, user).ok()?.is_empty().then_some(())
        })
    }
}

fn parse(line: &str) -> Result<Call> {
    let event: Value = serde_json::from_str(line).context("a line of the audit log")?;
    let text = |pointer: &str| {
        event
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let subresource = text("/objectRef/subresource");
    let resource = text("/objectRef/resource");
    let namespace = text("/objectRef/namespace");
    let name = text("/objectRef/name");
    Ok(Call {
        verb: text("/verb"),
        // Who is impersonated is who acts.
        user: if event.pointer("/impersonatedUser/username").is_some() {
            text("/impersonatedUser/username")
        } else {
            text("/user/username")
        },
        agent: text("/userAgent"),
        resource: if subresource.is_empty() {
            resource
        } else {
            format!("{resource}/{subresource}")
        },
        object: if namespace.is_empty() {
            name
        } else {
            format!("{namespace}/{name}")
        },
        status: event
            .pointer("/responseStatus/code")
            .and_then(Value::as_u64)
            .unwrap_or(0),
        is_dry_run: text("/requestURI").contains("dryRun="),
    })
}
