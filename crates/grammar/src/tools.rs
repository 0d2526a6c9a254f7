//! Tools that a model may call, and how it writes a call.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{GrammarError, SchemaFault};
use crate::schema::check_schema;

/// Tools of one run.
const TOOLS_MAX: usize = 128;
/// Bytes of a tool's name, as elsewhere.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// How a model writes calls of tools in its output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolFormat {
    /// `<tool_call>` and `</tool_call>` around `{"name": …, "arguments": …}`: Hermes, Qwen, and every model whose template says nothing.
    #[default]
    Hermes,
    /// The whole output is one `{"name": …, "parameters": …}`: Llama 3.
    Llama,
}

/// Whether the model has to call a tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolChoice {
    /// Text, calls, or both.
    #[default]
    Auto,
    /// At least one call and no text.
    Required,
}

/// A function that the model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// JSON schema of its arguments, an object.
    pub parameters: Value,
}

/// What a run may call; the text of a grammar of kind `TOOLS`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// How calls are written.
    pub format: ToolFormat,
    /// Whether there must be one.
    pub choice: ToolChoice,
    /// Whether there may be more than one.
    pub parallel: bool,
    /// What there is to call.
    pub tools: Vec<Tool>,
    /// JSON schema of an output that calls nothing; any text where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
}

impl ToolSpec {
    /// As JSON.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("keys are strings")
    }

    /// Names that can be written without quoting, parameters that are objects, and not too many of them.
    ///
    /// # Errors
    /// A tool cannot be offered, with the place in its schema.
    pub fn check(&self) -> Result<(), GrammarError> {
        let refuse = |tool: &str, pointer: &str, what: &str| {
            Err(GrammarError::Tool {
                tool: tool.to_owned(),
                fault: SchemaFault {
                    pointer: pointer.to_owned(),
                    what: what.to_owned(),
                },
            })
        };
        if self.tools.is_empty() {
            return refuse("", "#", "there is no tool to call");
        }
        if self.tools.len() > TOOLS_MAX {
            return refuse("", "#", "there are more than 128 tools");
        }
        for (place, tool) in self.tools.iter().enumerate() {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            if tool.name.is_empty()
                || tool.name.len() > NAME_BYTES_MAX
                || !tool.name.chars().all(plain)
            {
                return refuse(
                    &tool.name,
                    "#",
                    "a name has 1 to 64 letters, digits, underscores and dashes",
                );
            }
            if self.tools[..place]
                .iter()
                .any(|earlier| earlier.name == tool.name)
            {
                return refuse(&tool.name, "#", "two tools have this name");
            }
            if tool.parameters.get("type").and_then(Value::as_str) != Some("object") {
                return refuse(&tool.name, "#/type", "parameters must be of type object");
            }
            check_schema(&tool.parameters).map_err(|fault| GrammarError::Tool {
                tool: tool.name.clone(),
                fault,
            })?;
        }
        match &self.answer {
            None => Ok(()),
            // A call is an object too there: nobody could tell the two apart before the end.
            Some(_) if self.format == ToolFormat::Llama => Err(GrammarError::Compile {
                what: "the format",
                why: "this model writes calls as bare JSON, so a format for what is no call cannot be told from one; send a format or tools".to_owned(),
            }),
            Some(schema) => check_schema(schema).map_err(GrammarError::Schema),
        }
    }
}
