use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use weir_model::AdapterError;

use super::*;

/// Answers loads in turn.
struct Fake(VecDeque<Result<String, LoadError>>);

impl Holder for Fake {
    const EVENT: &'static str = "version";
    const GONE: &'static str = "leaving";

    async fn load(&mut self, _: PathBuf) -> Option<Result<String, LoadError>> {
        self.0.pop_front()
    }

    async fn remove(&mut self, _: &str) -> Option<()> {
        Some(())
    }
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn states(&self) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let state = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["state"].as_str().unwrap().to_owned()
        };
        text.lines().map(state).collect()
    }
}

fn watch(
    folder: &Path,
    answers: impl Into<VecDeque<Result<String, LoadError>>>,
) -> (FolderWatch<Fake>, Lines) {
    let lines = Lines::default();
    let announcer = Announcer::to(Box::new(lines.clone()));
    let holder = Fake(answers.into());
    (
        FolderWatch::new(folder.to_owned(), holder, &announcer),
        lines,
    )
}

#[tokio::test]
async fn what_waits_for_room_is_asked_at_each_look_and_said_once() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.json"), "{}").unwrap();
    let full = || Err(LoadError::Full { most: 2 });
    let (mut watch, lines) = watch(dir.path(), [full(), full(), Ok("sha256:a".to_owned())]);
    for _ in 0..3 {
        watch.look().await.unwrap();
    }
    assert_eq!(lines.states(), ["failed", "loaded"]);
    std::fs::remove_file(dir.path().join("a.json")).unwrap();
    watch.look().await.unwrap();
    assert_eq!(lines.states(), ["failed", "loaded", "leaving"]);
}

#[tokio::test]
async fn nothing_serves_while_every_plan_fails_or_nobody_could_look() {
    let dir = tempfile::tempdir().unwrap();
    let full = || Err(LoadError::Full { most: 2 });
    let answers = [full(), full(), full(), Ok("sha256:b".to_owned())];
    let (mut watch, _) = watch(dir.path(), answers);
    assert!(!watch.serves(), "nobody has looked");
    watch.look().await.unwrap();
    assert!(watch.serves(), "there is nothing to hold");
    for name in ["a.json", "b.json"] {
        std::fs::write(dir.path().join(name), "{}").unwrap();
    }
    watch.look().await.unwrap();
    assert!(!watch.serves());
    watch.look().await.unwrap();
    assert!(watch.serves(), "one of two is loaded");
}

#[tokio::test]
async fn an_adapter_too_many_is_tried_again_later_and_one_that_is_wrong_is_not() {
    for (error, state, again) in [
        (AdapterError::TooMany { most: 1 }, "failed", true),
        (AdapterError::Empty, "refused", false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.json"), "{}").unwrap();
        let (mut watch, lines) = watch(dir.path(), [Err(LoadError::Adapter(error))]);
        watch.look().await.unwrap();
        watch.look().await.unwrap();
        assert_eq!(lines.states(), [state]);
        assert_eq!(watch.plans["a.json"].retry.is_some(), again);
    }
}

#[tokio::test]
async fn what_ended_by_itself_is_said_and_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.json"), "{}").unwrap();
    let (mut watch, lines) = watch(dir.path(), [Ok("sha256:a".to_owned())]);
    watch.look().await.unwrap();
    watch.note_lost("sha256:a", &LoadError::Engine("it broke".to_owned()));
    assert_eq!(lines.states(), ["loaded", "failed"]);
    let plan = &watch.plans["a.json"];
    assert!(plan.retry.is_some() && plan.loaded.is_none());
}

#[tokio::test]
async fn what_cannot_be_read_for_a_moment_is_not_gone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.json");
    std::fs::write(&path, "{}").unwrap();
    let (mut watch, lines) = watch(dir.path(), [Ok("sha256:a".to_owned())]);
    watch.look().await.unwrap();
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("a.json", &path).unwrap();
    watch.look().await.unwrap();
    assert_eq!(lines.states(), ["loaded"], "a link to itself");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("b.json", &path).unwrap();
    watch.look().await.unwrap();
    assert_eq!(lines.states(), ["loaded", "leaving"], "a link to nothing");
}

#[tokio::test]
async fn what_was_refused_is_tried_again_when_it_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.json");
    std::fs::write(&path, "{}").unwrap();
    let refused = || Err(LoadError::Adapter(AdapterError::Empty));
    let answers = [refused(), refused(), Ok("sha256:a".to_owned())];
    let (mut watch, lines) = watch(dir.path(), answers);
    watch.look().await.unwrap();
    watch.look().await.unwrap();
    assert_eq!(lines.states(), ["refused"], "once");
    for (hour, states) in [
        (1, vec!["refused"; 2]),
        (2, vec!["refused", "refused", "loaded"]),
    ] {
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        let written = SystemTime::now() + Duration::from_hours(hour);
        file.set_modified(written).unwrap();
        watch.look().await.unwrap();
        assert_eq!(lines.states(), states);
    }
}

#[test]
fn plans_beyond_the_most_are_the_last_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for number in (0..PLANS_MAX + 3).rev() {
        std::fs::write(dir.path().join(format!("{number:05}.json")), "").unwrap();
    }
    let found = list(dir.path()).unwrap();
    assert_eq!(found.len(), PLANS_MAX);
    assert_eq!(
        found.keys().next_back().unwrap(),
        &format!("{:05}.json", PLANS_MAX - 1)
    );
}
