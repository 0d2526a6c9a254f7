//! Tools that a model may call, and how it writes a call.

use serde::{Deserialize, Serialize};
use serde_json::Value;

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
}

impl ToolSpec {
    /// As JSON.
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("keys are strings")
    }
}
