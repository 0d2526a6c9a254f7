//! Chat templates: messages to the text a model was trained on, and that text to token ids.
//!
//! A template is code from the artifact, so it runs in a sandbox: no loader, no clock of its own, a bound on its work. The
//! messages are text from a client, so a special token spelled in one stays text; [`guard`] says how.

mod functions;
mod guard;
mod messages;
#[cfg(test)]
mod tests;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, UndefinedBehavior, Value, context};
use serde_json::{Map, Value as Json};

use crate::tokenizer::{Tokenizer, TokenizerError, keep_one_bos};

/// Name of the file with the template alone, which wins over the one in [`TOKENIZER_CONFIG_FILE`].
pub const TEMPLATE_FILE: &str = "chat_template.jinja";
/// Name of the file with special token names and, in older artifacts, the template.
pub const TOKENIZER_CONFIG_FILE: &str = "tokenizer_config.json";

/// Work one rendering may do, in instructions of the template engine. A chat of 1,000 messages takes well under a tenth of it.
const FUEL: u64 = 10_000_000;
/// Largest template source; the longest known ones are near 20 KB.
const SOURCE_BYTES_MAX: usize = 1 << 20;

/// A chat template cannot be loaded or applied.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The artifact has none.
    #[error(
        "the model has no chat template; use plain completions, or add \"{TEMPLATE_FILE}\" to the artifact"
    )]
    None,
    /// `tokenizer_config.json` cannot be read.
    #[error("\"{TOKENIZER_CONFIG_FILE}\": {what}")]
    Config {
        /// What is wrong with it.
        what: String,
    },
    /// The template does not parse.
    #[error("chat template of the model does not parse: {what}")]
    Source {
        /// What the template engine says.
        what: String,
    },
    /// The template itself refused the messages by `raise_exception`.
    #[error("{message}")]
    Refused {
        /// The template's own words.
        message: String,
    },
    /// The template failed on the messages.
    #[error("chat template cannot be applied to these messages: {what}")]
    Apply {
        /// What the template engine says.
        what: String,
    },
    /// A message cannot be given to the template.
    #[error("messages[{index}]: {what}")]
    Message {
        /// Which message, from 0.
        index: usize,
        /// What is wrong and what would be right.
        what: String,
    },
    /// Tokenizing the rendered text failed.
    #[error("cannot tokenize the rendered chat")]
    Tokenize(#[source] TokenizerError),
}

impl TemplateError {
    /// Whether the request is at fault rather than the artifact.
    pub fn is_request_fault(&self) -> bool {
        !matches!(self, Self::Config { .. } | Self::Source { .. })
    }
}

/// What a template is applied to.
#[derive(Clone, Debug)]
pub struct ChatInput<'a> {
    /// Messages as clients send them: objects with `role` and `content`.
    pub messages: &'a [Json],
    /// Tool descriptions, if any.
    pub tools: Option<&'a Json>,
    /// Whether the text ends where the answer begins.
    pub add_generation_prompt: bool,
    /// More variables for the template (`chat_template_kwargs`, e.g. `enable_thinking`).
    pub variables: Option<&'a Map<String, Json>>,
    /// Seconds since 1970 that `strftime_now` shows (UTC): an argument, so that the same input gives the same prompt.
    pub now_unix_s: i64,
}

/// A rendered chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedChat {
    /// What the model reads.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
}

/// The chat template of a model.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos_token: Option<String>,
    eos_token: Option<String>,
    other_tokens: Vec<(String, String)>,
}

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

impl ChatTemplate {
    /// From the two files that can hold it; either may be absent.
    ///
    /// # Errors
    /// A file cannot be read, or the template does not parse.
    pub fn load(
        template: Option<&[u8]>,
        tokenizer_config: Option<&[u8]>,
    ) -> Result<Self, TemplateError> {
        let config = match tokenizer_config {
            None => Map::new(),
            Some(bytes) => match serde_json::from_slice(bytes) {
                Ok(Json::Object(map)) => map,
                Ok(_) => {
                    return Err(TemplateError::Config {
                        what: "is not an object".to_owned(),
                    });
                }
                Err(error) => {
                    return Err(TemplateError::Config {
                        what: error.to_string(),
                    });
                }
            },
        };
        let mut environment = environment()?;
        for (name, source) in sources(template, &config)? {
            if source.len() > SOURCE_BYTES_MAX {
                return Err(TemplateError::Source {
                    what: format!("it is longer than {SOURCE_BYTES_MAX} bytes"),
                });
            }
            let source = functions::without_generation_tags(&source);
            environment
                .add_template_owned(name, source)
                .map_err(|error| TemplateError::Source {
                    what: describe(&error),
                })?;
        }
        let token = |key: &str| config.get(key).and_then(token_text);
        let other = |key: &&str| token(key).map(|text| ((*key).to_owned(), text));
        Ok(Self {
            environment,
            bos_token: token("bos_token"),
            eos_token: token("eos_token"),
            other_tokens: ["unk_token", "pad_token", "sep_token", "cls_token"]
                .iter()
                .filter_map(other)
                .collect(),
        })
    }

    /// Whether the model has a template at all.
    pub fn is_present(&self) -> bool {
        self.environment.templates().next().is_some()
    }

    /// Whether a template of the model has a text in its source: what it writes of its own tells how the model was trained.
    pub fn says(&self, text: &str) -> bool {
        self.environment
            .templates()
            .any(|(_, template)| template.source().contains(text))
    }

    /// The spelling of the token that begins a text, as `tokenizer_config.json` names it.
    pub fn bos_token(&self) -> Option<&str> {
        self.bos_token.as_deref()
    }

    /// The spelling of the token that ends a text, as `tokenizer_config.json` names it.
    pub fn eos_token(&self) -> Option<&str> {
        self.eos_token.as_deref()
    }

    /// Renders messages and tokenizes the text. Special tokens count where the template wrote them; in the text of messages,
    /// tools and variables they are plain text. Only the template decides about BOS, as in the reference; it is never doubled.
    ///
    /// # Errors
    /// There is no template, it refuses the messages, fails on them or works too long.
    pub fn apply(
        &self,
        input: &ChatInput<'_>,
        tokenizer: &Tokenizer,
    ) -> Result<RenderedChat, TemplateError> {
        let name = match input.tools {
            Some(_) if self.environment.get_template(TOOL_USE).is_ok() => TOOL_USE,
            _ => DEFAULT,
        };
        let template = self
            .environment
            .get_template(name)
            .map_err(|_| TemplateError::None)?;
        let mut messages = messages::normalize(input.messages)?;
        let mut tools = input.tools.cloned().unwrap_or(Json::Null);
        let mut variables = input.variables.cloned().unwrap_or_default();
        let mut guard = guard::Guard::new(tokenizer.special_spellings());
        guard.choose_mark(&[&messages, &tools].into_iter().chain(variables.values()));
        guard.protect(&mut messages);
        guard.protect(&mut tools);
        variables
            .values_mut()
            .for_each(|value| guard.protect(value));
        let context = self.context(&messages, &tools, &variables, input);
        let marked = template
            .render(context)
            .map_err(|error| refused_or_failed(&error))?;
        let (text, plain_at) = guard.strip(&marked);
        let mut tokens = tokenizer
            .encode_except(&text, &plain_at)
            .map_err(TemplateError::Tokenize)?;
        if let Some(bos) = self
            .bos_token
            .as_deref()
            .and_then(|bos| tokenizer.token_id(bos))
        {
            keep_one_bos(&mut tokens, bos);
        }
        Ok(RenderedChat { text, tokens })
    }

    fn context(
        &self,
        messages: &Json,
        tools: &Json,
        variables: &Map<String, Json>,
        input: &ChatInput<'_>,
    ) -> Value {
        let fixed = context! {
            messages => Value::from(Serde(messages)),
            tools => Value::from(Serde(tools)),
            documents => Value::from(()),
            add_generation_prompt => input.add_generation_prompt,
            strftime_now => functions::strftime_now(input.now_unix_s),
            bos_token => self.bos_token.as_deref().unwrap_or_default(),
            eos_token => self.eos_token.as_deref().unwrap_or_default(),
        };
        let tokens = Value::from_pairs(
            self.other_tokens
                .iter()
                .map(|(name, text)| (name.clone(), text.clone())),
        );
        let variables = Value::from(Serde(variables));
        // Earlier entries win: a client's variable cannot replace the messages or the special tokens.
        context! { ..fixed, ..tokens, ..variables }
    }
}

/// The engine set up as `transformers` sets up Jinja, minus everything that reaches outside.
fn environment() -> Result<Environment<'static>, TemplateError> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_fuel(Some(FUEL));
    let syntax = SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .build();
    environment.set_syntax(syntax.map_err(|error| TemplateError::Source {
        what: error.to_string(),
    })?);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", functions::raise_exception);
    environment.add_filter("tojson", functions::to_json);
    Ok(environment)
}

/// (name, source) of each template the artifact has.
fn sources(
    file: Option<&[u8]>,
    config: &Map<String, Json>,
) -> Result<Vec<(String, String)>, TemplateError> {
    if let Some(bytes) = file {
        let source = std::str::from_utf8(bytes).map_err(|error| TemplateError::Source {
            what: format!("\"{TEMPLATE_FILE}\" is not UTF-8: {error}"),
        })?;
        return Ok(vec![(DEFAULT.to_owned(), source.to_owned())]);
    }
    let wrong = || TemplateError::Config {
        what: "chat_template must be a text or a list of {name, template}".to_owned(),
    };
    match config.get("chat_template") {
        None | Some(Json::Null) => Ok(Vec::new()),
        Some(Json::String(source)) => Ok(vec![(DEFAULT.to_owned(), source.clone())]),
        Some(Json::Array(list)) => list
            .iter()
            .map(|entry| {
                let text = |key: &str| entry[key].as_str().map(str::to_owned).ok_or_else(wrong);
                Ok((text("name")?, text("template")?))
            })
            .collect(),
        Some(_) => Err(wrong()),
    }
}

/// A special token is written as its text or as an object around it.
fn token_text(value: &Json) -> Option<String> {
    value
        .as_str()
        .or_else(|| value["content"].as_str())
        .map(str::to_owned)
}

fn refused_or_failed(error: &minijinja::Error) -> TemplateError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        if let Some(refusal) = current.downcast_ref::<functions::Refusal>() {
            return TemplateError::Refused {
                message: refusal.0.clone(),
            };
        }
        cause = current.source();
    }
    TemplateError::Apply {
        what: describe(error),
    }
}

fn describe(error: &minijinja::Error) -> String {
    match (error.detail(), error.line()) {
        (Some(detail), Some(line)) => format!("{}: {detail} (line {line})", error.kind()),
        _ => error.to_string(),
    }
}
