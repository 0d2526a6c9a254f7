//! Why a grammar cannot be used.

/// A place in a JSON schema that cannot be honoured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{pointer}: {what}")]
pub struct SchemaFault {
    /// JSON pointer into the schema, `#` for its root.
    pub pointer: String,
    /// What is wrong there and what would be right.
    pub what: String,
}

/// A grammar cannot be used, or failed on the way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// A JSON schema says something that cannot be honoured.
    #[error("the schema cannot be used: {0}")]
    Schema(SchemaFault),
    /// A tool cannot be offered.
    #[error("tool {tool:?} cannot be used: {fault}")]
    Tool {
        /// Its name, or its place where it has none.
        tool: String,
        /// What is wrong with it.
        fault: SchemaFault,
    },
    /// A regular expression or grammar is larger than is read.
    #[error("{what} has {bytes} bytes, {most} are the most; make it smaller")]
    Size {
        /// What is too large.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The bound.
        most: usize,
    },
    /// It nests deeper than is followed.
    #[error("{what} nests deeper than {most} levels; flatten it")]
    Depth {
        /// What nests.
        what: &'static str,
        /// The bound.
        most: usize,
    },
    /// The library cannot read it, or it takes more work than a request may cause.
    #[error("{what} cannot be compiled: {why}")]
    Compile {
        /// What was compiled.
        what: &'static str,
        /// The library's own words.
        why: String,
    },
    /// It allows no output at all, or none that this vocabulary can spell.
    #[error("{what} allows no output that the model's vocabulary can spell")]
    Nothing {
        /// What was compiled.
        what: &'static str,
    },
    /// The tokenizer's decoder is not one whose tokens are known by their bytes.
    #[error(
        "this model's tokenizer does not say which bytes its tokens stand for, so no grammar can be enforced"
    )]
    Vocabulary,
    /// A token came that the grammar does not allow, or following it took more work than a run may cause.
    #[error("the output left its grammar: {why}")]
    Left {
        /// The library's own words.
        why: String,
    },
}
