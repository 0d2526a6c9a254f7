//! Whether a grammar can be enforced at all, before a run is promised: compiled once without any model's vocabulary.

use std::collections::HashSet;
use std::sync::OnceLock;

use parking_lot::Mutex;
use serde_json::json;
use weir_grammar::{GrammarError, Source, ToolFormat, ToolSpec, Vocabulary};
use weir_protocol::error::ErrorCode;
use weir_protocol::worker::Grammar;
use weir_protocol::worker::grammar::Kind;

use super::request::Shape;
use crate::error::ApiError;

/// Grammars remembered as good: a digest each.
const REMEMBERED: usize = 4096;

/// What is known of grammars so far.
#[derive(Default)]
pub(super) struct Judge {
    bytes: OnceLock<Result<Vocabulary, GrammarError>>,
    good: Mutex<HashSet<[u8; 32]>>,
}

impl Judge {
    /// Whether a shape was found good before, or needs no judgement.
    pub(super) fn knows(&self, shape: &Shape) -> bool {
        digest(shape).is_none_or(|digest| self.good.lock().contains(&digest))
    }

    /// Compiles the shape's grammar. Takes milliseconds, a hostile one up to seconds.
    pub(super) fn judge(&self, shape: &Shape) -> Result<(), GrammarError> {
        let source = match shape {
            Shape::Free => return Ok(()),
            Shape::Grammar(grammar, _) => source(grammar)?,
            Shape::Tools(tools, _) => Source::Tools(tools.clone()),
        };
        let bytes = self.bytes.get_or_init(Vocabulary::bytes);
        bytes.as_ref().map_err(Clone::clone)?.compile(&source)?;
        let mut good = self.good.lock();
        if good.len() >= REMEMBERED {
            good.clear();
        }
        good.extend(digest(shape));
        Ok(())
    }
}

fn source(grammar: &Grammar) -> Result<Source, GrammarError> {
    match grammar.kind() {
        Kind::JsonSchema => Source::json_schema(&grammar.text),
        Kind::Regex => Ok(Source::Regex(grammar.text.clone())),
        _ => Ok(Source::Lark(grammar.text.clone())),
    }
}

fn digest(shape: &Shape) -> Option<[u8; 32]> {
    let (kind, text) = match shape {
        Shape::Free => return None,
        Shape::Grammar(grammar, _) => (grammar.kind, grammar.text.clone()),
        // How calls are written changes nothing about what can be compiled.
        Shape::Tools(tools, _) => (
            Kind::Tools.into(),
            ToolSpec {
                format: ToolFormat::default(),
                ..tools.clone()
            }
            .encode(),
        ),
    };
    let mut hasher = blake3::Hasher::new();
    hasher.update(&kind.to_le_bytes());
    hasher.update(text.as_bytes());
    Some(hasher.finalize().into())
}

/// The refusal of a grammar, with the place in the schema that is at fault.
pub(crate) fn schema_error(error: &GrammarError, param: &str) -> ApiError {
    let refused = ApiError::new(ErrorCode::SchemaError, error.to_string()).param(param);
    match error {
        GrammarError::Schema(fault) => refused.details(json!({"pointer": fault.pointer})),
        GrammarError::Tool { tool, fault } => {
            refused.details(json!({"tool": tool, "pointer": fault.pointer}))
        }
        _ => refused,
    }
}
