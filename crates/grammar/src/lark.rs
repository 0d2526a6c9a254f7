//! Grammars in llguidance's dialect of Lark: those that clients send, and the one that calls of tools are written in.

use crate::error::GrammarError;
use crate::narrow::narrowed;
use crate::tools::{ToolChoice, ToolFormat, ToolSpec};

/// Directives with which a grammar could leave the bounds: schemas have a way of their own, where they are checked.
const REFUSED: [&str; 3] = ["%json", "%llguidance", "%declare"];

/// What a client's grammar may not say.
pub(crate) fn check(grammar: &str) -> Result<(), GrammarError> {
    match REFUSED.iter().find(|word| grammar.contains(**word)) {
        None => Ok(()),
        Some(word) => Err(GrammarError::Compile {
            what: "the grammar",
            why: format!("{word} is not supported in it"),
        }),
    }
}

/// What comes before a call, and after it.
pub(crate) const HERMES_OPEN: &str = "<tool_call>";
pub(crate) const HERMES_HEAD: &str = "\n{\"name\": \"";
pub(crate) const HERMES_ARGUMENTS: &str = "\", \"arguments\": ";
pub(crate) const HERMES_CLOSE: &str = "}\n</tool_call>";
pub(crate) const HERMES_NEXT: &str = "\n<tool_call>";
pub(crate) const LLAMA_HEAD: &str = "{\"name\": \"";
pub(crate) const LLAMA_ARGUMENTS: &str = "\", \"parameters\": ";
pub(crate) const LLAMA_CLOSE: &str = "}";

/// The grammar of an output with calls.
pub(crate) fn of_tools(spec: &ToolSpec) -> String {
    let (grammar, separator) = match spec.format {
        ToolFormat::Hermes => (hermes(spec), HERMES_ARGUMENTS),
        ToolFormat::Llama => (llama(spec), LLAMA_ARGUMENTS),
    };
    let names: Vec<String> = (0..spec.tools.len())
        .map(|at| format!("tool_{at}"))
        .collect();
    let mut lines = vec![grammar, format!("which: {}", names.join(" | "))];
    for (at, tool) in spec.tools.iter().enumerate() {
        let head = quoted(&format!("{}{separator}", tool.name));
        lines.push(format!("tool_{at}: {head} args_{at}"));
        lines.push(format!("args_{at}: %json {}", narrowed(&tool.parameters)));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn hermes(spec: &ToolSpec) -> String {
    let (open, next) = (quoted(HERMES_OPEN), quoted(HERMES_NEXT));
    let (head, close) = (quoted(HERMES_HEAD), quoted(HERMES_CLOSE));
    let more = if spec.parallel { " more*" } else { "" };
    let start = match (spec.choice, &spec.answer) {
        (ToolChoice::Required, _) => format!("start: {open} call{more}\n"),
        // JSON never begins with a tag: the first character tells.
        (ToolChoice::Auto, Some(schema)) => format!(
            "start: answer | {open} call{more}\nanswer: %json {}\n",
            narrowed(schema)
        ),
        // The lazy lexeme ends with the first tag, so text never holds one.
        (ToolChoice::Auto, None) => format!(
            "start: TEXT | before call{more}\nbefore[lazy]: TEXT {open}\nTEXT: /(.|\\n)*/\n"
        ),
    };
    format!("{start}call: {head} which {close}\nmore: {next} call\n")
}

fn llama(spec: &ToolSpec) -> String {
    let (head, close) = (quoted(LLAMA_HEAD), quoted(LLAMA_CLOSE));
    let start = match spec.choice {
        ToolChoice::Required => "start: call\n",
        // What begins like a call is one.
        ToolChoice::Auto => "start: TEXT | call\nTEXT: /([^{\\s](.|\\n)*)?/\n",
    };
    format!("{start}call: {head} which {close}\n")
}

/// A text as a Lark literal, whose escapes are JSON's.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
