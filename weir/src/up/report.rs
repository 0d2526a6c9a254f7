//! What people and programs are told while `weir up` runs: problems, progress, what serves. Only changes are said.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use serde_json::{Value, json};
use weir_fetch::Reading;
use weir_telemetry::Readiness;

use super::course::Course;
use super::problem::Problem;
use super::status::History;
use super::supervisor::WorkerState;

/// Between two lines about one artifact that is on its way.
const SAY_EVERY: Duration = Duration::from_secs(2);

/// How lines are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Format {
    /// What `--json` asks for.
    pub fn of(json: bool) -> Self {
        if json { Self::Json } else { Self::Text }
    }
}

/// What the admin port shows.
#[derive(Clone)]
pub struct Pages {
    /// `/objects`.
    pub objects: Arc<ArcSwap<String>>,
    /// `/rollouts`.
    pub rollouts: Arc<ArcSwap<String>>,
    /// What the console plots.
    pub course: Arc<Course>,
}

impl Default for Pages {
    fn default() -> Self {
        let page = |text: &str| Arc::new(ArcSwap::from_pointee(text.to_owned()));
        Self {
            objects: page("[]"),
            rollouts: page("{}"),
            course: Arc::default(),
        }
    }
}

/// What was said last.
pub struct Report {
    format: Format,
    started: Instant,
    listen: String,
    /// What clients have to trust, where nobody else vouches for the listener.
    ca: Option<PathBuf>,
    admin: String,
    /// Since when conditions hold.
    pub history: History,
    pages: Pages,
    readiness: Readiness,
    objects: Vec<Value>,
    problems: Vec<Problem>,
    progress: BTreeMap<String, WorkerState>,
    fetching: BTreeMap<String, (Instant, Reading)>,
    serving: BTreeMap<String, u32>,
    was_ready: bool,
}

impl Report {
    /// Nothing said yet.
    pub fn new(
        format: Format,
        (listen, ca): (String, Option<PathBuf>),
        admin: String,
        pages: Pages,
        readiness: Readiness,
    ) -> Self {
        Self {
            format,
            started: Instant::now(),
            listen,
            ca,
            admin,
            history: History::default(),
            pages,
            readiness,
            objects: Vec::new(),
            problems: Vec::new(),
            progress: BTreeMap::new(),
            fetching: BTreeMap::new(),
            serving: BTreeMap::new(),
            was_ready: false,
        }
    }

    /// All objects with their status.
    pub fn objects(&mut self, objects: Vec<Value>) {
        if objects != self.objects {
            self.pages
                .objects
                .store(Arc::new(Value::Array(objects.clone()).to_string()));
            self.objects = objects;
        }
    }

    /// Everything that is wrong now.
    pub fn problems(&mut self, mut problems: Vec<Problem>) {
        problems.sort();
        problems.dedup();
        for problem in problems
            .iter()
            .filter(|problem| !self.problems.contains(problem))
        {
            self.say(
                &format!("problem: {problem}"),
                &json!({"event": "problem", "text": problem.to_string(), "problem": problem}),
            );
        }
        if problems.is_empty() && !self.problems.is_empty() {
            self.say(
                "the problems are solved",
                &json!({"event": "problemsSolved"}),
            );
        }
        self.problems = problems;
    }

    /// How the workers of each version are.
    pub fn progress<'a>(&mut self, states: impl Iterator<Item = (&'a str, WorkerState)>) {
        let states: BTreeMap<String, WorkerState> = states
            .map(|(name, state)| (name.to_owned(), state))
            .collect();
        for (name, state) in &states {
            if self.progress.get(name) == Some(state) {
                continue;
            }
            match state {
                WorkerState::Starting { progress } => {
                    self.say(&format!("{name}: {progress}"), &json!({"event": "loading", "version": name, "message": progress}));
                }
                WorkerState::Backoff { reason, crashes } => self.say(
                    &format!("{name}: its worker ended ({reason}); starting it again, crash {crashes}"),
                    &json!({"event": "workerEnded", "version": name, "reason": reason, "crashes": crashes}),
                ),
                WorkerState::Refused { reason, message, .. } => self.say(
                    &format!("{name}: {reason}: {message}"),
                    &json!({"event": "refused", "version": name, "reason": reason, "message": message}),
                ),
                WorkerState::Up | WorkerState::Stopped => {}
            }
        }
        self.progress = states;
    }

    /// How far artifacts have come: at its beginning, at its end, and in between as often as people want to read it.
    pub fn fetching(&mut self, readings: &BTreeMap<String, Reading>) {
        // What has only just begun has nothing to tell yet.
        for (name, reading) in readings.iter().filter(|(_, reading)| reading.total > 0) {
            let said = self.fetching.get(name);
            let is_whole = reading.done == reading.total;
            let is_news = match said {
                None => true,
                Some((_, before)) if before == reading => false,
                Some((at, before)) => {
                    is_whole || before.trouble != reading.trouble || at.elapsed() >= SAY_EVERY
                }
            };
            if is_news {
                self.say(
                    &format!("{name}: fetched {reading}"),
                    &json!({"event": "fetching", "version": name, "doneBytes": reading.done, "totalBytes": reading.total,
                        "receivedBytes": reading.received, "trouble": reading.trouble}),
                );
                self.fetching
                    .insert(name.clone(), (Instant::now(), reading.clone()));
            }
        }
        self.fetching.retain(|name, _| readings.contains_key(name));
    }

    /// Versions for which a request would succeed, by model.
    pub fn serving(&mut self, serving: BTreeMap<String, u32>) {
        if self.was_ready {
            for (model, version) in serving
                .iter()
                .filter(|(model, version)| self.serving.get(*model) != Some(version))
            {
                self.say(
                    &format!("{model} is served by version {version}"),
                    &json!({"event": "serving", "model": model, "version": version}),
                );
            }
        }
        self.serving = serving;
    }

    /// What every rollout remembers.
    pub fn rollouts(&self, page: String) {
        if **self.pages.rollouts.load() != page {
            self.pages.rollouts.store(Arc::new(page));
        }
    }

    /// What the console plots.
    pub fn course(&self) -> &Course {
        &self.pages.course
    }

    /// What was decided about a model's versions.
    pub fn rollout(&self, model: &str, notes: &[weir_rollout::decide::Note]) {
        for note in notes {
            let (version, reason, message) = (note.version, &note.reason, &note.message);
            self.say(
                &format!("{model} version {version}: {reason}: {message}"),
                &json!({"event": "rollout", "model": model, "version": version, "reason": reason, "message": message}),
            );
        }
    }

    /// Whether `ready` was said.
    pub fn is_ready(&self) -> bool {
        self.was_ready
    }

    /// Whether every model that is to be served is.
    pub fn readiness(&mut self, is_ready: bool) {
        if is_ready {
            self.readiness.set_ready("models");
        } else {
            self.readiness
                .set_not_ready("models", "not every model has a worker that takes runs");
        }
        if is_ready && !self.was_ready {
            self.was_ready = true;
            self.say_ready();
        }
    }

    fn say_ready(&self) {
        let after_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        if self.format == Format::Text {
            println!("\n{}", crate::cmd::get::tables(&self.objects));
        }
        let ca = self.ca.as_ref().map(|path| path.display().to_string());
        let trust = ca
            .as_ref()
            .map(|path| format!("; clients need --ca {path}"));
        self.say(
            &format!(
                "ready {} (health and metrics on http://{}) after {:.1} s{}",
                self.listen,
                self.admin,
                self.started.elapsed().as_secs_f64(),
                trust.unwrap_or_default()
            ),
            &json!({"event": "ready", "listen": self.listen.split("//").last(), "url": self.listen, "ca": ca, "admin": self.admin, "afterMs": after_ms,
                "serving": self.serving, "objects": self.objects}),
        );
    }

    fn say(&self, text: &str, value: &Value) {
        match self.format {
            Format::Text => println!("{text}"),
            Format::Json => println!("{value}"),
        }
    }
}
