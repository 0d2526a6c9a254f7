//! Conversations with tools, for templates that know tools and for those that do not.

use serde_json::{Map, Value, json};
use weir_grammar::ToolFormat;
use weir_model::ModelText;
use weir_model::template::{ChatInput, RenderedChat, TemplateError};

/// A conversation as templates see one: messages with `tool_calls` and results, and the tools there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dialogue {
    /// `{role, content, tool_calls?, tool_call_id?}` each.
    pub messages: Vec<Value>,
    /// `{type: "function", function: {name, description?, parameters}}` each, if there are any.
    pub tools: Option<Value>,
}

impl Dialogue {
    /// Bytes of text in it, keys and marks aside.
    pub(crate) fn bytes(&self) -> usize {
        let messages = self.messages.iter().map(text_bytes).sum::<usize>();
        messages + self.tools.as_ref().map_or(0, text_bytes)
    }
}

fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(text_bytes).sum(),
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| key.len() + text_bytes(value))
            .sum(),
        _ => 8,
    }
}

/// What a Llama 3 template that knows tools speaks of.
const LLAMA_MARK: &str = "python_tag";
/// What a Hermes or Qwen template that knows tools speaks of.
const HERMES_MARK: &str = "<tool_call>";

/// How the model of a template writes calls; what the template does not say is told to the model in words.
pub(crate) fn tool_format(text: &ModelText) -> ToolFormat {
    if knows_tools(text) && !text.template.says(HERMES_MARK) {
        return ToolFormat::Llama;
    }
    ToolFormat::Hermes
}

fn knows_tools(text: &ModelText) -> bool {
    text.template.says("tools")
        && (text.template.says(HERMES_MARK) || text.template.says(LLAMA_MARK))
}

/// The prompt of a conversation with tools.
pub(crate) fn render(
    text: &ModelText,
    dialogue: &Dialogue,
    now_unix_s: i64,
) -> Result<RenderedChat, TemplateError> {
    if !knows_tools(text) {
        return text.encode_chat(&in_words(dialogue), now_unix_s);
    }
    text.apply_chat(&ChatInput {
        messages: &dialogue.messages,
        tools: dialogue.tools.as_ref(),
        add_generation_prompt: true,
        variables: None,
        now_unix_s,
    })
}

/// The same conversation in plain turns: tools in the system's words, calls in the assistant's, results in the user's.
fn in_words(dialogue: &Dialogue) -> Vec<Value> {
    let mut turns: Vec<(String, String)> = Vec::new();
    for message in &dialogue.messages {
        let content = message["content"].as_str().unwrap_or_default();
        let (role, text) = match message["role"].as_str().unwrap_or_default() {
            "tool" => (
                "user",
                format!("<tool_response>\n{content}\n</tool_response>"),
            ),
            "assistant" => ("assistant", with_calls(content, &message["tool_calls"])),
            role => (role, content.to_owned()),
        };
        match turns.last_mut() {
            // Results of several calls are one turn, for templates that let turns alternate only.
            Some((last, before))
                if last == "user"
                    && role == "user"
                    && (text.starts_with("<tool_response>")
                        || before.ends_with("</tool_response>")) =>
            {
                before.push('\n');
                before.push_str(&text);
            }
            _ => turns.push((role.to_owned(), text)),
        }
    }
    if let Some(tools) = &dialogue.tools {
        let told = told(tools);
        match turns.first_mut() {
            Some((role, text)) if role == "system" => {
                text.push_str("\n\n");
                text.push_str(&told);
            }
            _ => turns.insert(0, ("system".to_owned(), told)),
        }
    }
    turns
        .into_iter()
        .map(|(role, content)| json!({"role": role, "content": content}))
        .collect()
}

fn with_calls(content: &str, calls: &Value) -> String {
    let mut parts: Vec<String> = Vec::new();
    if !content.is_empty() {
        parts.push(content.to_owned());
    }
    for call in calls.as_array().into_iter().flatten() {
        let function = &call["function"];
        let arguments = function["arguments"].as_str().unwrap_or("{}");
        parts.push(format!(
            "<tool_call>\n{{\"name\": {}, \"arguments\": {arguments}}}\n</tool_call>",
            function["name"]
        ));
    }
    parts.join("\n")
}

fn told(tools: &Value) -> String {
    let mut text = "You may call these functions, each described by one line of JSON:".to_owned();
    for tool in tools.as_array().into_iter().flatten() {
        text.push('\n');
        text.push_str(
            &tool
                .get("function")
                .unwrap_or(&Value::Object(Map::new()))
                .to_string(),
        );
    }
    text.push_str("\nTo call one, answer with\n<tool_call>\n{\"name\": its name, \"arguments\": its arguments}\n</tool_call>");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_without_tools_is_told_in_words_and_turns_still_alternate() {
        let call = json!({"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"at\":1}"}});
        let dialogue = Dialogue {
            messages: vec![
                json!({"role": "system", "content": "Be brief."}),
                json!({"role": "user", "content": "Look."}),
                json!({"role": "assistant", "content": "", "tool_calls": [call]}),
                json!({"role": "tool", "tool_call_id": "c1", "content": "red"}),
                json!({"role": "tool", "tool_call_id": "c2", "content": "blue"}),
                json!({"role": "user", "content": "And?"}),
            ],
            tools: Some(
                json!([{"type": "function", "function": {"name": "look", "parameters": {}}}]),
            ),
        };
        let turns = in_words(&dialogue);
        let roles: Vec<&str> = turns
            .iter()
            .filter_map(|turn| turn["role"].as_str())
            .collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        assert!(
            turns[0]["content"]
                .as_str()
                .unwrap()
                .starts_with("Be brief.\n\nYou may call")
        );
        assert_eq!(
            turns[2]["content"],
            "<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\":1}}\n</tool_call>"
        );
        assert_eq!(
            turns[3]["content"],
            "<tool_response>\nred\n</tool_response>\n<tool_response>\nblue\n</tool_response>\nAnd?"
        );
    }
}
