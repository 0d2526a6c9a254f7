//! Reading a directory of YAML files into raw objects. A file that cannot be read keeps what it held before.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;

use super::problem::Problem;

/// A manifest larger than this is no manifest; a Kubernetes object may have 1.5 MiB.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;
/// More files than this in one directory is a mistake, not a configuration.
const MAX_FILES: usize = 1_000;
/// A file that is gone counts as deleted after this long: many an editor moves the old file away before it writes the new one.
const GONE_AFTER: Duration = Duration::from_millis(400);

/// One object of one document, before it is known to make sense.
#[derive(Clone, Debug, PartialEq)]
pub struct RawObject {
    /// The file it stands in.
    pub file: PathBuf,
    /// Line of the file on which its document begins, from 1.
    pub line: usize,
    /// The whole object.
    pub value: Value,
}

impl RawObject {
    /// `kind` of the object.
    pub fn kind(&self) -> &str {
        self.value["kind"].as_str().unwrap_or_default()
    }

    /// `metadata.name` of the object.
    pub fn name(&self) -> &str {
        self.value["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// How people name it: kind and name.
    pub fn title(&self) -> String {
        match (self.kind(), self.name()) {
            ("", "") => "object without kind and name".to_owned(),
            (kind, "") => format!("{kind} without a name"),
            (kind, name) => format!("{kind} {name:?}"),
        }
    }

    /// A problem at this object.
    pub fn problem(&self, path: &str, message: impl Into<String>) -> Problem {
        Problem {
            file: self.file.clone(),
            line: Some(self.line),
            object: Some(self.title()),
            path: (!path.is_empty()).then(|| path.to_owned()),
            message: message.into(),
        }
    }
}

/// The YAML files of a directory as they were last readable.
#[derive(Debug, Default)]
pub struct Directory {
    files: BTreeMap<PathBuf, FileState>,
}

#[derive(Debug, Default)]
struct FileState {
    /// As last parsed; `None` when what stands there now could not be read.
    text: Option<String>,
    objects: Vec<RawObject>,
    problems: Vec<Problem>,
    gone_since: Option<Instant>,
}

impl Directory {
    /// Reads the directory again; true when anything in it changed.
    ///
    /// # Errors
    /// The directory itself cannot be listed, or holds no YAML file any more. What was read before stays.
    pub fn refresh(&mut self, dir: &Path) -> Result<bool, Problem> {
        self.refresh_at(dir, Instant::now())
    }

    fn refresh_at(&mut self, dir: &Path, now: Instant) -> Result<bool, Problem> {
        let paths = yaml_files(dir)?;
        if paths.is_empty() && !self.files.is_empty() {
            return Err(Problem::in_file(
                dir,
                "holds no YAML file any more; what was in force stays so: put the manifests back, or stop weir up to end serving",
            ));
        }
        let mut changed = false;
        self.files.retain(|path, file| {
            let stays = paths.contains(path) || !file.is_gone(now);
            changed |= !stays;
            stays
        });
        for path in paths {
            changed |= self.refresh_file(&path);
        }
        Ok(changed)
    }

    /// Reads one file, wherever it is.
    pub fn read_file(&mut self, path: &Path) {
        self.refresh_file(path);
    }

    /// Every object, in the order of file names and documents.
    pub fn objects(&self) -> impl Iterator<Item = &RawObject> {
        self.files.values().flat_map(|file| &file.objects)
    }

    /// What could not be read, file by file.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.files.values().flat_map(|file| &file.problems)
    }

    fn refresh_file(&mut self, path: &Path) -> bool {
        let state = self.files.entry(path.to_owned()).or_default();
        state.gone_since = None;
        let read = read_text(path).and_then(|text| {
            // Saving often empties a file first; and whoever means to remove its objects deletes it.
            if text.is_empty() && !state.objects.is_empty() {
                return Err(
                    "is empty; the objects it held stay in force: delete the file to remove them"
                        .to_owned(),
                );
            }
            Ok(text)
        });
        let text = match read {
            Ok(text) => text,
            Err(message) => {
                let problems = vec![Problem::in_file(path, message)];
                let changed = state.problems != problems;
                state.problems = problems;
                state.text = None;
                return changed;
            }
        };
        if state.text.as_ref() == Some(&text) {
            return false;
        }
        match parse(path, &text) {
            Ok(objects) => {
                state.objects = objects;
                state.problems.clear();
            }
            // The objects of the last readable version stay in force.
            Err(problem) => state.problems = vec![problem],
        }
        state.text = Some(text);
        true
    }
}

impl FileState {
    /// Whether a file that is not there now has been away for long enough to be deleted.
    fn is_gone(&mut self, now: Instant) -> bool {
        let since = *self.gone_since.get_or_insert(now);
        now.saturating_duration_since(since) >= GONE_AFTER
    }
}

fn yaml_files(dir: &Path) -> Result<Vec<PathBuf>, Problem> {
    let entries = fs::read_dir(dir)
        .map_err(|error| Problem::in_file(dir, format!("cannot list the directory: {error}")))?;
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| {
            Problem::in_file(dir, format!("cannot list the directory: {error}"))
        })?;
        let path = entry.path();
        let is_yaml = path.extension().is_some_and(|e| e == "yaml" || e == "yml");
        // What is no file (a link to nowhere, a pipe) is refused by name when it is read: it does not count as deleted.
        if is_yaml {
            paths.push(path);
        }
    }
    if paths.len() > MAX_FILES {
        return Err(Problem::in_file(
            dir,
            format!(
                "holds {} YAML files, more than the {MAX_FILES} that are read; name a smaller directory",
                paths.len()
            ),
        ));
    }
    paths.sort();
    Ok(paths)
}

fn read_text(path: &Path) -> Result<String, String> {
    let meta = fs::metadata(path).map_err(|error| format!("cannot read the file: {error}"))?;
    if !meta.is_file() {
        return Err("is not a file; remove it or put a manifest in its place".to_owned());
    }
    let size = meta.len();
    if size > MAX_FILE_BYTES {
        return Err(format!(
            "has {size} bytes, more than the {MAX_FILE_BYTES} a manifest may have"
        ));
    }
    let bytes = fs::read(path).map_err(|error| format!("cannot read the file: {error}"))?;
    String::from_utf8(bytes).map_err(|error| {
        format!(
            "is not UTF-8 text (byte {}); save it as UTF-8",
            error.utf8_error().valid_up_to()
        )
    })
}

/// All documents of a file, lists (`kind: List`) flattened.
fn parse(path: &Path, text: &str) -> Result<Vec<RawObject>, Problem> {
    let mut objects = Vec::new();
    for (line, document) in documents(text) {
        let value = parse_document(path, line, document)?;
        match value {
            Value::Null => {}
            Value::Object(ref fields) => {
                let list = (value["kind"] == "List")
                    .then(|| fields.get("items"))
                    .flatten();
                let items = match list {
                    Some(Value::Array(items)) => items.clone(),
                    _ => vec![value],
                };
                objects.extend(items.into_iter().map(|value| RawObject {
                    file: path.to_owned(),
                    line,
                    value,
                }));
            }
            other => {
                return Err(Problem {
                    line: Some(line),
                    ..Problem::in_file(
                        path,
                        format!(
                            "expected an object with apiVersion and kind, found {}",
                            type_name(&other)
                        ),
                    )
                });
            }
        }
    }
    Ok(objects)
}

fn parse_document(path: &Path, first_line: usize, text: &str) -> Result<Value, Problem> {
    let at = |line: Option<usize>, message: String| Problem {
        line,
        ..Problem::in_file(path, message)
    };
    let yaml = serde_yaml::Value::deserialize(serde_yaml::Deserializer::from_str(text)).map_err(
        |error| {
            let line = error
                .location()
                .map(|l| first_line + l.line().saturating_sub(1));
            at(
                line.or(Some(first_line)),
                format!(
                    "is not valid YAML: {}",
                    without_location(&error.to_string())
                ),
            )
        },
    )?;
    let yaml = merged(yaml).map_err(|message| at(Some(first_line), message))?;
    serde_json::to_value(yaml).map_err(|error| {
        at(
            Some(first_line),
            format!("holds a value that JSON cannot express: {error}"),
        )
    })
}

/// `<<: *anchor` merges, as kubectl's parser does.
fn merged(mut yaml: serde_yaml::Value) -> Result<serde_yaml::Value, String> {
    yaml.apply_merge()
        .map_err(|error| format!("has a bad merge key: {error}"))?;
    Ok(yaml)
}

/// The parser counts lines within the document; the caller has the line within the file.
fn without_location(message: &str) -> &str {
    message
        .find(" at line ")
        .map_or(message, |end| &message[..end])
}

/// Documents with the line they begin on. A line that is exactly `---` (blanks or a comment may follow) separates them.
fn documents(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let (mut start, mut start_line, mut offset) = (0, 1, 0);
    for (index, line) in text.split_inclusive('\n').enumerate() {
        let rest = line.strip_prefix("---").map(str::trim_end);
        if rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t'])) {
            found.push((start_line, &text[start..offset]));
            start = offset + 3;
            start_line = index + 1;
        }
        offset += line.len();
    }
    found.push((start_line, &text[start..]));
    found
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests;
