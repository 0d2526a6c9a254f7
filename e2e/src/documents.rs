//! The commands that documents give, as a reader meets them.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::repository;

/// What a command may take. What watches is ended sooner.
const SECONDS: u32 = 60;
const WATCHED_SECONDS: u32 = 3;

/// Where a reader types.
pub struct Shell {
    /// The folder they are in.
    pub folder: PathBuf,
    /// Programs that come before the installed ones.
    pub programs: PathBuf,
    /// What is set beside the test's own environment.
    pub environment: Vec<(&'static str, String)>,
}

impl Shell {
    /// Runs a command to its good end, or until something that watches has shown what it shows.
    ///
    /// # Errors
    /// It fails or takes too long; with what it printed.
    pub fn run(&self, command: &str) -> Result<String> {
        let mut words = command.split_whitespace();
        let watches = words.any(|word| ["--watch", "-w"].contains(&word));
        let seconds = if watches { WATCHED_SECONDS } else { SECONDS };
        let path = std::env::var("PATH").unwrap_or_default();
        let output = Command::new("timeout")
            .arg(seconds.to_string())
            .args(["bash", "-o", "pipefail", "-c", command])
            .current_dir(&self.folder)
            .env("PATH", format!("{}:{path}", self.programs.display()))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .output()?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = text(&output.stdout) + &text(&output.stderr);
        let code = output.status.code();
        ensure!(
            code == Some(0) || (watches && code == Some(124)),
            "{command}: {code:?}: {said}"
        );
        Ok(said)
    }
}

/// Every page that tells people what to type, relative to the checkout.
pub fn pages() -> Vec<String> {
    let mut pages = vec!["README.md".to_owned()];
    for folder in ["docs", "docs/runbooks"] {
        let files = std::fs::read_dir(repository().join(folder));
        let names = files.into_iter().flatten().flatten();
        let pages_of = names
            .map(|file| format!("{folder}/{}", file.file_name().to_string_lossy()))
            .filter(|name| Path::new(name).extension().is_some_and(|kind| kind == "md"));
        pages.extend(pages_of);
    }
    pages.sort();
    pages
}

/// The commands of a page in its order: lines of console blocks that begin with a prompt, without it and without remarks, joined where they
/// end in a backslash.
///
/// # Errors
/// The page cannot be read.
pub fn commands(page: &str) -> std::io::Result<Vec<String>> {
    let text = std::fs::read_to_string(repository().join(page))?;
    Ok(in_blocks(&text)
        .filter(|(kind, _)| *kind == "console")
        .flat_map(|(_, block)| commands_of(block))
        .collect())
}

/// Blocks that begin like a command and are not marked as a console's: nobody would run what they say.
///
/// # Errors
/// The page cannot be read.
pub fn unmarked(page: &str) -> std::io::Result<Vec<String>> {
    let text = std::fs::read_to_string(repository().join(page))?;
    let programs = [
        "$", "weir", "kubectl", "helm", "curl", "cargo", "docker", "git",
    ];
    let begins = |block: &str| {
        let first = block.split_whitespace().next().unwrap_or_default();
        programs.contains(&first)
    };
    Ok(in_blocks(&text)
        .filter(|(kind, block)| *kind != "console" && begins(block))
        .map(|(_, block)| block.lines().next().unwrap_or_default().to_owned())
        .collect())
}

/// The content of each fenced block of a kind.
///
/// # Errors
/// The page cannot be read.
pub fn blocks(page: &str, kind: &str) -> std::io::Result<Vec<String>> {
    let text = std::fs::read_to_string(repository().join(page))?;
    let of_kind = in_blocks(&text).filter(|(of, _)| *of == kind);
    Ok(of_kind.map(|(_, block)| format!("{block}\n")).collect())
}

/// Kind and content of each fenced block.
fn in_blocks(text: &str) -> impl Iterator<Item = (&str, &str)> {
    // Every second piece lies between two fences.
    let pieces = text.split("\n```").skip(1).step_by(2);
    pieces.filter_map(|piece| piece.split_once('\n'))
}

fn commands_of(block: &str) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut open = false;
    for line in block.lines() {
        let text = line.strip_prefix("$ ");
        let more = open.then(|| line.trim_start());
        let Some(part) = text.or(more) else {
            continue;
        };
        let part = part.split("  #").next().unwrap_or(part).trim_end();
        open = part.ends_with('\\');
        let part = part.trim_end_matches('\\').trim_end();
        match commands.last_mut() {
            Some(last) if text.is_none() => {
                last.push(' ');
                last.push_str(part);
            }
            _ => commands.push(part.to_owned()),
        }
    }
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_begin_commands_and_backslashes_join_them() {
        let text = "a\n```console\n$ one --x   # why\nprinted\n$ two \\\n    -d 'y'\n```\nb\n```\nweir up\n```\n```yaml\nweir: 1\n```\n";
        let blocks: Vec<_> = in_blocks(text).collect();
        assert_eq!(blocks.len(), 3, "{blocks:?}");
        assert_eq!(commands_of(blocks[0].1), ["one --x", "two -d 'y'"]);
        assert_eq!(blocks[1], ("", "weir up"));
        assert_eq!(blocks[2].0, "yaml");
    }
}
