//! Policies as people write them.

use serde::Deserialize;

/// What is looked for in prompts and outputs, and what happens when it is found.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicySpec {
    /// Its name, recorded on runs.
    pub name: String,
    /// Its version, recorded on runs: count it up when rules change.
    #[serde(default = "one")]
    pub version: u32,
    /// Tenants it holds for; all where absent.
    pub tenants: Option<Vec<String>>,
    /// Models it holds for; all where absent.
    pub models: Option<Vec<String>>,
    /// What is looked for.
    #[serde(default)]
    pub rules: Vec<RuleSpec>,
    /// Who is asked beyond that.
    pub checker: Option<CheckerSpec>,
}

fn one() -> u32 {
    1
}

/// One thing that is looked for, in one or several ways.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RuleSpec {
    /// Its name, recorded on runs and shown in `[redacted:NAME]`: lower-case letters, digits and `_`.
    pub name: String,
    /// What happens to a match.
    pub action: RuleAction,
    /// Where it looks; in prompts and in outputs where absent.
    pub phases: Option<Vec<RulePhase>>,
    /// Words and phrases, as whole words, in any case of ASCII letters.
    #[serde(default)]
    pub words: Vec<String>,
    /// Regular expressions, each with matches of 1 to 256 bytes.
    #[serde(default)]
    pub regexes: Vec<String>,
    /// Patterns that come with the gateway.
    #[serde(default)]
    pub patterns: Vec<Builtin>,
}

/// What happens to a match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum RuleAction {
    /// A prompt is refused, an output ends before the match.
    Block,
    /// `[redacted:RULE]` takes its place.
    Redact,
}

/// Where a rule looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum RulePhase {
    /// In prompts.
    Before,
    /// In outputs.
    After,
}

/// A pattern that comes with the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Builtin {
    /// Keys of cloud providers: AWS, Google, Azure storage.
    CloudKeys,
    /// PEM private keys, to their end.
    PrivateKeys,
    /// Tokens of services: GitHub, GitLab, Slack, Stripe, OpenAI, Hugging Face, npm, JWT, and keys of this gateway.
    Tokens,
    /// Card numbers whose check digit fits.
    CardNumbers,
}

/// An HTTP service that judges text.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CheckerSpec {
    /// `http://…` or `https://…`; it is sent JSON by POST.
    pub url: String,
    /// How long it may take, connecting included.
    pub deadline_ms: u64,
    /// What is done when it does not answer in time, or not with a verdict.
    pub on_failure: OnFailure,
    /// Where it looks: in prompts where absent.
    pub phases: Option<Vec<RulePhase>>,
    /// After so many tokens, and at the end, it is asked about an output: 1 to 64. They are held back until it answers.
    #[serde(default = "thirty_two")]
    pub every_tokens: u32,
    /// Most calls at once; further ones count as failures.
    #[serde(default = "sixteen")]
    pub max_concurrent: u32,
}

fn thirty_two() -> u32 {
    32
}

fn sixteen() -> u32 {
    16
}

/// What is done when a checker fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum OnFailure {
    /// The text goes on, and the run says `unchecked`.
    Allow,
    /// It is treated as blocked.
    Block,
}

/// Why policies cannot be used. Nothing serves without the policies it was meant to have.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// A name that cannot be shown in a marker or recorded.
    #[error("{what} {name:?} must be 1 to 63 of a-z, 0-9, _ and -")]
    Name {
        /// Of what.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Two of one name.
    #[error("policy {policy:?} has {what} {name:?} twice; rename one")]
    Twice {
        /// Which policy.
        policy: String,
        /// Of what.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A rule that looks for nothing.
    #[error(
        "rule {rule:?} of policy {policy:?} looks for nothing; give it words, regexes or patterns"
    )]
    Empty {
        /// Which policy.
        policy: String,
        /// Which rule.
        rule: String,
    },
    /// A pattern cannot be used.
    #[error("rule {rule:?} of policy {policy:?}: pattern {pattern:?} {why}")]
    Pattern {
        /// Which policy.
        policy: String,
        /// Which rule.
        rule: String,
        /// The pattern.
        pattern: String,
        /// Why not.
        why: String,
    },
    /// A checker cannot be used.
    #[error("the checker of policy {policy:?}: {why}")]
    Checker {
        /// Which policy.
        policy: String,
        /// Why not.
        why: String,
    },
}
