//! Prompts with expected answers, that come signed with a version: the only sign that knows right from wrong.

use std::sync::Arc;

use regex_automata::dfa::{Automaton, dense};
use regex_automata::{Input, MatchKind};
use serde::Deserialize;

/// Largest file.
const MAX_BYTES: usize = 1 << 20;
/// Most prompts: each is asked of two versions, one after the other.
const MAX_PROMPTS: usize = 1000;
/// Largest automaton of a pattern.
const MAX_AUTOMATON_BYTES: usize = 4 << 20;
/// Longest answer, where a prompt does not say.
const SILENT_MAX_TOKENS: u32 = 64;
/// And where it does.
const MOST_TOKENS: u32 = 1024;

/// A prompt, and which answers to it are right.
#[derive(Clone, Debug)]
pub struct Reference {
    /// What is asked: role and text of each message.
    pub messages: Vec<(String, String)>,
    /// Longest answer.
    pub max_tokens: u32,
    accept: Accept,
}

#[derive(Clone, Debug)]
enum Accept {
    /// The answer is one of these, white space around it left out.
    Texts(Vec<String>),
    /// The expression matches somewhere in it.
    Pattern(Arc<dense::DFA<Vec<u32>>>),
}

/// A file of references that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReferencesError {
    /// Too large, or empty.
    #[error("a file of references has 1 to {MAX_PROMPTS} lines and at most {MAX_BYTES} bytes")]
    Size,
    /// A line is not what it should be.
    #[error("line {line}: {why}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// Why not.
        why: String,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Line {
    prompt: Option<String>,
    messages: Option<Vec<LineMessage>>,
    accept: LineAccept,
    max_tokens: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LineMessage {
    role: String,
    content: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
enum LineAccept {
    Exact(Exact),
    Choice(Vec<String>),
    Pattern(String),
}

/// One text, or several of which each is right.
#[derive(Deserialize)]
#[serde(untagged, expecting = "`accept.exact` is a text or a list of texts")]
enum Exact {
    One(String),
    Any(Vec<String>),
}

impl Reference {
    /// Reads a file: a JSON object a line, `{"prompt": …}` or `{"messages": […]}` with `{"accept": {"exact": …}}`, `{"choice": […]}` or
    /// `{"pattern": …}`, and `maxTokens` where 64 do not suffice.
    ///
    /// # Errors
    /// The first line that cannot be used: a version whose references cannot be asked is not one to trust.
    pub fn parse(file: &[u8]) -> Result<Vec<Self>, ReferencesError> {
        if file.len() > MAX_BYTES {
            return Err(ReferencesError::Size);
        }
        let text = std::str::from_utf8(file).map_err(|error| ReferencesError::Line {
            line: 1,
            why: format!("the file is not UTF-8: {error}"),
        })?;
        let lines = text.lines().enumerate();
        let read = lines
            .filter(|(_, line)| !line.trim().is_empty())
            .map(|(place, line)| {
                Self::of(line).map_err(|why| ReferencesError::Line {
                    line: place + 1,
                    why,
                })
            });
        let all: Vec<Self> = read.collect::<Result<_, _>>()?;
        if all.is_empty() || all.len() > MAX_PROMPTS {
            return Err(ReferencesError::Size);
        }
        Ok(all)
    }

    fn of(line: &str) -> Result<Self, String> {
        let line: Line = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let messages = match (line.prompt, line.messages) {
            (Some(prompt), None) => vec![("user".to_owned(), prompt)],
            (None, Some(messages)) if !messages.is_empty() => messages
                .into_iter()
                .map(|message| (message.role, message.content))
                .collect(),
            _ => return Err("give either a `prompt` or `messages`".to_owned()),
        };
        let accept = match line.accept {
            LineAccept::Exact(Exact::One(text)) => texts(&[text])?,
            LineAccept::Exact(Exact::Any(all)) | LineAccept::Choice(all) => texts(&all)?,
            LineAccept::Pattern(pattern) => Accept::Pattern(Arc::new(automaton(&pattern)?)),
        };
        let max_tokens = line.max_tokens.unwrap_or(SILENT_MAX_TOKENS);
        if !(1..=MOST_TOKENS).contains(&max_tokens) {
            return Err(format!("`maxTokens` must be from 1 to {MOST_TOKENS}"));
        }
        Ok(Self {
            messages,
            max_tokens,
            accept,
        })
    }

    /// Whether an answer is right.
    pub fn accepts(&self, answer: &str) -> bool {
        match &self.accept {
            Accept::Texts(texts) => texts.iter().any(|text| text == answer.trim()),
            Accept::Pattern(dfa) => {
                let found = dfa.try_search_fwd(&Input::new(answer));
                found.is_ok_and(|found| found.is_some())
            }
        }
    }
}

fn texts(all: &[String]) -> Result<Accept, String> {
    if all.is_empty() {
        return Err("`accept` has nothing to choose from".to_owned());
    }
    Ok(Accept::Texts(
        all.iter().map(|text| text.trim().to_owned()).collect(),
    ))
}

fn automaton(pattern: &str) -> Result<dense::DFA<Vec<u32>>, String> {
    let config = dense::Config::new()
        .match_kind(MatchKind::LeftmostFirst)
        .dfa_size_limit(Some(MAX_AUTOMATON_BYTES))
        .determinize_size_limit(Some(2 * MAX_AUTOMATON_BYTES));
    let built = dense::Builder::new().configure(config).build(pattern);
    let dfa = built.map_err(|error| format!("`accept.pattern` cannot be used: {error}"))?;
    // A pattern that matches nothing at all would accept every answer.
    let everything = dfa.try_search_fwd(&Input::new(""));
    if everything.is_ok_and(|found| found.is_some()) {
        return Err("`accept.pattern` accepts an empty answer, so every one".to_owned());
    }
    Ok(dfa)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_right_by_text_choice_or_pattern() {
        let file = "{\"prompt\": \"a\", \"accept\": {\"exact\": \"42\"}}\n\n\
            {\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"b\"}], \"accept\": {\"choice\": [\"Red\", \"Blue\"]}, \"maxTokens\": 3}\n\
            {\"prompt\": \"c\", \"accept\": {\"pattern\": \"(?i)par[iy]s\"}}\n\
            {\"prompt\": \"d\", \"accept\": {\"exact\": [\"7\", \"seven\"]}}\n";
        let all = Reference::parse(file.as_bytes()).unwrap();
        let accepts = |place: usize, answer| all[place].accepts(answer);
        assert!(accepts(0, " 42\n") && !accepts(0, "42.") && !accepts(0, ""));
        assert!(accepts(1, "Blue") && !accepts(1, "blue"));
        assert!(accepts(2, "It is PARIS, of course.") && !accepts(2, "Lyon"));
        assert!(accepts(3, "7") && accepts(3, "seven") && !accepts(3, "7, seven"));
        assert_eq!((all[0].max_tokens, all[1].max_tokens), (64, 3));
        assert_eq!(all[1].messages.len(), 2);
    }

    #[test]
    fn the_references_of_the_examples_can_be_asked() {
        let examples =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/models");
        for version in 1..=3 {
            let path = examples.join(format!("tiny-chat-v{version}/references.jsonl"));
            let all = Reference::parse(&std::fs::read(&path).unwrap()).unwrap();
            assert_eq!(all.len(), 40, "{}", path.display());
        }
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named_by_line() {
        for (file, want) in [
            (
                "{\"prompt\": \"a\", \"accept\": {\"exact\": []}}",
                "nothing to choose",
            ),
            (
                "{\"prompt\": \"a\", \"accept\": {\"exact\": 7}}",
                "a text or a list",
            ),
            ("", "1 to 1000 lines"),
            ("{\"prompt\": \"a\"}", "line 1"),
            (
                "{\"prompt\": \"a\", \"accept\": {\"exact\": \"x\"}}\nnot json",
                "line 2",
            ),
            ("{\"accept\": {\"exact\": \"x\"}}", "either"),
            (
                "{\"prompt\": \"a\", \"accept\": {\"choice\": []}}",
                "nothing to choose",
            ),
            (
                "{\"prompt\": \"a\", \"accept\": {\"pattern\": \"(\"}}",
                "cannot be used",
            ),
            (
                "{\"prompt\": \"a\", \"accept\": {\"pattern\": \"x*\"}}",
                "empty answer",
            ),
            (
                "{\"prompt\": \"a\", \"accept\": {\"exact\": \"x\"}, \"maxTokens\": 0}",
                "maxTokens",
            ),
        ] {
            let error = Reference::parse(file.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(want), "{file}: {error}");
        }
    }
}
