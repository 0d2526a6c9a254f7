//! What a client asked for, checked for size and shape before any work is done on it.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::Value;

use crate::error::GrammarError;
use crate::narrow::narrowed;
use crate::schema::check_schema;
use crate::tools::ToolSpec;
use crate::{SchemaFault, lark};

/// Bytes of a JSON schema. The largest that people write by hand are near 30 KB.
const SCHEMA_BYTES_MAX: usize = 128 << 10;
/// Bytes of a regular expression.
const REGEX_BYTES_MAX: usize = 8 << 10;
/// Bytes of a grammar.
const LARK_BYTES_MAX: usize = 32 << 10;
/// Nesting of brackets in an expression or a grammar: the library's parsers are recursive.
const NESTING_MAX: usize = 48;

/// What the output must look like.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A document that a JSON schema accepts.
    JsonSchema(Value),
    /// Text that a regular expression matches as a whole.
    Regex(String),
    /// Text that a context-free grammar derives, in llguidance's dialect of Lark.
    Lark(String),
    /// Text, calls of tools, or both.
    Tools(ToolSpec),
}

impl Source {
    /// From the text of a JSON schema.
    ///
    /// # Errors
    /// It is too large or not JSON.
    pub fn json_schema(text: &str) -> Result<Self, GrammarError> {
        within("the schema", text, SCHEMA_BYTES_MAX)?;
        let schema = serde_json::from_str(text).map_err(|error| {
            GrammarError::Schema(SchemaFault {
                pointer: "#".to_owned(),
                what: format!("it is not JSON: {error}"),
            })
        })?;
        Ok(Self::JsonSchema(schema))
    }

    /// From the text of a [`ToolSpec`].
    ///
    /// # Errors
    /// It is not one.
    pub fn tools(text: &str) -> Result<Self, GrammarError> {
        serde_json::from_str(text)
            .map(Self::Tools)
            .map_err(|error| GrammarError::Compile {
                what: "the list of tools",
                why: error.to_string(),
            })
    }

    /// Its name in errors.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) => "the schema",
            Self::Regex(_) => "the regular expression",
            Self::Lark(_) => "the grammar",
            Self::Tools(_) => "the tools' schemas",
        }
    }

    /// Everything that can be said without a vocabulary, in time linear in its size.
    ///
    /// # Errors
    /// It cannot be honoured, with the place.
    pub fn check(&self) -> Result<(), GrammarError> {
        match self {
            Self::JsonSchema(schema) => {
                within("the schema", &schema.to_string(), SCHEMA_BYTES_MAX)?;
                check_schema(schema).map_err(GrammarError::Schema)
            }
            Self::Regex(regex) => {
                within(self.name(), regex, REGEX_BYTES_MAX)?;
                shallow(self.name(), regex)
            }
            Self::Lark(grammar) => {
                within(self.name(), grammar, LARK_BYTES_MAX)?;
                shallow(self.name(), grammar)?;
                lark::check(grammar)
            }
            Self::Tools(spec) => {
                within(self.name(), &spec.encode(), SCHEMA_BYTES_MAX)?;
                spec.check()
            }
        }
    }

    /// What the library compiles.
    pub(crate) fn top_level(&self) -> TopLevelGrammar {
        let grammar = match self {
            Self::JsonSchema(schema) => GrammarWithLexer::from_json_schema(narrowed(schema)),
            Self::Regex(regex) => GrammarWithLexer::from_regex(unanchored(regex)),
            Self::Lark(grammar) => GrammarWithLexer::from_lark(grammar.clone()),
            Self::Tools(spec) => GrammarWithLexer::from_lark(lark::of_tools(spec)),
        };
        TopLevelGrammar::from_grammar(grammar)
    }
}

fn within(what: &'static str, text: &str, most: usize) -> Result<(), GrammarError> {
    if text.len() > most {
        return Err(GrammarError::Size {
            what,
            bytes: text.len(),
            most,
        });
    }
    Ok(())
}

/// Counts brackets wherever they stand: more than the parser sees, so never too few.
fn shallow(what: &'static str, text: &str) -> Result<(), GrammarError> {
    let mut depth = 0_usize;
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > NESTING_MAX {
            return Err(GrammarError::Depth {
                what,
                most: NESTING_MAX,
            });
        }
    }
    Ok(())
}

/// The whole output has to match, so anchors at the ends say nothing; the library does not know them.
fn unanchored(regex: &str) -> &str {
    let regex = regex.strip_prefix('^').unwrap_or(regex);
    match regex.strip_suffix('$') {
        Some(rest) if !ends_in_escape(rest) => rest,
        _ => regex,
    }
}

fn ends_in_escape(text: &str) -> bool {
    text.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1
}
