//! What the worker tells its parent: one JSON object a line on stdout.
//!
//! `{"event":"loading","message":…,"done":bytes,"total":bytes}` while it loads, then either
//! `{"event":"ready","message":…,"listen":…,"digest":…}` or `{"event":"failed","reason":…,"message":…}`. From then on, for each adapter
//! that comes or goes, `{"event":"adapter","plan":…,"state":…,"digest":…,"reason":…,"message":…,"text":…}`: the state
//! is `loaded`, `refused`, `failed` (it is tried again) or `removed`, and the text is the digest of the plan that was read. A worker of several
//! versions is ready when it has tried each plan once, and says of each version the same in `{"event":"version",…}`: one that is `leaving` takes
//! no new runs, and is `removed` when its memory is given back.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Progress lines are at least this far apart: they are for a person's eyes.
const PROGRESS_MIN: Duration = Duration::from_millis(200);

/// Where the lines go. Cloning shares it.
#[derive(Clone)]
pub struct Announcer {
    out: Option<Arc<Mutex<Lines>>>,
}

struct Lines {
    out: Box<dyn Write + Send>,
    last_progress: Option<Instant>,
}

impl Announcer {
    /// To the parent.
    pub fn stdout() -> Self {
        Self::to(Box::new(std::io::stdout()))
    }

    /// To some writer.
    pub fn to(out: Box<dyn Write + Send>) -> Self {
        Self {
            out: Some(Arc::new(Mutex::new(Lines {
                out,
                last_progress: None,
            }))),
        }
    }

    /// To nobody.
    pub fn silent() -> Self {
        Self { out: None }
    }

    /// A stage of loading.
    pub(crate) fn loading(&self, message: &str) {
        self.line(&json!({"event": "loading", "message": message}));
    }

    /// Bytes verified so far.
    pub(crate) fn verifying(&self, done: u64, total: u64) {
        self.progress("verifying", done, total);
    }

    /// Bytes that have come so far.
    pub(crate) fn fetching(&self, done: u64, total: u64) {
        self.progress("fetching", done, total);
    }

    fn progress(&self, doing: &str, done: u64, total: u64) {
        if let Some(Ok(mut lines)) = self.out.as_ref().map(|lines| lines.lock()) {
            if lines
                .last_progress
                .is_some_and(|at| at.elapsed() < PROGRESS_MIN)
                && done < total
            {
                return;
            }
            lines.last_progress = Some(Instant::now());
        }
        let percent = done.saturating_mul(100).checked_div(total).unwrap_or(100);
        self.line(&json!({
            "event": "loading",
            "message": format!("{doing}, {percent} %"),
            "done": done,
            "total": total,
        }));
    }

    /// Sessions are taken.
    pub(crate) fn ready(&self, listen: &str, digest: &str) {
        self.line(&json!({
            "event": "ready",
            "message": format!("takes sessions on {listen}"),
            "listen": listen,
            "digest": digest,
        }));
    }

    /// What a plan in a folder names is served, or not.
    pub(crate) fn said(&self, event: &str, said: &Said<'_>) {
        self.line(&json!({
            "event": event,
            "plan": said.plan,
            "state": said.state,
            "digest": said.digest,
            "reason": said.reason,
            "message": said.message,
            "text": said.text,
        }));
    }

    /// The worker ends.
    pub(crate) fn failed(&self, reason: &str, message: &str) {
        self.line(&json!({"event": "failed", "reason": reason, "message": message}));
    }

    fn line(&self, value: &Value) {
        let Some(Ok(mut lines)) = self.out.as_ref().map(|lines| lines.lock()) else {
            return;
        };
        // A parent that does not read any more must not end its worker.
        let _ = writeln!(lines.out, "{value}").and_then(|()| lines.out.flush());
    }
}

/// What became of a plan in a folder.
pub(crate) struct Said<'a> {
    /// Its name.
    pub(crate) plan: &'a str,
    /// `loaded`, `refused`, `failed`, `leaving` or `removed`.
    pub(crate) state: &'a str,
    /// Manifest digest of what it names, where known.
    pub(crate) digest: &'a str,
    /// One word, where it was refused.
    pub(crate) reason: &'a str,
    /// The cause and the remedy, where it was refused.
    pub(crate) message: &'a str,
    /// Digest of the plan's text.
    pub(crate) text: &'a str,
}

impl std::fmt::Debug for Announcer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Announcer").finish_non_exhaustive()
    }
}
