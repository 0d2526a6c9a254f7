//! Calls of tools, put together from the pieces in a run's events.

use serde::Serialize;
use serde_json::Value;
use weir_run::ToolCallDelta;

/// A call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct WholeCall {
    pub(crate) id: String,
    r#type: &'static str,
    pub(crate) function: Function,
}

/// What is called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// JSON as a text.
    pub(crate) arguments: String,
}

/// The calls of one choice so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Called(Vec<WholeCall>);

impl Called {
    /// Takes the pieces of one delta.
    pub(crate) fn add(&mut self, pieces: Vec<ToolCallDelta>) {
        for piece in pieces {
            if !piece.name.is_empty() {
                self.0.push(WholeCall {
                    id: piece.id,
                    r#type: "function",
                    function: Function {
                        name: piece.name,
                        arguments: piece.arguments,
                    },
                });
            } else if let Some(call) = self.0.get_mut(piece.index as usize) {
                call.function.arguments.push_str(&piece.arguments);
            }
        }
    }

    /// The calls whose arguments are whole: one that a ceiling cut is none.
    pub(crate) fn whole(self) -> Vec<WholeCall> {
        self.0.into_iter().filter(WholeCall::is_whole).collect()
    }

    /// All calls, the last of them perhaps unfinished.
    pub(crate) fn all(&self) -> &[WholeCall] {
        &self.0
    }
}

impl WholeCall {
    /// Whether its arguments are an object.
    pub(crate) fn is_whole(&self) -> bool {
        serde_json::from_str::<Value>(&self.function.arguments)
            .is_ok_and(|arguments| arguments.is_object())
    }
}
