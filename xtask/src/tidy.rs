//! `cargo xtask tidy`: file lengths, TODOs, stray words in sources, fresh generated files. (Function lengths and arguments are clippy's.)

use std::path::{Component, Path, PathBuf};

use anyhow::Result;

use crate::{crds, repo};

/// More lines than this in one Rust file hide more than one idea.
const LONGEST_FILE: usize = 400;
/// Tables of test rows are read one row at a time.
const LONGEST_TEST: usize = 600;

/// Files that may be longer, with the length they may have: a ratchet, numbers only go down.
const LONGER: &[(&str, usize)] = &[];

/// Checks the repository.
pub(crate) fn check() -> Result<String> {
    let files: Vec<PathBuf> = repo::files()?
        .into_iter()
        .filter(|path| is_source(path))
        .collect();
    let mut findings = Vec::new();
    for path in &files {
        findings.extend(source(path, &repo::read(path)?));
    }
    if let Err(error) = crds::check() {
        findings.push(format!("{error:#}"));
    }
    repo::verdict(
        &findings,
        format!("tidy: {} files are in order", files.len()),
    )
}

fn is_source(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

fn longest(path: &Path) -> usize {
    let folder = |part: Component<'_>| part.as_os_str() == "tests";
    let is_test = path.file_stem().is_some_and(|stem| stem == "tests");
    if is_test || path.components().any(folder) {
        LONGEST_TEST
    } else {
        LONGEST_FILE
    }
}

/// What is wrong with one source file.
fn source(path: &Path, text: &str) -> Vec<String> {
    let name = path.display().to_string();
    let mut findings = Vec::new();
    let lines = text.lines().count();
    let most = LONGER.iter().find(|(longer, _)| *longer == name);
    let most = most.map_or(longest(path), |(_, most)| *most);
    if lines > most {
        findings.push(format!(
            "{name}: {lines} lines, at most {most}: split it along its ideas"
        ));
    }
    for (index, line) in text.lines().enumerate() {
        if let Some(finding) = unfinished(line) {
            findings.push(format!("{name}:{}: {finding}", index + 1));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        findings.push(format!("{name}: no newline at its end"));
    }
    findings
}

/// Work left open without saying where it is tracked: the word must be followed by `(#12)`.
fn unfinished(line: &str) -> Option<String> {
    // Put together here, so that this file does not find itself.
    let words = [
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X"),
    ];
    for word in words {
        for (start, _) in line.match_indices(word) {
            let before = line[..start].chars().next_back();
            let after = &line[start + word.len()..];
            let inside_a_word = |c: char| c.is_alphanumeric() || c == '_';
            if before.is_some_and(inside_a_word) || after.chars().next().is_some_and(inside_a_word)
            {
                continue;
            }
            let issue = after
                .strip_prefix("(#")
                .and_then(|rest| rest.split_once(')'));
            let tracked = issue.is_some_and(|(number, _)| number.parse::<u32>().is_ok());
            if !tracked {
                return Some(format!("{word} without an issue: write {word}(#12)"));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        check().unwrap();
    }

    #[test]
    fn untidy_sources_are_found() {
        let word = concat!("TO", "DO");
        let cases = [
            ("fn main() {}\n".to_owned(), 0),
            ("fn main() {}".to_owned(), 1),
            (format!("// {word} later\n"), 1),
            (format!("// {word}(#12): later\n"), 0),
            (format!("// {word}(later)\n"), 1),
            (format!("let MY_{word}_LIST = 1;\n"), 0),
            ("x\n".repeat(LONGEST_FILE), 0),
            ("x\n".repeat(LONGEST_FILE + 1), 1),
        ];
        for (text, want) in cases {
            let findings = source(Path::new("a.rs"), &text);
            assert_eq!(findings.len(), want, "{findings:?}");
        }
    }

    #[test]
    fn tests_may_be_longer() {
        let text = "x\n".repeat(LONGEST_TEST);
        for path in ["a/src/b/tests.rs", "e2e/tests/run.rs"] {
            assert_eq!(source(Path::new(path), &text), [""; 0], "{path}");
        }
    }

    #[test]
    fn the_ratchet_names_files_that_need_it() {
        for (name, most) in LONGER {
            let lines = repo::read(Path::new(name)).unwrap().lines().count();
            assert!(lines > LONGEST_FILE, "{name} no longer needs an exception");
            assert!(*most < lines + 20, "{name}: lower the ratchet to {lines}");
        }
    }
}
